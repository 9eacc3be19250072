"""A Program for the length of a ``with`` block, on the host device unless another is given."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ninfer.arena import AllocatedArena
from ninfer.config import EngineConfig
from ninfer.errors import InvariantError
from ninfer.host.device import HostDevice, HostStream
from ninfer.tensor import DType
from tests.support.model_cases import open_case
from tests.support.program_driver import ProgramDriver


class WatchedDevice(HostDevice):
    """Remembers its streams, so that a test can break one, and its arenas."""

    def __init__(self) -> None:
        super().__init__(num_threads=1)
        self.made: list[HostStream] = []
        self.arenas: list[AllocatedArena] = []

    def stream(self) -> HostStream:
        stream = super().stream()
        self.made.append(stream)
        return stream

    def arena(self, name: str, nbytes: int) -> AllocatedArena:
        arena = super().arena(name, nbytes)
        self.arenas.append(arena)
        return arena

    def open_arenas(self) -> list[str]:
        """Names of the arenas that still own memory."""
        return [arena.name for arena in self.arenas if not _is_closed(arena)]


def _is_closed(arena: AllocatedArena) -> bool:
    try:
        arena.take((0,), DType.U8)
    except InvariantError as error:
        return "is closed" in str(error)
    return False


@contextmanager
def running_program(
    case: str,
    *,
    weights_id: str = "bf16",
    open_device: Callable[[], Any] = WatchedDevice,
    **options: Any,
) -> Iterator[ProgramDriver]:
    """Build the Program of a golden model; ``options`` are those of `EngineConfig`.

    The driver knows the streams of a `WatchedDevice`, and none of another device.
    """
    config = EngineConfig(**{"kv_headroom_bytes": 0} | options)
    with (
        open_case(case, weights_id) as model,
        open_device() as device,
        model.build(config, device) as program,
    ):
        yield ProgramDriver(program, getattr(device, "made", []))
