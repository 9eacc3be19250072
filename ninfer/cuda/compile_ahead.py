"""Bring kernels into the user's cache by a process of its own, which uses all processors.

    this process   names of kernels ->   ninfer.compilation   -> done, in all   this process

Several processes compile together by forking (`workers`), which one that has threads and a device
must not do. So a fresh one is asked, by names: it knows what a registered model declares. What it
does not bring, because it could not start or knows no such kernel, is compiled later, one by one.
Knows no kernel.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

Progress = Callable[[int, int], None]
"""Told (kernels done, kernels in all)."""

_PROGRAM: Final = "ninfer.compilation"
_REPORT: Final = re.compile(r"(\d+) (\d+)\n")


def compile_ahead(
    model_id: str, names: Sequence[str], target: str, progress: Progress | None = None
) -> None:
    """Compile kernels that a registered model declares; returns when that has ended.

    Args:
        model_id: identity of the model.
        names: of kernels.
        target: what they are compiled for.
        progress: told after each kernel.
    """
    wanted = json.dumps({"model": model_id, "target": target, "kernels": list(names)})
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", _PROGRAM],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(_import_path())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # so that it ends with its workers, and by us alone
        )
    except OSError:
        return
    with process:
        try:
            with suppress(BrokenPipeError):  # it could not start
                process.stdin.write(wanted)  # type: ignore[union-attr]
                process.stdin.close()  # type: ignore[union-attr]
            for line in process.stdout or ():
                report = _REPORT.fullmatch(line)
                if report is not None and progress is not None:
                    progress(int(report[1]), int(report[2]))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _import_path() -> list[str]:
    """Where this very package lies, first: the cache knows kernels by their source."""
    own = str(Path(__file__).resolve().parents[2])
    return [own, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
