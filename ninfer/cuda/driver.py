"""The only file that calls the CUDA driver: one checked function for each call we make.

A failing status becomes an exception here and nowhere else. Handles are opaque to the rest of the
package. Knows nothing of arenas, streams' life cycles or kernels. Source: CUDA driver API reference
manual.
"""

import ctypes
import threading
from collections.abc import Sequence
from typing import Any, Final

from cuda.bindings import driver as cu

from ninfer.errors import DeviceUnavailable, InvariantError, OutOfDeviceMemory

Handle = Any
"""An opaque handle of the driver."""

Extent = tuple[int, int, int]

_UNAVAILABLE: Final = frozenset(
    {
        "CUDA_ERROR_NO_DEVICE",
        "CUDA_ERROR_INVALID_DEVICE",
        "CUDA_ERROR_DEVICE_UNAVAILABLE",
        "CUDA_ERROR_STUB_LIBRARY",
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        "CUDA_ERROR_SYSTEM_NOT_READY",
        "CUDA_ERROR_NOT_INITIALIZED",
    }
)

_STICKY: Final = frozenset(
    {
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "CUDA_ERROR_LAUNCH_TIMEOUT",
        "CUDA_ERROR_ASSERT",
        "CUDA_ERROR_HARDWARE_STACK_ERROR",
        "CUDA_ERROR_ILLEGAL_INSTRUCTION",
        "CUDA_ERROR_MISALIGNED_ADDRESS",
        "CUDA_ERROR_INVALID_ADDRESS_SPACE",
        "CUDA_ERROR_INVALID_PC",
        "CUDA_ERROR_LAUNCH_FAILED",
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "CUDA_ERROR_NVLINK_UNCORRECTABLE",
        "CUDA_ERROR_CONTAINED",
        "CUDA_ERROR_CONTEXT_IS_DESTROYED",
        "CUDA_ERROR_UNKNOWN",
    }
)


class CudaError(InvariantError):
    """A driver call failed for a reason that is ours.

    Attributes:
        status: the driver's name of the status.
        is_sticky: the context is lost; every later call on it fails too.
    """

    def __init__(self, status: str, call: str) -> None:
        super().__init__(f"{call}: {status}")
        self.status = status
        self.is_sticky = status in _STICKY


class _Binding(threading.local):
    """The context that is current in this thread, as far as we know."""

    context: Handle = None


_bound: Final = _Binding()


def status_error(status: str, call: str) -> CudaError | DeviceUnavailable | OutOfDeviceMemory:
    """Return the exception of a failing status."""
    if status == "CUDA_ERROR_OUT_OF_MEMORY":
        return OutOfDeviceMemory(f"{call}: the device is out of memory")
    if status in _UNAVAILABLE:
        return DeviceUnavailable(f"{call}: {status}")
    return CudaError(status, call)


def _checked(call: Any, *args: Any) -> Any:
    """Call the binding; return its single result, or None.

    Raises:
        NinferError: the status is not success.
    """
    status, *results = call(*args)
    if status != cu.CUresult.CUDA_SUCCESS:
        raise status_error(cu.CUresult(status).name, call.__name__)
    return results[0] if len(results) == 1 else (tuple(results) or None)


def initialise() -> None:
    """Load the driver.

    Raises:
        DeviceUnavailable: there is no driver, or no device it can use.
    """
    try:
        _checked(cu.cuInit, 0)
    except (RuntimeError, OSError) as error:  # the bindings' own errors of a missing library
        raise DeviceUnavailable(f"no CUDA driver on this machine: {error}") from error


def driver_version() -> int:
    """CUDA version of the driver, 1000 * major + 10 * minor."""
    return int(_checked(cu.cuDriverGetVersion))


def num_devices() -> int:
    """Devices the driver can use."""
    return int(_checked(cu.cuDeviceGetCount))


def device_handle(ordinal: int) -> Handle:
    """Handle of a device."""
    return _checked(cu.cuDeviceGet, ordinal)


