"""One CUDA device: context, properties, memory, streams and loaded kernels.

Owner of a reference to the primary context and of everything created in it except arenas. Streams
are in `stream`, arenas in `memory`; what the kernels compute is the kernel table's business.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Self

from ninfer.arena import AllocatedArena
from ninfer.cuda import driver
from ninfer.cuda.kernel_source import Kernel
from ninfer.cuda.memory import device_arena, pinned_arena
from ninfer.cuda.module import (
    TARGETS,
    WARPGROUP_TARGET,
    KernelCache,
    default_folder,
    has_clusters,
)
from ninfer.cuda.stream import CudaStream
from ninfer.device import CompileAhead
from ninfer.errors import (
    DeviceUnavailable,
    InvariantError,
    KernelTooLarge,
    NinferError,
    OutOfDeviceMemory,
)
from ninfer.tensor import DType

SCRATCH_BYTES: Final = 96 << 20
"""Scratch memory of each stream: an expert layer's products of 1,024 tokens."""

WIDE_SCRATCH_BYTES: Final = 384 << 20
"""The same where there are warpgroups: 8,192 columns of 17,408 features, as those read them, or
bf16 copies of int8 pages: 98,240 positions of four key heads of 256."""

NUM_COUNTERS: Final = 1 << 14
"""Words of each stream that are zero between kernels: 128 rows of 128 key heads."""

_PROGRAMMATIC_CC: Final = (9, 0)
_STATIC_BYTES: Final = 2048  # of a block's shared memory, more than kernels have beside dynamic


@dataclass(frozen=True, slots=True)
class CudaProperties:
    """What a device can do.

    Attributes:
        name: for people.
        compute_capability: major and minor.
        num_multiprocessors: streaming multiprocessors.
        total_bytes: device memory.
        l2_bytes: second-level cache.
        shared_bytes: most shared memory a block can opt into.
        driver_version: 1000 * major + 10 * minor of the CUDA version.
    """

    name: str
    compute_capability: tuple[int, int]
    num_multiprocessors: int
    total_bytes: int
    l2_bytes: int
    shared_bytes: int
    driver_version: int

    @property
    def target(self) -> str:
        """Name of the code the device runs.

        Raises:
            DeviceUnavailable: we compile no kernels for it.
        """
        for name, capability in TARGETS.items():
            if capability == self.compute_capability:
                return name
        major, minor = self.compute_capability
        raise DeviceUnavailable(
            f"{self.name} has compute capability {major}.{minor}; supported are "
            + ", ".join(f"{a}.{b}" for a, b in TARGETS.values())
        )


