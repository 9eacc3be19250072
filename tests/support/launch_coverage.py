"""Which declared kernels a run of the GPU tests has launched: a plugin, and a command.

    pytest -p tests.support.launch_coverage --launched FOLDER -m gpu ...
    python -m tests.support.launch_coverage FOLDER

Each process of a run writes the names of what it launched into a file of its own. The command reads
them all and fails where a kernel that a registered model declares is in none of them: a kernel that
is shipped has met an oracle on a card, or nobody knows what it computes.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

_LAUNCHED: set[str] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--launched", type=Path, help="folder for the names of launched kernels")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--launched") is None:
        return
    from ninfer.cuda.stream import CudaStream

    launch = CudaStream.launch

    def noted(stream: CudaStream, kernel: Any, grid: Any, *args: Any, **options: Any) -> None:
        launch(stream, kernel, grid, *args, **options)
        if 0 not in grid and not stream.is_rehearsing:
            _LAUNCHED.add(kernel.name)

    CudaStream.launch = noted  # type: ignore[method-assign, assignment]


def pytest_unconfigure(config: pytest.Config) -> None:
    folder: Path | None = config.getoption("--launched")
    if folder is not None and _LAUNCHED:
        folder.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{name}\n" for name in sorted(_LAUNCHED))
        (folder / f"{os.getpid()}.txt").write_text(text, encoding="utf-8")


def launched(folder: Path) -> set[str]:
    """Names in all files of a folder."""
    files = folder.glob("*.txt")
    return {name for file in files for name in file.read_text(encoding="utf-8").split()}


def main(arguments: Sequence[str]) -> int:
    """Print what was never launched; 1 when there is something."""
    from ninfer.compilation import declared_kernels

    declared = {kernel.name for kernel in declared_kernels()}
    missing = sorted(declared - launched(Path(arguments[0])))
    sys.stdout.write(f"{len(declared) - len(missing)} of {len(declared)} kernels were launched\n")
    sys.stdout.writelines(f"  never: {name}\n" for name in missing)
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
