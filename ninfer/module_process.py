"""A module of this very package as a program, in a process of its own that lends a hand.

    this process   what is wanted ->   python -m MODULE   -> lines about it   this process

A compiler holds a lock of its process, and one that has threads and a device must not fork: so a
fresh interpreter is asked. It is no failure when there is none or when it dies: whoever asks does
what is left. Knows nothing of what is wanted.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def module_process(module: str, wanted: bytes) -> Iterator[Iterable[bytes]]:
    """Run a module while the block does; it is killed at the block's end, its children as well.

    Args:
        module: dotted name; it reads all of its standard input before it writes.
        wanted: its standard input.

    Yields:
        Lines of its standard output as they come, until it ends.
    """
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(_import_path())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # so that it ends with its children, and by us alone
        )
    except OSError:
        yield ()
        return
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with suppress(BrokenPipeError), process.stdin as words:  # it may have died at once
                words.write(wanted)
            yield process.stdout
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _import_path() -> list[str]:
    """Where this very package lies, first: caches know kernels by their source."""
    own = str(Path(__file__).resolve().parents[1])
    return [own, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
