"""A disk that is nearly full, for this process alone."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def room_for(nbytes: int) -> Iterator[None]:
    """No file may grow longer, as on a disk that is nearly full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
