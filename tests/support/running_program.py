"""A Program on the host device for the length of a ``with`` block."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ninfer.config import EngineConfig
from ninfer.host.device import HostDevice, HostStream
from tests.support.model_cases import open_case
from tests.support.program_driver import ProgramDriver


class _WatchedDevice(HostDevice):
    """Remembers its streams, so that a test can break one."""

    def __init__(self) -> None:
        super().__init__(num_threads=1)
        self.made: list[HostStream] = []

    def stream(self) -> HostStream:
        stream = super().stream()
        self.made.append(stream)
        return stream


@contextmanager
def running_program(
    case: str, *, weights_id: str = "bf16", **options: Any
) -> Iterator[ProgramDriver]:
    """Build the Program of a golden model; ``options`` are those of `EngineConfig`."""
    config = EngineConfig(**{"kv_headroom_bytes": 0} | options)
    with (
        open_case(case, weights_id) as model,
        _WatchedDevice() as device,
        model.build(config, device) as program,
    ):
        yield ProgramDriver(program, device.made)
