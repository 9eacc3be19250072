"""What every op is called with, and the one deliberate lazy import.

An op is a contract in this package and an implementation of the same name in the kernel table of
the device's kind. A table is a package whose modules are the op families; only the table of the
device that is really used is imported, so that a machine without CUDA never loads the CUDA side.
"""

from dataclasses import dataclass
from types import ModuleType

from ninfer.device import Device, Stream
from ninfer.errors import DeviceUnavailable


@dataclass(frozen=True, slots=True)
class OpContext:
    """Where an op runs.

    Attributes:
        device: owner of every operand.
        stream: order of the enqueued work.
        kernels: package whose modules implement the families for this kind of device.
    """

    device: Device
    stream: Stream
    kernels: ModuleType


def make_context(device: Device, stream: Stream) -> OpContext:
    """Bind a device and a stream to the kernel table of the device's kind.

    Raises:
        DeviceUnavailable: there is no table for this kind of device.
    """
    table: ModuleType
    match device.kind:
        case "host":
            import ninfer.kernels.host as host_kernels  # the deliberate lazy import

            table = host_kernels
        case "cuda":
            import ninfer.kernels.cuda as cuda_kernels

            table = cuda_kernels
        case kind:
            raise DeviceUnavailable(f"no kernels for a device of kind {kind!r}")
    return OpContext(device, stream, table)