def device_name(device: Handle) -> str:
    """Name for people."""
    return str(_checked(cu.cuDeviceGetName, 256, device).split(b"\0")[0].decode())


def device_attribute(device: Handle, name: str) -> int:
    """An attribute by the end of its name, ``COMPUTE_CAPABILITY_MAJOR`` for instance."""
    attribute = getattr(cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(_checked(cu.cuDeviceGetAttribute, attribute, device))


def retain_context(device: Handle) -> Handle:
    """Take a reference to the device's primary context."""
    return _checked(cu.cuDevicePrimaryCtxRetain, device)


def release_context(device: Handle) -> None:
    """Give the reference back; memory of the context may go with it."""
    _bound.context = None
    _checked(cu.cuDevicePrimaryCtxRelease, device)


def bind(context: Handle) -> None:
    """Make a context current in the calling thread."""
    if _bound.context is not context:
        _checked(cu.cuCtxSetCurrent, context)
        _bound.context = context


def memory_info() -> tuple[int, int]:
    """Free and total bytes of the current context's device."""
    free, total = _checked(cu.cuMemGetInfo)
    return int(free), int(total)


def allocate(nbytes: int) -> int:
    """Allocate device memory; return its address."""
    return int(_checked(cu.cuMemAlloc, nbytes))


def free(address: int) -> None:
    """Free device memory."""
    _checked(cu.cuMemFree, address)


def allocate_pinned(nbytes: int) -> int:
    """Allocate page-locked host memory; return its address."""
    return int(_checked(cu.cuMemHostAlloc, nbytes, cu.CU_MEMHOSTALLOC_PORTABLE))


def free_pinned(address: int) -> None:
    """Free page-locked host memory."""
    _checked(cu.cuMemFreeHost, address)


def create_stream() -> Handle:
    """Create a stream that does not wait for the default one."""
    return _checked(cu.cuStreamCreate, cu.CUstream_flags.CU_STREAM_NON_BLOCKING)


def destroy_stream(stream: Handle) -> None:
    """Destroy a stream."""
    _checked(cu.cuStreamDestroy, stream)


def synchronize_stream(stream: Handle) -> None:
    """Wait for everything enqueued."""
    _checked(cu.cuStreamSynchronize, stream)


def copy_to_device(stream: Handle, destination: int, source: int, nbytes: int) -> None:
    """Enqueue a copy from pinned host memory."""
    _checked(cu.cuMemcpyHtoDAsync, destination, source, nbytes, stream)


def copy_to_host(stream: Handle, destination: int, source: int, nbytes: int) -> None:
    """Enqueue a copy to pinned host memory."""
    _checked(cu.cuMemcpyDtoHAsync, destination, source, nbytes, stream)


def copy_on_device(stream: Handle, destination: int, source: int, nbytes: int) -> None:
    """Enqueue a copy inside device memory."""
    _checked(cu.cuMemcpyDtoDAsync, destination, source, nbytes, stream)


def fill_bytes(stream: Handle, destination: int, value: int, nbytes: int) -> None:
    """Enqueue a fill with one byte."""
    _checked(cu.cuMemsetD8Async, destination, value, nbytes, stream)


def create_event() -> Handle:
    """Create an event that keeps time."""
    return _checked(cu.cuEventCreate, cu.CUevent_flags.CU_EVENT_DEFAULT)


def destroy_event(event: Handle) -> None:
    """Destroy an event."""
    _checked(cu.cuEventDestroy, event)


def record_event(event: Handle, stream: Handle) -> None:
    """Put an event at the end of a stream."""
    _checked(cu.cuEventRecord, event, stream)


def synchronize_event(event: Handle) -> None:
    """Wait for an event."""
    _checked(cu.cuEventSynchronize, event)


def elapsed_ms(start: Handle, end: Handle) -> float:
    """Time between two reached events."""
    return float(_checked(cu.cuEventElapsedTime, start, end))


def begin_capture(stream: Handle) -> None:
    """Record instead of running; calls of other kinds stay allowed meanwhile."""
    mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    _checked(cu.cuStreamBeginCapture, stream, mode)


def end_capture(stream: Handle) -> Handle:
    """Stop recording; return the graph's template."""
    return _checked(cu.cuStreamEndCapture, stream)


def instantiate_graph(graph: Handle) -> Handle:
    """Make a template executable."""
    return _checked(cu.cuGraphInstantiate, graph, 0)


def upload_graph(executable: Handle, stream: Handle) -> None:
    """Bring an executable graph to the device ahead of its first launch."""
    _checked(cu.cuGraphUpload, executable, stream)


def launch_graph(executable: Handle, stream: Handle) -> None:
    """Enqueue one replay."""
    _checked(cu.cuGraphLaunch, executable, stream)


def destroy_graph(graph: Handle) -> None:
    """Destroy a template."""
    _checked(cu.cuGraphDestroy, graph)


def destroy_executable(executable: Handle) -> None:
    """Destroy an executable graph."""
    _checked(cu.cuGraphExecDestroy, executable)


def load_module(cubin: bytes) -> Handle:
    """Load a cubin into the current context."""
    return _checked(cu.cuModuleLoadData, cubin)


def unload_module(module: Handle) -> None:
    """Unload a module."""
    _checked(cu.cuModuleUnload, module)


def module_function(module: Handle, entry: str) -> Handle:
    """Find an entry point."""
    return _checked(cu.cuModuleGetFunction, module, entry.encode())


def allow_dynamic_shared(function: Handle, nbytes: int) -> None:
    """Let a function be launched with that much dynamic shared memory."""
    name = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _checked(cu.cuFuncSetAttribute, function, name, nbytes)


def max_clusters(function: Handle, threads: int, shared_bytes: int, cluster_blocks: int) -> int:
    """Clusters of a kernel that run at once, with so much dynamic shared memory a block."""
    config = cu.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = cluster_blocks, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.sharedMemBytes = shared_bytes
    config.attrs = [_cluster_attribute(cluster_blocks)]
    config.numAttrs = 1
    return int(_checked(cu.cuOccupancyMaxActiveClusters, function, config))


def launch(
    stream: Handle,
    function: Handle,
    grid: Extent,
    block: Extent,
    shared_bytes: int,
    args: Sequence[Any],
    *,
    programmatic: bool,
    cluster_blocks: int = 1,
) -> None:
    """Enqueue a kernel.

    Args:
        stream: where.
        function: entry point.
        grid: blocks of each axis.
        block: threads of each axis.
        shared_bytes: dynamic shared memory.
        args: ctypes values, in the order of the kernel's parameters.
        programmatic: the kernel may start before its predecessor has ended; it waits by itself.
        cluster_blocks: blocks of the first axis that start together.
    """
    config = cu.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = block
    config.sharedMemBytes = shared_bytes
    config.hStream = stream
    attributes = [_programmatic_attribute()] if programmatic else []
    if cluster_blocks > 1:
        attributes.append(_cluster_attribute(cluster_blocks))
    config.attrs = attributes
    config.numAttrs = len(attributes)
    pointers = (ctypes.c_void_p * max(1, len(args)))(*(ctypes.addressof(arg) for arg in args))
    _checked(cu.cuLaunchKernelEx, config, function, ctypes.addressof(pointers), 0)


def _programmatic_attribute() -> Any:
    attribute = cu.CUlaunchAttribute()
    attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    value = cu.CUlaunchAttributeValue()
    value.programmaticStreamSerializationAllowed = 1
    attribute.value = value
    return attribute


def _cluster_attribute(blocks: int) -> Any:
    attribute = cu.CUlaunchAttribute()
    attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    value = cu.CUlaunchAttributeValue()
    value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = blocks, 1, 1
    attribute.value = value
    return attribute