class CudaDevice:
    """One GPU as a device.

    Args:
        ordinal: number of the device as the driver counts.
        cache: where compiled kernels come from; the user's cache folder when None.

    Raises:
        DeviceUnavailable: there is no such device, or none we have kernels for.
    """

    def __init__(self, ordinal: int = 0, cache: KernelCache | None = None) -> None:
        driver.initialise()
        count = driver.num_devices()
        if not 0 <= ordinal < count:
            raise DeviceUnavailable(f"device {ordinal}: the driver has {count}")
        self._device: Final = driver.device_handle(ordinal)
        self._context: Final = driver.retain_context(self._device)
        self._cache: Final = cache or KernelCache(default_folder())
        self._streams: Final[list[CudaStream]] = []
        self._scratch: Final[list[AllocatedArena]] = []
        self._modules: Final[list[driver.Handle]] = []
        self._functions: Final[dict[Kernel, driver.Handle]] = {}
        self._clusters: Final[dict[int, int]] = {}
        self._fault: NinferError | None = None
        self._is_closed = False
        try:
            self.bind()
            self.properties: Final = _properties(self._device)
            self.target: Final = self.properties.target
        except NinferError:
            driver.release_context(self._device)
            raise

    @property
    def kind(self) -> str:
        """Always ``"cuda"``."""
        return "cuda"

    @property
    def name(self) -> str:
        """Name for people."""
        return self.properties.name

    @property
    def driver_version(self) -> str:
        """Newest CUDA version the driver knows."""
        major, minor = divmod(driver.driver_version(), 1000)
        return f"CUDA {major}.{minor // 10}"

    @property
    def activation_dtype(self) -> DType:
        """Bfloat16; sums are single precision."""
        return DType.BF16

    @property
    def prefill_columns(self) -> int:
        """Products on warpgroups gain up to 4,096 columns (H200); others were made for 1,024."""
        return 4096 if self.has_warpgroups else 1024

    @property
    def fault(self) -> NinferError | None:
        """The fault that lost the context, if there was one."""
        return self._fault

    @property
    def has_programmatic_launch(self) -> bool:
        """Whether a kernel may start before its predecessor has ended."""
        return self.properties.compute_capability >= _PROGRAMMATIC_CC

    @property
    def has_warpgroups(self) -> bool:
        """Whether kernels may use warpgroup instructions."""
        return self.target == WARPGROUP_TARGET

    @property
    def has_clusters(self) -> bool:
        """Whether blocks can start in clusters."""
        return has_clusters(self.target)

    @property
    def num_multiprocessors(self) -> int:
        """Streaming multiprocessors."""
        return self.properties.num_multiprocessors

    @property
    def shared_bytes(self) -> int:
        """Most shared memory of a block."""
        return self.properties.shared_bytes

    def bind(self) -> None:
        """Make the context current in the calling thread.

        Raises:
            InvariantError: the device is closed.
        """
        if self._is_closed:
            raise InvariantError("a closed CUDA device was used")
        driver.bind(self._context)

    def lose(self, fault: NinferError) -> None:
        """Note that the context is lost: every stream of the device reports it from now on."""
        self._fault = self._fault or fault

    def free_bytes(self) -> int:
        """Memory that could be allocated now, in bytes."""
        self.bind()
        return driver.memory_info()[0]

    def arena(self, name: str, nbytes: int) -> AllocatedArena:
        """Allocate device memory.

        Raises:
            OutOfDeviceMemory: the device cannot give that many bytes.
            InvariantError: the device is closed or lost.
        """
        self.bind()
        free = driver.memory_info()[0]
        if nbytes > free:
            raise OutOfDeviceMemory(
                f"arena {name!r} needs {nbytes} bytes, {nbytes - free} more than are free"
            )
        return device_arena(name, nbytes, self._free)

    def pinned_arena(self, name: str, nbytes: int) -> AllocatedArena:
        """Allocate host memory that the device can copy from and to."""
        self.bind()
        return pinned_arena(name, nbytes, self._free_pinned)

    def stream(self) -> CudaStream:
        """Create a stream, owned by the device."""
        nbytes = WIDE_SCRATCH_BYTES if self.has_warpgroups else SCRATCH_BYTES
        scratch = self.arena("stream scratch", nbytes + 4 * NUM_COUNTERS)
        self._scratch.append(scratch)
        counters = scratch.take((NUM_COUNTERS,), DType.U32)
        stream = CudaStream(self, scratch.take((nbytes,), DType.U8), counters)
        stream.clear(counters)
        self._streams.append(stream)
        return stream

    def function(self, kernel: Kernel) -> driver.Handle:
        """Entry point of a kernel; compiled or read from the cache, and loaded, the first time.

        Raises:
            KernelTooLarge: a block of it needs more shared memory than the device gives one.
        """
        found = self._functions.get(kernel)
        if found is None:
            compiled = self._cache.compiled(kernel, self.target)
            expect_room(kernel, compiled.figures.shared_bytes, self.shared_bytes)
            module = driver.load_module(compiled.cubin)
            self._modules.append(module)
            found = driver.module_function(module, kernel.name)
            if kernel.dynamic_shared_bytes > 0:  # a launch may ask for more than the kernel needs
                most = self.shared_bytes - compiled.figures.shared_bytes
                driver.allow_dynamic_shared(found, max(kernel.dynamic_shared_bytes, most))
            self._functions[kernel] = found
        return found

    def make_ready(self, kernels: Collection[Kernel], ahead: CompileAhead | None = None) -> None:
        """Compile the kernels that the cache does not hold, and load all of them.

        Args:
            kernels: what will be launched.
            ahead: asked first where more than one is missing.
        """
        self.bind()
        missing = [one.name for one in kernels if not self._cache.holds(one, self.target)]
        if ahead is not None and len(missing) > 1 and self._cache.is_users:
            ahead(missing, self.target)
        for kernel in kernels:
            self.function(kernel)

    def is_at_hand(self, kernel: Kernel) -> bool:
        """Whether what is asked about a kernel is answered without compiling it."""
        return kernel in self._functions or self._cache.holds(kernel, self.target)

    def num_clusters(self, kernel: Kernel) -> int:
        """Clusters of so many blocks that run at once, where a block fills a multiprocessor.

        Multiprocessors come in groups of which no cluster leaves its own: some are left over.
        """
        blocks = kernel.cluster_blocks
        if blocks not in self._clusters:
            self.bind()
            most = self.shared_bytes - _STATIC_BYTES
            function = self.function(kernel)
            self._clusters[blocks] = driver.max_clusters(function, kernel.threads, most, blocks)
        return self._clusters[blocks]

    def close(self) -> None:
        """Close streams, unload kernels, give the context back; idempotent.

        Arenas stay their owners': close them before the device.
        """
        if self._is_closed:
            return
        for stream in reversed(self._streams):
            stream.close()
        while self._scratch:
            self._scratch.pop().close()
        self._functions.clear()
        while self._modules:
            module = self._modules.pop()
            if self._fault is None:
                driver.unload_module(module)
        self._is_closed = True
        driver.release_context(self._device)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _free(self, address: int) -> None:
        """Free device memory; a lost or released context has freed it already."""
        if self._fault is None and not self._is_closed:
            self.bind()
            driver.free(address)

    def _free_pinned(self, address: int) -> None:
        if self._fault is None and not self._is_closed:
            self.bind()
            driver.free_pinned(address)


def expect_room(kernel: Kernel, static_bytes: int, block_bytes: int) -> None:
    """Require that a block of a kernel fits.

    Args:
        kernel: what shall be loaded.
        static_bytes: shared memory it has beside what a launch asks for.
        block_bytes: most shared memory of a block on the device.

    Raises:
        KernelTooLarge: it does not.
    """
    needed = kernel.dynamic_shared_bytes + static_bytes
    if needed > block_bytes:
        raise KernelTooLarge(
            f"kernel {kernel.name}: a block needs {needed} bytes of shared memory, "
            f"this device gives it {block_bytes}"
        )


def _properties(device: driver.Handle) -> CudaProperties:
    def attribute(name: str) -> int:
        return driver.device_attribute(device, name)

    return CudaProperties(
        name=driver.device_name(device),
        compute_capability=(
            attribute("COMPUTE_CAPABILITY_MAJOR"),
            attribute("COMPUTE_CAPABILITY_MINOR"),
        ),
        num_multiprocessors=attribute("MULTIPROCESSOR_COUNT"),
        total_bytes=driver.memory_info()[1],
        l2_bytes=attribute("L2_CACHE_SIZE"),
        shared_bytes=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        driver_version=driver.driver_version(),
    )
