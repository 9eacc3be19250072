"""How a process of ours starts and ends: signals, standard streams, the exit code.

Imports nothing of the program at module level, so that a signal that arrives while it is being
imported ends the process like one that arrives later.
"""

import io
import os
import sys
from pathlib import Path
from typing import NoReturn

from ninfer.cli.collection import collection_paused
from ninfer.termination import EndingSignals, ending_signal, exit_code_of_signal


def entry() -> NoReturn:
    """Console script: run the command line, then leave with the exit code."""
    try:
        with EndingSignals():
            _open_missing_streams()
            code = _run()
    except BaseException as error:
        number = ending_signal(error)
        if number is None:
            raise
        code = exit_code_of_signal(number)
    try:
        sys.stdout.flush()
    except (BrokenPipeError, ValueError):
        # The reader has left; the interpreter must not complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        # A full log keeps what it could not take; that is no reason to end in failure.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    sys.exit(code)


def _run() -> int:
    with collection_paused():
        from ninfer.cli.main import main  # see the module's docstring
    return int(main(sys.argv[1:]))


def _open_missing_streams() -> None:
    """Stand in for closed standard streams, and write UTF-8 whatever the locale says.

    Input keeps the bytes that are no text, for a message about them.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stand_in = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 - for good
            setattr(sys, name, stand_in)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
