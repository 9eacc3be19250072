"""The Flask application: what happens around every route.

    request -> context, Host, key, state, content type -> route -> headers -> reply
                                        any error -> the table of error_responses

Routes live in `health_routes` here and in the modules that `create_app` registers. Knows no server:
any WSGI server can run it, `ninfer.gateway.server` is ours. Source: the serving contract, sections
2, 3 and 12.
"""

import logging

from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from ninfer.errors import NinferError
from ninfer.gateway import anthropic_routes, health, openai_routes, static_page
from ninfer.gateway.error_responses import ErrorReply, body_too_large
from ninfer.gateway.event_stream import compact_json
from ninfer.gateway.gateway import Gateway
from ninfer.gateway.http_request import current_context, remember_context
from ninfer.gateway.metrics import CONTENT_TYPE, Metrics
from ninfer.gateway.request_context import (
    RequestContext,
    family_of,
    legal_client_id,
    new_request_id,
)
from ninfer.gateway.request_facts import endpoint_of
from ninfer.gateway.security import (
    check_host,
    check_json_type,
    check_key,
    cors_headers,
    preflight_headers,
)

_logger = logging.getLogger(__name__)

_KEYLESS_PATHS = frozenset({"/health", "/health/live", "/health/ready", "/"})
_KEYLESS_PREFIX = "/web/"
_HTTP_CODES = {404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}


def create_app(gateway: Gateway, metrics: Metrics | None = None) -> Flask:
    """Build the application of one gateway; without metrics there is no ``/metrics``."""
    app = Flask("ninfer.gateway", static_folder=None)
    app.config["PROVIDE_AUTOMATIC_OPTIONS"] = False
    app.config["PROPAGATE_EXCEPTIONS"] = False
    app.config["MAX_CONTENT_LENGTH"] = gateway.settings.max_request_bytes
    # A redirected POST would lose its body: /v1/models/ and //v1 are simply unknown.
    app.url_map.merge_slashes = False
    app.before_request(lambda: _admit(gateway))
    app.after_request(lambda response: _finish(gateway, response))
    app.register_error_handler(NinferError, lambda error: _refused(gateway, error))
    app.register_error_handler(HTTPException, lambda error: _unrouted(gateway, error))
    app.register_error_handler(Exception, lambda error: _broken(gateway, error))
    _add_health_routes(app, gateway)
    if metrics is not None:
        _add_metrics_route(app, metrics)
    openai_routes.register(app, gateway)
    anthropic_routes.register(app, gateway)
    static_page.register(app)
    return app


def _add_health_routes(app: Flask, gateway: Gateway) -> None:
    for path, body_of in (
        ("/health", health.short),
        ("/health/live", health.live),
        ("/health/ready", health.ready),
    ):

        def view(body_of: health.HealthOf = body_of) -> Response:
            status, body = body_of(gateway)
            return _json(status, body)

        app.add_url_rule(path, endpoint=path, view_func=view, methods=["GET"])


def _add_metrics_route(app: Flask, metrics: Metrics) -> None:
    app.add_url_rule(
        "/metrics",
        "metrics",
        lambda: Response(metrics.render(), content_type=CONTENT_TYPE),
        methods=["GET"],
    )


def _admit(gateway: Gateway) -> Response | None:
    """Everything that is checked before a route runs; a reply here ends the request."""
    received_at = gateway.life.now()
    context = RequestContext(
        family=family_of(request.path),
        request_id=new_request_id(),
        client_request_id=legal_client_id(request.headers.get("x-request-id")),
        received_at=received_at,
        is_client_gone=request.environ.get("waitress.client_disconnected", lambda: False),
        endpoint=endpoint_of(request.method, request.path),
        media=gateway.media,
        prepare_until=received_at + gateway.settings.pending_timeout_s,
    )
    remember_context(context)
    check_host(request.headers.get("Host"), gateway.settings)
    if request.method == "OPTIONS" and gateway.settings.cors_origins:
        return Response(
            status=204,
            headers=preflight_headers(request.headers.get("Origin"), gateway.settings),
        )
    if request.routing_exception is not None or _is_keyless(request.path, gateway):
        return None
    check_key(
        request.headers.get("Authorization"),
        request.headers.get("x-api-key"),
        gateway.settings.api_keys,
    )
    gateway.life.loaded_engine()
    if request.method == "POST":
        check_json_type(
            request.headers.get("Content-Type"), request.headers.get("Content-Encoding")
        )
    return None


def _is_keyless(path: str, gateway: Gateway) -> bool:
    if path == "/metrics":
        return gateway.settings.is_metrics_public
    return path in _KEYLESS_PATHS or path.startswith(_KEYLESS_PREFIX)


def _finish(gateway: Gateway, response: Response) -> Response:
    """Headers of every reply."""
    context = current_context()
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers.update(context.headers())
    if request.method != "OPTIONS":
        response.headers.update(cors_headers(request.headers.get("Origin"), gateway.settings))
    return response


def _refused(gateway: Gateway, error: NinferError) -> Response:
    context = current_context()
    return _error(gateway, gateway.error(error, context.request_id, is_running=context.is_accepted))


def _unrouted(gateway: Gateway, error: HTTPException) -> Response:
    """Errors of the HTTP library: unknown path, wrong method, body too large."""
    code = _HTTP_CODES.get(error.code or 500)
    if code is None:
        code, message = "invalid_http", f"the request is malformed ({error.code})"
    else:
        message = {
            "not_found": "there is no such path",
            "method_not_allowed": f"{request.method} is not allowed here",
            "request_too_large": body_too_large(gateway.settings.max_request_bytes),
        }[code]
    response = _error(gateway, ErrorReply(code, message))
    if isinstance(error, MethodNotAllowed) and error.valid_methods:
        response.headers["Allow"] = ", ".join(sorted(error.valid_methods))
    return response


def _broken(gateway: Gateway, error: Exception) -> Response:
    """A bug of ours: the log has it all, the client gets the id."""
    context = current_context()
    _logger.error("request %s failed", context.request_id, exc_info=error)
    return _error(gateway, ErrorReply("internal_error", context.request_id))


def _error(gateway: Gateway, reply: ErrorReply) -> Response:
    context = current_context()
    if context.endpoint is not None and not context.is_accepted:
        gateway.note_rejected(context.endpoint, context.request_id, reply.code)
    response = _json(reply.status(context.family), reply.body(context.family, context.request_id))
    if reply.retry_after_s is not None:
        response.headers["Retry-After"] = str(reply.retry_after_s)
    if reply.code == "invalid_api_key":
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _json(status: int, body: object) -> Response:
    return Response(compact_json(body), status=status, mimetype="application/json")
