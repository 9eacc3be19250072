"""Reading message bodies without a server."""

from ninfer.gateway.anthropic_api import MessageHeaders, translate_messages
from ninfer.gateway.error_responses import Family
from ninfer.gateway.gateway_settings import GatewaySettings
from ninfer.gateway.request_context import RequestContext
from ninfer.gateway.request_run import GenerationJob
from ninfer.runtime import Engine
from tests.gateway.anthropic_bodies import Body

SETTINGS = GatewaySettings()
HEADERS = MessageHeaders()


def a_context() -> RequestContext:
    return RequestContext(Family.ANTHROPIC, "req_1", None, 0.0, lambda: False)


def read(
    engine: Engine,
    asked: Body,
    *,
    context: RequestContext | None = None,
    settings: GatewaySettings = SETTINGS,
    headers: MessageHeaders = HEADERS,
) -> GenerationJob:
    return translate_messages(asked, engine, context or a_context(), settings, headers, str)
