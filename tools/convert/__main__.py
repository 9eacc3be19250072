"""``python -m tools.convert SRC DST``: the converter without the rest of the command line."""

import argparse
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Final, NoReturn

from ninfer.convert.command import add_arguments, run

INTERRUPTED: Final = 130
TERMINATED: Final = 143


def main(argv: Sequence[str]) -> int:
    """Convert a checkpoint.

    Args:
        argv: arguments without the program's name.

    Returns:
        0 done, 1 input or output failed, 2 wrong usage, 3 the checkpoint cannot be converted.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tools.convert",
        description="Convert a safetensors checkpoint to a .ninfer artifact.",
        epilog="example: python -m tools.convert Qwen3.5-0.8B qwen3.5-0.8b.ninfer",
        allow_abbrev=False,
    )
    add_arguments(parser)
    parser.add_argument("--no-progress", action="store_true", help="do not show progress")
    try:
        namespace = parser.parse_args(argv)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    try:
        return run(namespace)
    except KeyboardInterrupt:
        return INTERRUPTED


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    # Raising lets the writer remove its unfinished file.
    raise SystemExit(TERMINATED)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminate)
    sys.exit(main(sys.argv[1:]))
