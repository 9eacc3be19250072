"""``python -m tools.convert SRC DST``: the converter without the rest of the command line.

Imports nothing of it at module level, so that a signal that arrives while it is being imported
ends the process like one that arrives later.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from ninfer.termination import EndingSignals, ending_signal, exit_code_of_signal


def main(argv: Sequence[str]) -> int:
    """Convert a checkpoint.

    Args:
        argv: arguments without the program's name.

    Returns:
        0 done, 1 input or output failed, 2 wrong usage, 3 the checkpoint cannot be converted.
    """
    from ninfer.convert.command import add_arguments, run  # see the module's docstring

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
    return run(namespace)


def entry() -> NoReturn:
    """Run the converter, then leave with the exit code."""
    try:
        with EndingSignals():
            code = main(sys.argv[1:])
    except BaseException as error:
        number = ending_signal(error)
        if number is None:
            raise
        code = exit_code_of_signal(number)
    sys.exit(code)


if __name__ == "__main__":
    entry()
