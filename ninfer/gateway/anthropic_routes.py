"""HTTP routes of the Anthropic family.

What a body means is decided in the modules without I/O; here they meet Flask. Source: the serving
contract, section 9.
"""

from flask import Flask, Response, request

from ninfer.gateway.anthropic_api import MessageHeaders, count_tokens, translate_messages
from ninfer.gateway.event_stream import compact_json
from ninfer.gateway.gateway import Gateway
from ninfer.gateway.http_request import current_context
from ninfer.gateway.json_body import read_object
from ninfer.gateway.request_run import answer_generation
from ninfer.gateway.thinking_signature import ThinkingSigner


def register(app: Flask, gateway: Gateway) -> None:
    """Add the routes."""
    signer = ThinkingSigner()

    def messages() -> Response:
        headers = _headers()
        return answer_generation(
            gateway,
            current_context(),
            request.get_data,
            lambda body, engine, facts: translate_messages(
                body, engine, facts, gateway.settings, headers, signer.sign
            ),
        )

    def counting() -> Response:
        engine = gateway.life.loaded_engine()
        body = read_object(request.get_data())
        count = count_tokens(body, engine, current_context(), gateway.settings, _headers())
        return Response(compact_json(count), mimetype="application/json")

    app.add_url_rule("/v1/messages", "messages", messages, methods=["POST"])
    app.add_url_rule("/v1/messages/count_tokens", "count_tokens", counting, methods=["POST"])


def _headers() -> MessageHeaders:
    return MessageHeaders(
        request.headers.get("x-session-id"), request.headers.get("x-ninfer-cache")
    )
