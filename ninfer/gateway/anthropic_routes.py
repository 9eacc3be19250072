"""HTTP routes of the Anthropic family.

What a body means is decided in the modules without I/O; here they meet Flask. Source: the serving
contract, section 9.
"""

from flask import Flask, Response, request

from ninfer.gateway.anthropic_api import MessageHeaders, count_tokens, translate_messages
from ninfer.gateway.counting_run import answer_counting
from ninfer.gateway.gateway import Gateway
from ninfer.gateway.http_request import current_context
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
        context, headers = current_context(), _headers()
        return answer_counting(
            gateway,
            request.get_data,
            lambda body, engine: count_tokens(body, engine, context, gateway.settings, headers),
        )

    app.add_url_rule("/v1/messages", "messages", messages, methods=["POST"])
    app.add_url_rule("/v1/messages/count_tokens", "count_tokens", counting, methods=["POST"])


def _headers() -> MessageHeaders:
    return MessageHeaders(
        request.headers.get("x-session-id"), request.headers.get("x-ninfer-cache")
    )
