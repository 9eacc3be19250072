"""Faults on purpose, each in a process of its own: the designed failure and a clean end.

The same harness runs on the host device, so that it is known to work where there is no card.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 120
FAULTS = [
    ("bad-launch", "host"),
    pytest.param("bad-launch", "0", marks=pytest.mark.gpu),
    pytest.param("poisoned", "0", marks=pytest.mark.gpu),
]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.support.device_faults", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


@pytest.mark.parametrize(("kind", "device"), FAULTS)
def test_every_client_gets_an_error_and_the_engine_closes(kind: str, device: str) -> None:
    ended = run(kind, device)

    assert ended.returncode == 0, ended.stderr
    codes = json.loads(ended.stdout)
    # Two active requests and a waiting one; a later one is refused at once.
    assert codes == ["engine_failed"] * 4 + ["FAILED"]


@pytest.mark.parametrize(("kind", "device"), FAULTS)
def test_a_command_whose_device_fails_ends_with_1_and_says_why(kind: str, device: str) -> None:
    ended = run(kind, device, "--command")

    assert ended.returncode == 1, ended.stderr
    assert "the device failed" in ended.stderr or "a kernel failed" in ended.stderr


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("kind", ["full-start", "full-stream"])
def test_a_start_without_memory_ends_with_4_and_names_the_missing_bytes(kind: str) -> None:
    ended = run(kind, "0", "--command")

    assert ended.returncode == 4, ended.stderr
    assert "missing" in ended.stderr or "more than are free" in ended.stderr
    assert "Traceback" not in ended.stderr
