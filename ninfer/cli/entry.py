"""How a process of ours starts and ends: signals, standard streams, the exit code.

Imports nothing of the program at module level, so that a signal that arrives while it is being
imported ends the process like one that arrives later.
"""

import io
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import NoReturn

from ninfer.cli.collection import collection_paused
from ninfer.cli.termination import Terminated

AGAIN_S = 0.02
"""Seconds until the finaliser that a signal fell into has returned."""
INTERRUPTED = 130
TERMINATED = 143


def entry() -> NoReturn:
    """Console script: run the command line, then leave with the exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    sys.unraisablehook = _raise_again
    _open_missing_streams()
    try:
        code = _run()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Terminated:
        code = TERMINATED
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


def _raise_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Send a signal again that arrived inside a finaliser, where Python drops what is raised."""
    match unraisable.exc_value:
        case KeyboardInterrupt():
            number = signal.SIGINT
        case Terminated():
            number = signal.SIGTERM
            signal.signal(number, _terminate)
        case _:
            sys.__unraisablehook__(unraisable)
            return
    arguments = (threading.main_thread().ident, number)
    threading.Timer(AGAIN_S, signal.pthread_kill, arguments).start()


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not break the closing off
    raise Terminated
