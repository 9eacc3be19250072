"""Kernels to cubins without a device, and the disk cache of cubins.

    kernel function -- Numba --> PTX -- nvJitLink --> cubin + figures -- one file --> cache folder

PTX never reaches the driver: an older driver refuses the text of a newer compiler, but not a cubin
of its own major version. A cache entry is one file: a line of JSON with the figures, then the
cubin. Files are replaced atomically, an entry that does not prove to be its key's is rebuilt, and
two processes that build the same kernel write the same name, so deleting or sharing the folder is
always safe. Knows no kernel and loads nothing. Source: nvJitLink manual; PTX ISA manual.
"""

import hashlib
import json
import os
import platform
import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from numba import cuda
from numba.cuda import types

from ninfer.config import user_cache_folder
from ninfer.cuda import driver
from ninfer.cuda.kernel_source import Kernel, Param, source_digest
from ninfer.errors import DeviceUnavailable, InvariantError

STATIC_SHARED_LIMIT: Final = 48 * 1024
"""Static shared memory that every target gives a block, in bytes."""

TARGETS: Final[Mapping[str, tuple[int, int]]] = {
    "sm_80": (8, 0),
    "sm_89": (8, 9),
    "sm_90": (9, 0),
    "sm_100": (10, 0),
    "sm_120": (12, 0),
}
"""Compute capability of each target we compile for."""

BLOCK_SHARED: Final[Mapping[str, int]] = {
    "sm_80": 163 << 10,
    "sm_89": 99 << 10,
    "sm_90": 227 << 10,
    "sm_100": 227 << 10,
    "sm_120": 99 << 10,
}
"""Most shared memory of a block on each target, in bytes; CUDA C++ Programming Guide, table of
technical specifications per compute capability."""

TUNED_TARGET: Final = "sm_90"
"""The target whose budgets and blocks a multiprocessor kernels declare; others may need more
registers, and then fewer blocks share a multiprocessor."""

WARPGROUP_TARGET: Final = "sm_90"
"""The target whose chips have warpgroup instructions; code that uses them runs on no other."""

_PROGRAMMATIC_CC: Final = (9, 0)  # first capability with programmatic dependent launch
_LINK_OPTIONS: Final = ("-O3", "-Xptxas=-v", "-verbose")
_FORMAT: Final = 1
_TOOLCHAIN_FILE: Final = "toolchain"
_ENTRY: Final = re.compile(rb"\.visible \.entry ([\w$]+)")
_ENVIRONMENT: Final = re.compile(rb"\.common \.global \.align 8 \.u64 _ZN08NumbaEnv\w+;")
_SERIALISED: Final = "wgmma.mma_async instructions are serialized"
_MIN_BLOCKS: Final = re.compile(rb"\.minnctapersm \d+")
_PROGRAMMATIC: Final = re.compile(rb"griddepcontrol\.\w+;")


