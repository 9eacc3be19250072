"""How the process starts and ends, seen from outside."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tiny_model import artifact_path

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def model() -> Path:
    return artifact_path("tiny-dense", "bf16")


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """Let children hear SIGINT also where the tests run in the background of a shell."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a user does: Python's own output is buffered."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=inherited | {"PYTHON": sys.executable} | environment,
        timeout=300,
        check=False,
    )


def test_closed_pipe_ends_quietly(model: Path) -> None:
    command = f"$PYTHON -m ninfer inspect {model} --tensors"

    done = shell(f"{command} | head -c 1; echo ${{PIPESTATUS[0]}}")

    assert done.stdout.endswith("0\n")
    assert done.stderr == ""


def test_closed_log_or_input_is_no_accident(model: Path) -> None:
    assert shell(f"$PYTHON -m ninfer inspect {model} 2>&-").returncode == 0
    assert shell(f"$PYTHON -m ninfer chat {model} <&-").returncode == 0


@pytest.mark.parametrize("arguments", ["inspect {model}", "--version", "inspect --help"])
def test_answer_to_a_closed_output_is_a_failure_that_says_why(model: Path, arguments: str) -> None:
    done = shell(f"$PYTHON -m ninfer {arguments.format(model=model)} >&-")

    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.endswith("Bad file descriptor\n")


def test_closed_output_that_nothing_is_written_to_is_no_failure(model: Path) -> None:
    assert shell(f"$PYTHON -m ninfer chat {model} </dev/null >&-").returncode == 0


def test_full_log_does_not_cost_the_answer(model: Path) -> None:
    command = f'$PYTHON -m ninfer generate {model} --greedy --prompt "Name three metals."'

    done = shell(f"{command} 2>/dev/full")

    assert (done.returncode, done.stdout) == (0, "Brass, iron, silver.")


@pytest.mark.parametrize(
    ("arguments", "unbuffered"),
    [("inspect {model}", ""), ("inspect {model}", "1"), ("--version", ""), ("inspect --help", "")],
)
def test_full_output_is_a_failure_that_says_why(
    model: Path, arguments: str, unbuffered: str
) -> None:
    command = f"$PYTHON -m ninfer {arguments.format(model=model)} >/dev/full"

    done = shell(command, PYTHONUNBUFFERED=unbuffered)

    assert (done.returncode, done.stderr) == (1, "error: No space left on device\n")


def test_output_is_utf8_whatever_the_locale_says(model: Path) -> None:
    done = shell(
        f"$PYTHON -m ninfer tokenize {model} --format json --text 'Köln'", PYTHONIOENCODING="ascii"
    )

    assert "Köln" in done.stdout


def test_line_of_standard_input_that_is_no_text_ends_no_talk(model: Path) -> None:
    lines = r"'caf\xe9\nName three metals.\n'"

    done = shell(f"printf {lines} | $PYTHON -m ninfer chat {model} --greedy")

    assert (done.returncode, done.stdout) == (0, "Brass, iron, silver.\n")
    assert "error: not UTF-8: byte 0xE9 at offset 3\n" in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_ends_with_its_code_and_without_a_traceback(
    model: Path, number: signal.Signals, code: int
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "ninfer", "chat", str(model)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stderr is not None
    while "is ready" not in process.stderr.readline():
        assert process.poll() is None

    process.send_signal(number)
    _, err = process.communicate(timeout=300)

    assert process.returncode == code
    assert "Traceback" not in err


@pytest.mark.parametrize(("raised", "code"), [("KeyboardInterrupt", 130), ("Terminated", 143)])
def test_signal_inside_a_finaliser_is_not_lost(raised: str, code: int) -> None:
    program = f"""
import time
from ninfer.cli import main as cli
from ninfer.cli.entry import entry
from ninfer.termination import Terminated

class Last:
    def __del__(self):
        raise {raised}

def run(arguments):
    last = Last()
    del last
    time.sleep(20)

cli.main = run
entry()
"""

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=300
    )

    assert (done.returncode, done.stderr) == (code, "")


def test_second_sigterm_does_not_break_the_closing_off() -> None:
    program = """
import os, signal, time
from ninfer.cli import main as cli
from ninfer.cli.entry import entry

def run(arguments):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(20)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)
        print("closed")

cli.main = run
entry()
"""

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=300
    )

    assert (done.returncode, done.stdout) == (143, "closed\n")
