from ninfer.config import EngineConfig
from ninfer.gateway.debug_server import DebugServer
from ninfer.gateway.gateway import build_gateway
from ninfer.gateway.gateway_settings import GatewaySettings
from ninfer.gateway.http_app import create_app
from ninfer.gateway.metrics import Metrics
from tests.support.gateway_server import RemoteServer


def test_debug_server_answers_on_the_port_it_names() -> None:
    settings = GatewaySettings(host="127.0.0.1", port=0, http_server="werkzeug")
    metrics = Metrics()
    gateway = build_gateway(settings, EngineConfig(device="host"), observers=[metrics])

    with DebugServer(create_app(gateway, metrics), gateway) as server:
        reply = RemoteServer(server.port).get("/health/live")

    assert reply.status == 200
