"""Garbage collection during a start: what a start makes lives as long as the process.

The collector would look at all of it again and again while it comes into being, a tenth of the
start, and at every full collection ever after. Knows nothing of what is started.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Collect nothing meanwhile, and never look at what is there afterwards."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
