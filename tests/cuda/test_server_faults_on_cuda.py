"""A real server whose device fails: every client is told, health says so, the process ends as told.

The same harness runs on the host device, so that it is known to work where there is no card.
"""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("flask", reason="a server needs it")

from tests.support.faulty_server import NUM_CLIENTS
from tests.support.gateway_clients import PATIENCE_S
from tests.support.gateway_server import RemoteServer, Reply
from tests.support.tiny_model import artifact_path

ROOT = Path(__file__).resolve().parents[2]
LISTENING = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")
FAULTS = [
    ("bad-launch", "host"),
    pytest.param("bad-launch", "0", marks=pytest.mark.gpu),
    pytest.param("poisoned", "0", marks=pytest.mark.gpu),
]


@contextmanager
def faulty_server(
    kind: str, device: str, *options: str
) -> Iterator[tuple[RemoteServer, subprocess.Popen[str]]]:
    """A server with two lanes that is ready; its process is gone afterwards."""
    model = str(artifact_path("tiny-dense", "bf16"))
    command = [sys.executable, "-m", "tests.support.faulty_server", kind, device, model]
    lanes = ["--max-concurrency", "2", "--max-context", "512", *options]
    with subprocess.Popen(
        [*command, *lanes], cwd=ROOT, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            port = None
            for line in process.stderr:
                port = port or LISTENING.search(line)
                if "ready: " in line:
                    break
            assert port is not None, "the server did not start"
            yield RemoteServer(int(port[1])), process
        finally:
            process.kill()


def ask_all(server: RemoteServer) -> list[Reply]:
    """Two streaming clients and a blocking one, of whom one has to wait for a lane."""
    with ThreadPoolExecutor(NUM_CLIENTS) as clients:
        asked = [
            clients.submit(
                lambda is_stream: server.chat(max_tokens=300, ignore_eos=True, stream=is_stream),
                is_stream,
            )
            for is_stream in (True, True, False)
        ]
        return [one.result() for one in asked]


def has_begun(reply: Reply) -> bool:
    """Whether the reply is a stream: its request had a lane when the device failed."""
    return reply.headers["content-type"].startswith("text/event-stream")


def told(reply: Reply) -> str:
    """Code of the error: the last event of a stream, or the whole reply."""
    code: str = reply.events[-2]["error"]["code"] if has_begun(reply) else reply.code
    return code


@pytest.mark.parametrize(("kind", "device"), FAULTS)
def test_every_client_is_told_and_the_process_ends_with_1(kind: str, device: str) -> None:
    with faulty_server(kind, device) as (server, process):
        replies = ask_all(server)
        code = process.wait(PATIENCE_S)
        assert process.stderr is not None
        written = process.stderr.read()

    assert [told(reply) for reply in replies] == ["engine_failed"] * NUM_CLIENTS
    assert [reply.status for reply in replies if not has_begun(reply)] in ([500], [500, 500])
    assert [reply.events[-1] for reply in replies if has_begun(reply)][:1] == ["[DONE]"]
    assert code == 1
    assert "the device failed" in written or "a kernel failed" in written


@pytest.mark.parametrize(("kind", "device"), FAULTS)
def test_a_server_that_stays_is_unready_until_a_signal_ends_it(kind: str, device: str) -> None:
    with faulty_server(kind, device, "--no-exit-on-failure") as (server, process):
        ask_all(server)
        ready, live, later = (
            server.get("/health/ready"),
            server.get("/health/live"),
            server.chat(),
        )
        process.send_signal(signal.SIGTERM)
        code = process.wait(PATIENCE_S)

    assert (ready.status, ready.json["reason"]) == (503, "failed")
    assert live.status == 503
    assert (later.status, later.code) == (503, "engine_failed")
    assert code == 1
