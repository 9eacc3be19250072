"""HTTP routes of the OpenAI family.

What a body means is decided in the modules without I/O; here they meet Flask. Source: the serving
contract, section 2.
"""

from typing import Any

from flask import Flask, Response, request

from ninfer.gateway.gateway import Gateway
from ninfer.gateway.http_request import current_context
from ninfer.gateway.openai_api import RequestHeaders, translate_chat
from ninfer.gateway.request_context import RequestContext
from ninfer.gateway.request_facts import Endpoint
from ninfer.gateway.request_run import GenerationJob, answer_generation
from ninfer.runtime import Engine


def register(app: Flask, gateway: Gateway) -> None:
    """Add the routes."""
    app.add_url_rule(
        "/v1/chat/completions",
        endpoint="chat_completions",
        view_func=lambda: _chat(gateway),
        methods=["POST"],
    )


def _chat(gateway: Gateway) -> Response:
    headers = RequestHeaders(
        request.headers.get("x-session-id"), request.headers.get("x-ninfer-cache")
    )

    def translate(body: dict[str, Any], engine: Engine, context: RequestContext) -> GenerationJob:
        return translate_chat(body, engine, context, gateway.settings, headers)

    context = current_context()
    context.endpoint = Endpoint.CHAT
    return answer_generation(gateway, context, request.get_data, translate)
