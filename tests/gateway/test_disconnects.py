"""Acceptance point 5: whoever leaves, and however, capacity comes back; nothing else grows."""

import contextlib
import gc
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.gateway_clients import expect_within, read_until, reset, send_chat, wait_until
from tests.support.gateway_server import RunningServer, running_server
from tests.support.scripted_engine import ScriptedEngine

UNIT_S = 0.004
STALL_S = 0.3
ALLOWED_S = UNIT_S + 1.0
SMALL_BUFFER = 8192
PARAMETERS = {"type": "object", "properties": {"body": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "write", "parameters": PARAMETERS}}
CALL = "</think>\n\n<tool_call>\n<function=write>\n<parameter=body>\n" + "abc " * 4000
TEXT = "</think>\n\n" + "word " * 4000

PHASES = ("queued", "prefill", "decode", "tool_region", "blocking")
LEAVINGS = ("close", "reset", "stop_reading")
ROUNDS_FOR_A_THOUSAND = 67


def script(prompt: str) -> str:
    return CALL if "write" in prompt else TEXT


def pace(call: str) -> None:
    if call in ("prefill", "decode"):
        time.sleep(UNIT_S)


@contextlib.contextmanager
def slow_server() -> Iterator[RunningServer]:
    engine = ScriptedEngine(script, max_concurrency=2, max_pending=2, chunk=8, pace=pace)
    with engine, running_server(engine, stall_client_s=STALL_S) as server:
        server.server._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER)
        yield server


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with slow_server() as running:
        yield running


class Visit:
    """One client that sends a request, gets somewhere, and leaves."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self.others: list[socket.socket] = []
        self.connection = self._connect()

    def _connect(self) -> socket.socket:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        connection.settimeout(120)
        connection.connect(("127.0.0.1", self.server.server.port))
        return connection

    def enter(self, phase: str) -> None:
        """Send a request and wait until it is in its phase."""
        enter: dict[str, Callable[[], None]] = {
            "queued": self._queue,
            "prefill": self._prefill,
            "decode": self._decode,
            "tool_region": self._tool_region,
            "blocking": self._block,
        }
        enter[phase]()

    def leave(self, how: str) -> None:
        """Leave; the blockers of a queued visit leave too."""
        if how == "close":
            self.connection.close()
        elif how == "reset":
            reset(self.connection)
        for other in self.others:
            other.close()

    def end(self) -> None:
        """Close what is still open."""
        for connection in (self.connection, *self.others):
            connection.close()

    def _queue(self) -> None:
        for _ in range(2):
            other = self._connect()
            send_chat(other, stream=True, max_tokens=2000)
            read_until(other, b"role")
            self.others.append(other)
        send_chat(self.connection, stream=True, max_tokens=400)
        wait_until(lambda: self.server.engine.status().waiting == 1, what="queued")

    def _prefill(self) -> None:
        text = "a long prompt " * 100
        content = [{"role": "user", "content": text}]
        send_chat(self.connection, messages=content, stream=True, max_tokens=400)
        wait_until(lambda: self.server.engine.status().prefilling == 1, what="prefill")

    def _decode(self) -> None:
        send_chat(self.connection, stream=True, max_tokens=2000)
        read_until(self.connection, b'"delta":{"content"')

    def _tool_region(self) -> None:
        send_chat(self.connection, stream=True, max_tokens=2000, tools=[TOOL])
        read_until(self.connection, b'"arguments"')

    def _block(self) -> None:
        before = self.server.engine.status().counters.decode_tokens
        send_chat(self.connection, max_tokens=300)
        wait_until(
            lambda: self.server.engine.status().counters.decode_tokens > before, what="blocking"
        )


@contextlib.contextmanager
def visiting(server: RunningServer) -> Iterator[Visit]:
    visit = Visit(server)
    try:
        yield visit
    finally:
        visit.end()


def is_empty(server: RunningServer) -> bool:
    status = server.engine.status()
    idle = (status.active, status.waiting, status.outstanding) == (0, 0, 0)
    return idle and server.gateway.slots.in_use == 0


def natural_s(phase: str) -> float:
    """Ample time for a request whose client neither reads nor leaves: it may run to its end."""
    return 30.0 if phase in ("decode", "tool_region") else 120.0


@pytest.mark.parametrize(("phase", "how"), list(itertools.product(PHASES, LEAVINGS)))
def test_capacity_comes_back(server: RunningServer, phase: str, how: str) -> None:
    def leave_and_wait() -> float:
        with visiting(server) as visit:
            visit.enter(phase)

            visit.leave(how)

            return wait_until(lambda: is_empty(server), natural_s(phase), f"{phase}, {how}")

    expect_within(natural_s(phase) if how == "stop_reading" else ALLOWED_S, leave_and_wait)


def test_connections_that_ended_leave_no_threads_and_descriptors(server: RunningServer) -> None:
    def visit_once() -> None:
        with visiting(server) as visit:
            visit.enter("decode")
            visit.leave("reset")
            wait_until(lambda: is_empty(server))

    visit_once()
    before = resources()
    for _ in range(5):
        visit_once()

    wait_until(lambda: resources() <= before, 60.0, "threads and descriptors")


def test_blocking_clients_that_leave_do_not_use_the_server_up(server: RunningServer) -> None:
    def leave_and_wait() -> float:
        for index in range(6):
            connection = server.connect()
            send_chat(connection, max_tokens=2000)
            time.sleep(0.05)
            reset(connection) if index % 2 else connection.close()
        return wait_until(lambda: is_empty(server), natural_s("blocking"), "B08")

    def first_events() -> float:
        connections = server.connect(), server.connect()
        for connection in connections:
            send_chat(connection, stream=True, max_tokens=5)
        started = time.monotonic()
        for connection in connections:
            read_until(connection, b"role")
        taken_s = time.monotonic() - started
        for connection in connections:
            connection.close()
        wait_until(lambda: is_empty(server))
        return taken_s

    expect_within(ALLOWED_S, leave_and_wait)
    expect_within(1.0, first_events)


def test_half_closed_client_counts_as_gone(server: RunningServer) -> None:
    def half_close_and_wait() -> float:
        connection = server.connect()
        send_chat(connection, max_tokens=2000)
        wait_until(lambda: server.engine.status().active == 1)

        connection.shutdown(socket.SHUT_WR)

        taken_s = wait_until(lambda: is_empty(server), natural_s("blocking"))
        connection.close()
        return taken_s

    expect_within(ALLOWED_S, half_close_and_wait)


@pytest.mark.slow
def test_a_thousand_clients_leave(server: RunningServer) -> None:
    before = None
    for _ in range(ROUNDS_FOR_A_THOUSAND):
        for phase, how in itertools.product(PHASES, LEAVINGS):
            with visiting(server) as visit:
                visit.enter(phase)
                visit.leave(how)
                allowed_s = natural_s(phase) if how == "stop_reading" else ALLOWED_S
                wait_until(lambda: is_empty(server), allowed_s, f"{phase}, {how}")
        before = before or resources()

    assert before is not None
    limit = before
    wait_until(lambda: resources() <= limit, 60.0, "threads and descriptors")


def resources() -> tuple[int, int]:
    """Threads and open descriptors."""
    gc.collect()
    return threading.active_count(), len(os.listdir("/proc/self/fd"))
