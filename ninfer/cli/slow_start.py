"""A start that takes its time, and a line that says why. Knows nothing of what is started."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ninfer.cli.collection import collection_paused
from ninfer.cli.console import Console

PATIENCE_S: Final = 3.0
SLOW_START: Final = "still starting: the first start on a machine compiles kernels, once"


@contextmanager
def starting(console: Console) -> Iterator[None]:
    """Start something that lives as long as the process, and say so when it takes long."""
    patience = threading.Timer(PATIENCE_S, console.note, [SLOW_START])
    patience.daemon = True
    patience.start()
    try:
        with collection_paused():
            yield
    finally:
        patience.cancel()
