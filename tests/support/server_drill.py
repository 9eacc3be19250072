"""A whole server in the main thread, as `serve` runs it, and a client that ends it by signals."""

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from ninfer.config import EngineConfig
from ninfer.gateway.gateway_settings import GatewaySettings
from ninfer.gateway.server import ServeEnd, ServePlan, serve
from ninfer.runtime import Engine, Progress
from tests.support.gateway_clients import PATIENCE_S, wait_until
from tests.support.gateway_server import RemoteServer
from tests.support.scripted_engine import ScriptedEngine

CONFIG = EngineConfig(device="host", max_concurrency=1, max_pending=4)


def slow(call: str) -> None:
    if call == "decode":
        time.sleep(0.003)


class Drill:
    """A server in the main thread, and a client beside it that ends it by signals."""

    def __init__(
        self, load: Callable[[Progress, Progress], Engine] | None = None, **settings: Any
    ) -> None:
        self.lines: list[str] = []
        self.load = load or (lambda *_: ScriptedEngine(max_concurrency=1, pace=slow))
        self.settings = GatewaySettings(port=0, **settings)
        self.failure: BaseException | None = None

    def run(self, client: Callable[[RemoteServer], None]) -> ServeEnd:
        def visit() -> None:
            try:
                wait_until(lambda: bool(self.lines))
                client(RemoteServer(int(self.lines[0].rpartition(":")[2])))
            except BaseException as error:  # noqa: BLE001 - raised again in the main thread
                self.failure = error
                os.kill(os.getpid(), signal.SIGTERM)

        thread = threading.Thread(target=visit)
        thread.start()
        end = serve(ServePlan(self.settings, CONFIG, self.load, announce=self.lines.append))
        thread.join(PATIENCE_S)
        if self.failure is not None:
            raise self.failure
        return end

    def wait_ready(self) -> None:
        wait_until(lambda: any(line.startswith("ready") for line in self.lines))


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
