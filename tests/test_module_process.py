"""A module as a process of its own: what it hears, what it imports, and that it ends with us."""

import os
import select
import signal
import sys
from pathlib import Path

import pytest

import ninfer
from ninfer.module_process import module_process

PATIENCE_S = 30.0
MODULE = "helping_hand"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory that is on the import path, with another package of our name."""
    (tmp_path / "ninfer").mkdir()
    (tmp_path / "ninfer" / "__init__.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_module(folder: Path, body: str) -> None:
    (folder / f"{MODULE}.py").write_text(f"import subprocess, sys\n{body}")


def test_a_module_hears_what_is_wanted_and_its_lines_come(folder: Path) -> None:
    write_module(folder, "for word in sys.stdin.read().split(): print(word.upper())")

    with module_process(MODULE, b"some kernels") as lines:
        assert list(lines) == [b"SOME\n", b"KERNELS\n"]


def test_a_module_imports_this_package_and_no_other(folder: Path) -> None:
    write_module(folder, "import ninfer; print(ninfer.__file__)")

    with module_process(MODULE, b"") as lines:
        assert [line.decode().strip() for line in lines] == [ninfer.__file__]


def test_the_end_of_the_block_ends_the_process_and_its_children(folder: Path) -> None:
    write_module(
        folder,
        "child = subprocess.Popen(['sleep', '1000'])\nprint(child.pid, flush=True)\nchild.wait()",
    )

    with module_process(MODULE, b"") as lines:
        child = os.pidfd_open(int(next(iter(lines))))
        assert select.select([child], [], [], 0)[0] == []

    assert select.select([child], [], [], PATIENCE_S)[0] == [child]
    os.close(child)


@pytest.mark.parametrize("wanted", [b"", bytes(1 << 20)])
def test_a_module_that_there_is_not_says_nothing(wanted: bytes) -> None:
    with module_process("ninfer.no_such_module", wanted) as lines:
        assert list(lines) == []


def test_a_module_that_is_killed_has_said_what_it_said(folder: Path) -> None:
    write_module(folder, f"print(1, flush=True)\nimport os; os.kill(os.getpid(), {signal.SIGKILL})")

    with module_process(MODULE, b"") as lines:
        assert list(lines) == [b"1\n"]


def test_no_interpreter_is_no_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))

    with module_process(MODULE, b"work") as lines:
        assert list(lines) == []
