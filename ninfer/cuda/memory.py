"""Device and pinned arenas: one driver allocation each.

Knows no device properties and no streams; whoever closes an arena makes sure that nothing still
runs on it.
"""

from ninfer.arena import AllocatedArena, Release
from ninfer.cuda import driver
from ninfer.errors import InvariantError


def device_arena(name: str, nbytes: int, release: Release) -> AllocatedArena:
    """Allocate device memory in the current context.

    Raises:
        OutOfDeviceMemory: the device cannot give that many bytes.
    """
    return AllocatedArena(name, nbytes, driver.allocate(_asked(name, nbytes)), release)


def pinned_arena(name: str, nbytes: int, release: Release) -> AllocatedArena:
    """Allocate page-locked host memory in the current context.

    Raises:
        OutOfDeviceMemory: the machine cannot give that many bytes.
    """
    return AllocatedArena(name, nbytes, driver.allocate_pinned(_asked(name, nbytes)), release)


def _asked(name: str, nbytes: int) -> int:
    if nbytes < 0:
        raise InvariantError(f"arena {name!r}: {nbytes} bytes")
    return max(nbytes, 1)  # the driver refuses an empty allocation
