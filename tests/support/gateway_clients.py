"""Clients that misbehave, and waiting for what a server does about it."""

import json
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 120.0


def send_chat(
    connection: socket.socket, *, path: str = "/v1/chat/completions", **members: object
) -> None:
    """Send one chat completion over a bare connection and read nothing."""
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], **members}
    send_post(connection, path, json.dumps(body).encode())


def send_post(connection: socket.socket, path: str, body: bytes) -> None:
    """Send one POST over a bare connection and read nothing."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    connection.sendall(head.encode() + body)


def reset(connection: socket.socket) -> None:
    """Close a connection the hard way."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def read_until(connection: socket.socket, text: bytes) -> bytes:
    """Read until ``text`` has arrived."""
    data = b""
    while text not in data:
        piece = connection.recv(4096)
        assert piece, f"closed before {text!r}: {data[-500:]!r}"
        data += piece
    return data


def wait_until(
    condition: Callable[[], bool], timeout_s: float = PATIENCE_S, what: str = "condition"
) -> float:
    """Wait for a condition and return how long it took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < timeout_s, f"{what}: not within {timeout_s} s"
        time.sleep(0.002)
    return time.monotonic() - started


def expect_within(limit_s: float, measure: Callable[[], float], attempts: int = 6) -> None:
    """Expect that something takes no longer than a limit while the machine has time for it.

    Args:
        limit_s: the limit.
        measure: does it once and returns the seconds; called again after one that took longer,
            because a machine that is busy with other things says nothing about a server.
        attempts: how often at most.
    """
    seen: list[float] = []
    while not seen or seen[-1] > limit_s:
        assert len(seen) < attempts, f"not within {limit_s} s: {seen}"
        seen.append(measure())
