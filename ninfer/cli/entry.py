"""How a process of ours starts and ends: signals, standard streams, the exit code.

Imports nothing of the program at module level, so that a signal that arrives while it is being
imported ends the process like one that arrives later.
"""

import io
import os
import sys
from pathlib import Path
from typing import NoReturn, TextIO

from ninfer.cli.collection import collection_paused
from ninfer.termination import EndingSignals, ending_signal, exit_code_of_signal


def entry() -> NoReturn:
    """Console script: run the command line, then leave with the exit code."""
    try:
        with EndingSignals():
            _open_missing_streams()
            code = _run()
    except SystemExit as ended:  # help, version or a wrong option
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException as error:
        number = ending_signal(error)
        if number is None:
            raise
        code = exit_code_of_signal(number)
    sys.exit(_flushed(code))


def _flushed(code: int) -> int:
    """Write what is left; the interpreter would complain about what cannot be written.

    Returns:
        The exit code: a failure where an answer could not be written.
    """
    try:
        sys.stdout.flush()
    except (BrokenPipeError, ValueError):  # the reader has left, and knows it
        _discard(sys.stdout)
    except OSError as error:
        _discard(sys.stdout)
        if code == 0:  # else the command has said why it failed
            code = 1
            sys.stderr.write(f"error: {error.strerror}\n")
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        # A full log keeps what it could not take; that is no reason to end in failure.
        _discard(sys.stderr)
    return code


def _discard(stream: TextIO) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run() -> int:
    with collection_paused():
        from ninfer.cli.main import main  # see the module's docstring
    return int(main(sys.argv[1:]))


def _open_missing_streams() -> None:
    """Stand in for closed standard streams, and write UTF-8 whatever the locale says.

    Input keeps the bytes that are no text, for a message about them. An output that was closed
    takes nothing, like a full one: an answer written there is lost, and the caller has to know.
    A log that was closed is not wanted.
    """
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115 - for good
    if sys.stdout is None:
        sys.stdout = open(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - for good
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
