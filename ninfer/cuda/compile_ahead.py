"""Bring kernels into the user's cache by a process of its own, which uses all processors.

    this process   names of kernels ->   ninfer.compilation   -> done, in all   this process

Several processes compile together by forking (`workers`), which one that has threads and a device
must not do. So another one is asked (`module_process`), by names: it knows what a registered model
declares. What it does not bring, because it could not start or knows no such kernel, is compiled
later, one by one. Knows no kernel.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Final

from ninfer.module_process import module_process

Progress = Callable[[int, int], None]
"""Told (kernels done, kernels in all)."""

_PROGRAM: Final = "ninfer.compilation"
_REPORT: Final = re.compile(rb"(\d+) (\d+)\n")


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
    with module_process(_PROGRAM, wanted.encode()) as lines:
        for line in lines:
            report = _REPORT.fullmatch(line)
            if report is not None and progress is not None:
                progress(int(report[1]), int(report[2]))