@dataclass(frozen=True, slots=True)
class Figures:
    """What the assembler says about a kernel.

    Attributes:
        registers: of each thread.
        spilled_bytes: stores and loads of spilled registers.
        local_bytes: local memory of each thread: stack frame, spills included.
        shared_bytes: static shared memory of a block.
    """

    registers: int
    spilled_bytes: int
    local_bytes: int
    shared_bytes: int

    @property
    def is_local(self) -> bool:
        """Whether a thread has local memory of its own, which is slow everywhere."""
        return self.spilled_bytes > 0 or self.local_bytes > 0


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel as the driver loads it."""

    name: str
    target: str
    cubin: bytes
    figures: Figures


def complaints(kernel: Kernel, figures: Figures, target: str = TUNED_TARGET) -> list[str]:
    """Reasons why a compiled kernel must not be shipped; empty when there is none.

    The register budget is `TUNED_TARGET`'s; elsewhere the assembler has what a block leaves it.
    """
    found = []
    if figures.is_local:
        found.append(f"{figures.spilled_bytes} bytes spilled, {figures.local_bytes} local")
    if figures.registers > kernel.max_registers and target == TUNED_TARGET:
        found.append(f"{figures.registers} registers, declared {kernel.max_registers}")
    if figures.shared_bytes > STATIC_SHARED_LIMIT:
        found.append(f"{figures.shared_bytes} bytes of static shared memory")
    needed = figures.shared_bytes + kernel.dynamic_shared_bytes
    if needed > BLOCK_SHARED[target]:
        found.append(f"{needed} bytes of shared memory, a block has {BLOCK_SHARED[target]}")
    name = kernel.name if target == TUNED_TARGET else f"{kernel.name} on {target}"
    return [f"{name}: {reason}" for reason in found]


def default_folder() -> Path:
    """Folder of compiled kernels of this user."""
    return user_cache_folder() / "kernels"


@cache
def toolchain() -> str:
    """Versions of everything that turns source into cubins."""
    packages = {name: version(name) for name in ("numba-cuda", "llvmlite")}
    packages["nvvm"] = _version_or_system("nvidia-nvvm")
    packages["nvjitlink"] = driver.linker_version()
    return " ".join(f"{name}-{number}" for name, number in sorted(packages.items()))


def prebuilt(folder: Path) -> "KernelCache":
    """Open a folder that `mark_prebuilt` has made: its kernels run where no compiler matches.

    Raises:
        DeviceUnavailable: it is no such folder.
    """
    try:
        return KernelCache(folder, (folder / _TOOLCHAIN_FILE).read_text(encoding="utf-8").strip())
    except OSError as error:
        raise DeviceUnavailable(f"{folder} holds no prebuilt kernels: {error}") from error


def mark_prebuilt(folder: Path) -> None:
    """Note beside the kernels of a folder which toolchain has built them."""
    (folder / _TOOLCHAIN_FILE).write_text(toolchain() + "\n", encoding="utf-8")


class KernelCache:
    """Compiled kernels in a folder.

    Args:
        folder: created when the first kernel is written.
        toolchain_id: what built the entries; another one than the installed toolchain makes the
            cache read-only in effect: an entry that is missing cannot be built.
    """

    def __init__(self, folder: Path, toolchain_id: str | None = None) -> None:
        self.folder: Final = folder
        self._toolchain: Final = toolchain_id

    def compiled(self, kernel: Kernel, target: str) -> Compiled:
        """Return the kernel for a target, from the folder or built now.

        Raises:
            InvariantError: the kernel cannot be compiled.
            DeviceUnavailable: it would have to be built, by another toolchain than the installed.
        """
        key = self._key(kernel, target)
        path = self.folder / f"{kernel.name}.{target}.{key[:32]}.kernel"
        found = _read(path, key, kernel.name, target)
        if found is not None:
            return found
        if self._toolchain is not None and self._toolchain != toolchain():
            raise DeviceUnavailable(
                f"{self.folder} has no kernel {kernel.name} for {target}, and was built by "
                f"{self._toolchain}, not by the installed {toolchain()}"
            )
        built = build(kernel, target)
        _write(path, key, built)
        return built

    def _key(self, kernel: Kernel, target: str) -> str:
        parts = (str(_FORMAT), source_digest(kernel), target, self._toolchain or toolchain())
        tried = [str(blocks) for blocks in occupancies(kernel, target)[1:]]
        return hashlib.sha256("\0".join((*parts, *_LINK_OPTIONS, *tried)).encode()).hexdigest()


def suits(kernel: Kernel, target: str) -> bool:
    """Whether a kernel can be compiled for a target."""
    return not kernel.is_warpgroup or target == WARPGROUP_TARGET


def occupancies(kernel: Kernel, target: str) -> tuple[int, ...]:
    """Blocks a multiprocessor that a kernel is compiled for, in turn, until nothing spills.

    Fewer blocks leave more registers, and change no bit of what a kernel computes. On
    `TUNED_TARGET` only the declared number is taken: there a spill is a mistake.
    """
    if target == TUNED_TARGET or kernel.min_blocks < 1:
        return (kernel.min_blocks,)
    return tuple(range(kernel.min_blocks, 0, -1))


def build(kernel: Kernel, target: str) -> Compiled:
    """Compile a kernel for a target; needs no device and no cache.

    Raises:
        InvariantError: it does not compile.
    """
    if target not in TARGETS:
        raise InvariantError(f"{target} is none of {', '.join(TARGETS)}")
    if not suits(kernel, target):
        raise InvariantError(f"{kernel.name} is for {WARPGROUP_TARGET}, not {target}")
    first, *fewer = occupancies(kernel, target)
    compiled = _build(kernel, target, first)
    for min_blocks in fewer:
        if not compiled.figures.is_local:
            break
        compiled = _build(kernel, target, min_blocks)
    return compiled


def figures_of(log: str) -> Figures:
    """Read the linker's log of one kernel.

    Raises:
        InvariantError: it is not such a log.
    """
    last = log[log.rfind("info    : used ") :]
    stores = [int(number) for number in re.findall(r"(\d+) bytes spill (?:stores|loads)", log)]
    registers = re.search(r"used (\d+) registers", last)
    shared = re.search(r"(\d+) bytes smem", last)
    # Local arrays that stay in memory are counted as stack; "lmem" is 0 for them.
    local = [int(number) for number in re.findall(r"(\d+) (?:stack|bytes lmem)", last)]
    if registers is None or shared is None or not local or not stores:
        raise InvariantError(f"no figures in the linker's log: {log[:400]!r}")
    return Figures(int(registers[1]), sum(stores), max(local), int(shared[1]))


def _build(kernel: Kernel, target: str, min_blocks: int) -> Compiled:
    ptx = _ptx(kernel, TARGETS[target], min_blocks)
    entries = _ENTRY.findall(ptx)
    if len(entries) != 1:
        raise InvariantError(f"kernel {kernel.name!r}: {len(entries)} entry points")
    ptx = ptx.replace(entries[0], kernel.name.encode())
    ptx = _ENVIRONMENT.sub(b"", ptx)  # unused, and numbered anew in every process
    if TARGETS[target] < _PROGRAMMATIC_CC:
        ptx = _PROGRAMMATIC.sub(b"", ptx)
    architecture = f"{target}a" if kernel.is_warpgroup else target
    cubin, log = driver.link_ptx(ptx, kernel.name, (f"-arch={architecture}", *_LINK_OPTIONS))
    if _SERIALISED in log:
        raise InvariantError(f"kernel {kernel.name!r}: warpgroup products wait for each other")
    return Compiled(kernel.name, target, cubin, figures_of(log))


def _ptx(kernel: Kernel, cc: tuple[int, int], min_blocks: int) -> bytes:
    kinds: dict[Param, Any] = {
        Param.ADDRESS: types.uint64,
        Param.U64: types.uint64,
        Param.I32: types.int32,
        Param.U32: types.uint32,
        Param.F32: types.float32,
    }
    bounds = (kernel.threads, min_blocks) if min_blocks else (kernel.threads,)
    text, _ = cuda.compile(
        kernel.function,
        types.void(*(kinds[param] for param in kernel.params)),
        device=False,
        abi="numba",
        cc=(*cc, "a") if kernel.is_warpgroup else cc,
        output="ptx",
        launch_bounds=bounds,
    )
    ptx = text if isinstance(text, bytes) else str(text).encode()
    if kernel.is_warpgroup:
        # The assembler would give whole warpgroups registers, also where a block has fewer warps.
        ptx = _MIN_BLOCKS.sub(b".maxnreg %d" % kernel.max_registers, ptx)
    return ptx


def _read(path: Path, key: str, name: str, target: str) -> Compiled | None:
    """Return a valid entry, None where there is none."""
    try:
        head, _, cubin = path.read_bytes().partition(b"\n")
        entry = json.loads(head)
        figures = Figures(**entry["figures"])
        is_valid = entry["key"] == key and entry["sha256"] == hashlib.sha256(cubin).hexdigest()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Compiled(name, target, cubin, figures) if is_valid else None


def _write(path: Path, key: str, compiled: Compiled) -> None:
    """Put an entry in place, whole or not at all; a folder that refuses it is no error."""
    head = {
        "key": key,
        "sha256": hashlib.sha256(compiled.cubin).hexdigest(),
        "figures": asdict(compiled.figures),
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            temporary = Path(file.name)
            file.write(json.dumps(head, sort_keys=True).encode() + b"\n" + compiled.cubin)
        os.replace(temporary, path)
    except OSError:
        return


def _version_or_system(package: str) -> str:
    """Version of a package, or a mark for a library that came with the system."""
    try:
        return version(package)
    except ModuleNotFoundError:
        return f"system-{platform.machine()}"
