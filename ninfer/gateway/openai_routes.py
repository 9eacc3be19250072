"""HTTP routes of the OpenAI family.

What a body means is decided in the modules without I/O; here they meet Flask. Source: the serving
contract, section 2.
"""

from collections.abc import Callable
from typing import Any

from flask import Flask, Response, request

from ninfer.errors import RequestError
from ninfer.gateway.counting_run import answer_counting
from ninfer.gateway.event_stream import compact_json
from ninfer.gateway.gateway import Gateway
from ninfer.gateway.gateway_settings import GatewaySettings
from ninfer.gateway.http_request import current_context
from ninfer.gateway.models_api import model_named, models_list
from ninfer.gateway.openai_api import translate_chat
from ninfer.gateway.openai_completions import translate_completion
from ninfer.gateway.openai_fields import RequestHeaders
from ninfer.gateway.request_context import RequestContext
from ninfer.gateway.request_run import GenerationJob, answer_generation
from ninfer.gateway.tokenize_api import detokenize, tokenize
from ninfer.runtime import Engine

OpenAiTranslate = Callable[
    [dict[str, Any], Engine, RequestContext, GatewaySettings, RequestHeaders], GenerationJob
]
Answer = Callable[[dict[str, Any], Engine, RequestContext, GatewaySettings], dict[str, Any]]


def register(app: Flask, gateway: Gateway) -> None:
    """Add the routes."""
    for path, translate in (
        ("/v1/chat/completions", translate_chat),
        ("/v1/completions", translate_completion),
    ):
        _add_generation(app, gateway, path, translate)
    for name, answer in (("tokenize", tokenize), ("detokenize", detokenize)):
        for path in (f"/v1/{name}", f"/{name}"):
            _add_answer(app, gateway, path, answer)
    app.add_url_rule(
        "/v1/models", "models", lambda: _json(models_list(gateway.life.loaded_engine()))
    )
    app.add_url_rule("/v1/models/<path:name>", "model", lambda name: _model(gateway, name))
    for path in ("/v1/responses", "/v1/responses/<path:rest>"):
        app.add_url_rule(path, path, _responses, methods=["GET", "POST", "DELETE"])


def _add_generation(app: Flask, gateway: Gateway, path: str, translate: OpenAiTranslate) -> None:
    def view() -> Response:
        headers = RequestHeaders(
            request.headers.get("x-session-id"), request.headers.get("x-ninfer-cache")
        )
        return answer_generation(
            gateway,
            current_context(),
            request.get_data,
            lambda body, engine, facts: translate(body, engine, facts, gateway.settings, headers),
        )

    app.add_url_rule(path, path, view, methods=["POST"])


def _add_answer(app: Flask, gateway: Gateway, path: str, answer: Answer) -> None:
    def view() -> Response:
        return answer_counting(
            gateway,
            request.get_data,
            lambda body, engine: answer(body, engine, current_context(), gateway.settings),
        )

    app.add_url_rule(path, path, view, methods=["POST"])


def _model(gateway: Gateway, name: str) -> Response:
    return _json(model_named(name, gateway.life.loaded_engine(), gateway.settings))


def _responses(rest: str = "") -> Response:
    raise RequestError(
        "the Responses API needs a store of replies, which this server has not; use "
        "/v1/chat/completions",
        code="unsupported_endpoint",
    )


def _json(body: object) -> Response:
    return Response(compact_json(body), mimetype="application/json")
