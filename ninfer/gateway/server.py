"""One server process from bind to exit: load, serve, drain.

    bind -> answer 503 while the engine loads -> ready -> signal -> drain -> close

The main thread owns the engine and waits here; HTTP threads do the rest. A first signal drains, a
second one cancels at once. Source: the serving contract, section 1.2.
"""

import enum
import logging
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Final

from ninfer.config import EngineConfig
from ninfer.gateway.debug_server import DebugServer
from ninfer.gateway.gateway import Gateway, build_gateway
from ninfer.gateway.gateway_settings import GatewaySettings
from ninfer.gateway.health import unready_reason
from ninfer.gateway.http_app import create_app
from ninfer.gateway.http_server import HttpServer
from ninfer.gateway.listening_socket import address_url
from ninfer.gateway.metrics import Metrics
from ninfer.gateway.request_log import RequestLog
from ninfer.gateway.server_state import ServerMove, ServerState
from ninfer.generation import number_text
from ninfer.runtime import Engine, EngineState, Progress
from ninfer.termination import SignalRaiser, Terminated

POLL_S: Final = 0.1
"""Longest time until the main thread notices a signal or a failed engine."""

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_logger = logging.getLogger(__name__)


class ServeEnd(enum.Enum):
    """How a server ended."""

    DRAINED = enum.auto()
    FAILED = enum.auto()


@dataclass(frozen=True, slots=True)
class ServePlan:
    """What to serve and how to say so.

    Attributes:
        load: builds the engine; told what an `Engine` calls ``progress`` and ``compiling``.
        arguments: command line for the log.
        announce: told one line for the operator at each step.
    """

    settings: GatewaySettings
    config: EngineConfig
    load: Callable[[Progress, Progress], Engine]
    arguments: Sequence[str] = ()
    announce: Callable[[str], None] = _logger.info


def serve(plan: ServePlan) -> ServeEnd:
    """Serve until a signal arrives or the engine fails.

    Raises:
        OSError: the address cannot be listened on, or the log cannot be opened.
        NinferError: the engine cannot be loaded.
    """
    with ExitStack() as stack:
        stop = stack.enter_context(_signals())
        try:
            server = _load(plan, stack)
            stop.end_loading()
        except BaseException:  # The signal's exception, or what replaced it on its way.
            if stop.count == 0:
                raise
            stop.end_loading()
            plan.announce("stopped while loading")
            return ServeEnd.DRAINED
        gateway, engine, log = server.gateway, server.engine, server.log
        gateway.life.note_loaded(engine)
        if log is not None:
            log.note_server_start(plan.arguments, engine)
        for line in engine.memory_account.splitlines():
            plan.announce(line)
        plan.announce(f"ready: {engine.model_id}, {plan.config.max_concurrency} at a time")
        end = _wait_and_drain(gateway, engine, stop, log, plan)
        server.http.close()
        if log is not None:
            log.note_server_stop(end.name.lower())
        plan.announce("failed" if end is ServeEnd.FAILED else "stopped")
        return end


@dataclass(frozen=True, slots=True)
class _Server:
    """Everything that was built; the stack that it was built on closes it."""

    gateway: Gateway
    http: HttpServer | DebugServer
    engine: Engine
    log: RequestLog | None


def _load(plan: ServePlan, stack: ExitStack) -> _Server:
    """Listen, then build the engine while requests are told to wait."""
    log = None
    if plan.settings.request_log is not None:
        log = stack.enter_context(RequestLog(plan.settings.request_log))
    metrics = Metrics()
    gateway = build_gateway(
        plan.settings, plan.config, observers=[metrics] if log is None else [metrics, log]
    )
    metrics.attach(gateway.life, lambda: unready_reason(gateway))
    app = create_app(gateway, metrics)
    is_debugging = plan.settings.http_server == "werkzeug"
    server: HttpServer | DebugServer = (
        DebugServer(app, gateway) if is_debugging else HttpServer(app, gateway)
    )
    stack.enter_context(server)
    plan.announce(f"listening on {address_url(plan.settings.host, server.port)}")
    try:
        life = gateway.life
        compiling = _announced(plan, life.note_kernels)
        engine = stack.enter_context(plan.load(life.note_weights, compiling))
        life.note_grammars()
        engine.frontend.warm_up_grammars()
    except StoppedWhileLoading:
        gateway.life.move(ServerMove.DRAIN)
        raise
    return _Server(gateway, server, engine, log)


def _announced(plan: ServePlan, compiling: Progress) -> Progress:
    """Say at the first report why the start takes long."""
    is_first = True

    def report(done: int, total: int) -> None:
        nonlocal is_first
        if is_first:
            plan.announce(
                f"compiling kernels, {total} in all: the first start on a machine does, once"
            )
        is_first = False
        compiling(done, total)

    return report


class StoppedWhileLoading(Terminated):
    """A signal arrived before there was anything to drain."""


class _StopRequests:
    """Signals so far; written by the handler, read by the main thread.

    The handler runs in the middle of whatever the main thread does, so it takes no lock of Python.
    """

    def __init__(self) -> None:
        self.count = 0
        self._arrived: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._loading: SignalRaiser | None = SignalRaiser(
            dict.fromkeys(_SIGNALS, StoppedWhileLoading)
        )

    def note(self, number: int, frame: FrameType | None) -> None:
        """Signal handler."""
        self.count += 1
        self._arrived.put(None)
        if self._loading is not None:
            self._loading.receive(number, frame)

    def end_loading(self) -> None:
        """From now on signals are only noted."""
        raiser, self._loading = self._loading, None
        if raiser is not None:
            raiser.forget()

    def wait(self, timeout_s: float) -> bool:
        """Wait for a signal that was not waited for yet; say whether there was one in time."""
        try:
            self._arrived.get(timeout=timeout_s)
        except queue.Empty:
            return False
        return True


@contextmanager
def _signals() -> Iterator[_StopRequests]:
    """Take the signals over, where this is the main thread; give them back afterwards."""
    stop = _StopRequests()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop.note) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait_and_drain(
    gateway: Gateway,
    engine: Engine,
    stop: _StopRequests,
    log: RequestLog | None,
    plan: ServePlan,
) -> ServeEnd:
    settings = plan.settings
    next_stats = time.monotonic() + settings.stats_interval_s
    while not stop.wait(POLL_S):
        if gateway.life.state is ServerState.FAILED and settings.exits_on_failure:
            return ServeEnd.FAILED
        if log is not None and time.monotonic() >= next_stats:
            next_stats = time.monotonic() + settings.stats_interval_s
            log.note_throughput(engine.status())
    if gateway.life.state is ServerState.FAILED:
        return ServeEnd.FAILED
    return _drain(gateway, engine, stop, plan)


def _drain(gateway: Gateway, engine: Engine, stop: _StopRequests, plan: ServePlan) -> ServeEnd:
    gateway.life.move(ServerMove.DRAIN)
    status = engine.status()
    grace_s = plan.settings.shutdown_grace_s
    plan.announce(f"draining: {status.active} active, at most {number_text(grace_s)} s")
    engine.drain(grace_s)
    is_hurried = False
    while engine.status().state not in (EngineState.STOPPED, EngineState.FAILED):
        if stop.count > 1 and not is_hurried:
            is_hurried = True
            plan.announce("second signal: cancelling")
            engine.drain(0.0)
        time.sleep(POLL_S / 10)
    if gateway.life.state is ServerState.FAILED:
        return ServeEnd.FAILED
    gateway.life.move(ServerMove.STOP)
    return ServeEnd.DRAINED
