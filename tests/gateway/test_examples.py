"""The examples of the documentation run against a server."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gateway_server import RunningServer, running_server
from tests.support.scripted_engine import ScriptedEngine

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CALL = (
    "</think>\n\n<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n"
    "</function>\n</tool_call>"
)


def script(prompt: str) -> str:
    return CALL if "Oslo" in prompt else "short waves\n</think>\n\nIt scatters."


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with ScriptedEngine(script) as engine, running_server(engine) as running:
        yield running


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_openai_example(server: RunningServer) -> None:
    output = run(sys.executable, str(EXAMPLES / "chat_openai.py"), server.url)

    assert output == 'It scatters.\ncalls weather({"city":"Oslo"})\nfinish reason: tool_calls\n'


def test_anthropic_example(server: RunningServer) -> None:
    output = run(sys.executable, str(EXAMPLES / "chat_anthropic.py"), server.url)

    lines = output.splitlines()
    assert lines[1:] == ["It scatters.", "stop reason: end_turn"]
    assert int(lines[0].split()[0]) > 5


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_example(server: RunningServer) -> None:
    output = run("sh", str(EXAMPLES / "chat.sh"), server.url)

    assert '"finish_reason":"stop"' in output
    assert output.endswith("data: [DONE]\n\n")
