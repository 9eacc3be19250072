"""The chat page as the real gateway serves it, with the tiny model behind it."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from ninfer.runtime import Engine
from tests.support.gateway_server import RunningServer, running_server, tiny_engine
from tests.support.scripted_engine import ScriptedEngine, says
from tests.support.tiny_model import artifact_path
from tests.web.browser import Page
from tests.web.exchange import DONE, WIDTHS, ask

pytestmark = pytest.mark.browser

READY = "document.getElementById('model').dataset.state === 'ready'"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with tiny_engine() as running:
        yield running


@pytest.fixture
def served(engine: Engine) -> Iterator[RunningServer]:
    with running_server(engine, default_max_tokens=24) as running:
        yield running


@WIDTHS
def test_real_server_answers_the_page(
    tab: Page, served: RunningServer, width: int, height: int
) -> None:
    tab.open(f"{served.url}/", width=width, height=height)
    tab.wait_for(READY)
    ask(tab, "Hello")
    tab.wait_for(DONE.format(1))
    ask(tab, "And again")
    tab.wait_for(DONE.format(2))

    assert tab.count(".error") == 0
    assert re.search(r"\d+ prompt \(\d+ cached\)\s+\d+ generated", tab.text(".figures"))
    assert re.search(r"[\d.]+ tokens/s", tab.text(".figures"))
    assert [url for url in tab.requested_urls if not url.startswith(served.url)] == []
    assert tab.problems == []


def test_stop_frees_the_place_of_the_request(tab: Page) -> None:
    """Twice as many requests as there are places, each stopped: the last one still starts."""
    never = threading.Event()

    def pace(call: str) -> None:
        never.wait(0.005)

    script = says("so\n</think>\n\n" + "word " * 3000)
    with (
        ScriptedEngine(script, max_concurrency=1, max_pending=1, pace=pace) as slow,
        running_server(slow) as served,
    ):
        tab.open(f"{served.url}/")
        tab.wait_for(READY)
        for number in range(1, 5):
            ask(tab, "Hello")
            tab.wait_for(
                f"document.querySelectorAll('.answer > .prose')[{number - 1}]?.textContent"
            )
            tab.click("#stop")
            tab.wait_for(DONE.format(number))

    assert tab.count(".error") == 0
    assert tab.count(".note") == 4


def test_refusal_of_the_real_server_is_shown(tab: Page, served: RunningServer) -> None:
    tab.open(f"{served.url}/")
    tab.wait_for(READY)
    ask(tab, "word " * 3000)
    tab.wait_for("document.querySelector('.error')")

    assert "status 400 · context_length_exceeded" in tab.text(".error")


def test_real_server_with_a_key_takes_it_from_the_settings(tab: Page, engine: Engine) -> None:
    with running_server(engine, api_keys=(b"open sesame",), default_max_tokens=2) as served:
        tab.open(f"{served.url}/")
        tab.wait_for("document.getElementById('model').textContent === 'API key needed'")
        tab.click("#open-settings")
        tab.run("document.getElementById('settings-form').elements.namedItem('api_key').focus()")
        tab.type("open sesame")
        tab.press("Enter")
        tab.wait_for(READY)
        ask(tab, "Hello")
        tab.wait_for(DONE.format(1))

    assert tab.count(".error") == 0


@pytest.mark.slow
def test_serve_command_serves_the_page(tab: Page) -> None:
    command = [sys.executable, "-m", "ninfer", "serve", str(artifact_path("tiny-dense", "bf16"))]
    command += ["--port", "0", "--device", "host", "--max-context", "512"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stderr is not None
            found = (re.search(r"http://[\d.]+:\d+", line) for line in process.stderr)
            url = next(match[0] for match in found if match)
            tab.open(f"{url}/")
            tab.wait_for(READY, timeout_s=25)
            ask(tab, "Hello")
            tab.wait_for(DONE.format(1))
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=300)
        finally:
            process.kill()

    assert process.returncode == 0
    assert tab.count(".error") == 0
    # While it was loading, the server said so.
    assert [problem for problem in tab.problems if "status of 503" not in problem] == []
