"""Kernels to cubins without a device, and the disk cache of cubins.

    kernel function -- translation, nvJitLink --> cubin + figures -- one file --> cache folder

A kernel that spills on another target than the tuned one is compiled again, for fewer blocks and
then by an assembler that moves less around (`recipes`).

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
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final, NamedTuple

from ninfer.config import user_cache_folder
from ninfer.cuda import linker, translation
from ninfer.cuda.kernel_source import Kernel, source_digest
from ninfer.errors import DeviceUnavailable, InvariantError
from ninfer.whole_file import replace_file

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

_FIRST_DEPENDENT: Final = (9, 0)
"""First capability with programmatic dependent launch, and the newest whose PTX we write: what a
later one adds no kernel uses, and it left local arrays in memory (sm_100)."""

_FIRST_CLUSTERED: Final = (9, 0)
"""First capability with clusters of blocks."""

_LINK_OPTIONS: Final = ("-O3", "-Xptxas=-v", "-verbose")
_CAREFUL: Final = ("-Xptxas=-O1",)  # loads stay where they are: fewer values wait for their use
_FORMAT: Final = 1  # of keys: raised where `translation` gives other code for the same kernel
_FIRST_FIELDS: Final = {"key", "sha256", "figures"}
_TOOLCHAIN_FILE: Final = "toolchain"
_WAIT: Final = b"griddepcontrol.wait"
_SERIALISED: Final = "wgmma.mma_async instructions are serialized"


class Recipe(NamedTuple):
    """How a kernel is compiled.

    Attributes:
        min_blocks: blocks that shall fit on a multiprocessor; 0 leaves it to the assembler.
        options: of the linker, beside those of every kernel.
    """

    min_blocks: int
    options: tuple[str, ...] = ()


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
    packages["nvjitlink"] = linker.linker_version()
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

    @property
    def is_users(self) -> bool:
        """Whether it is the user's own folder, which takes what other processes compile."""
        if self._toolchain is not None or self.folder != default_folder():
            return False
        nearest = next(path for path in (self.folder, *self.folder.parents) if path.exists())
        return os.access(nearest, os.W_OK)

    def holds(self, kernel: Kernel, target: str) -> bool:
        """Whether there is a file of a kernel; nobody looks whether it is whole."""
        return self._path(kernel, target, self._key(kernel, target)).exists()

    def compiled(self, kernel: Kernel, target: str) -> Compiled:
        """Return the kernel for a target, from the folder or built now.

        Raises:
            InvariantError: the kernel cannot be compiled.
            DeviceUnavailable: it would have to be built, by another toolchain than the installed
                or by one that does not load.
        """
        key = self._key(kernel, target)
        path = self._path(kernel, target, key)
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

    def _path(self, kernel: Kernel, target: str, key: str) -> Path:
        return self.folder / f"{kernel.name}.{target}.{key[:32]}.kernel"

    def _key(self, kernel: Kernel, target: str) -> str:
        parts = (str(_FORMAT), source_digest(kernel), target, self._toolchain or toolchain())
        first, *others = recipes(kernel, target)
        tried = [repr(tuple(recipe)) for recipe in others]
        if others:
            tried.append(f"{first.min_blocks} {_is_whole(target)}")
        return hashlib.sha256("\0".join((*parts, *_LINK_OPTIONS, *tried)).encode()).hexdigest()


def suits(kernel: Kernel, target: str) -> bool:
    """Whether a kernel can be compiled for a target."""
    if kernel.cluster_blocks > 1 and not has_clusters(target):
        return False
    return not kernel.is_warpgroup or target == WARPGROUP_TARGET


def has_clusters(target: str) -> bool:
    """Whether blocks can start in clusters on a target."""
    return TARGETS[target] >= _FIRST_CLUSTERED


def recipes(kernel: Kernel, target: str) -> tuple[Recipe, ...]:
    """Ways to compile a kernel, in turn, until one has no local memory.

    Fewer blocks leave more registers; a careful assembler needs fewer. On `TUNED_TARGET` only the
    declared way is taken: there a spill is a mistake.
    """
    if target == TUNED_TARGET:
        return (Recipe(kernel.min_blocks),)
    blocks = tuple(range(kernel.min_blocks, 0, -1)) or (0,)
    return tuple(Recipe(count, options) for options in ((), _CAREFUL) for count in blocks)


def build(kernel: Kernel, target: str) -> Compiled:
    """Compile a kernel for a target; needs no device and no cache.

    Raises:
        InvariantError: it does not compile.
        DeviceUnavailable: the compiler does not load.
    """
    if target not in TARGETS:
        raise InvariantError(f"{target} is none of {', '.join(TARGETS)}")
    if not suits(kernel, target):
        raise InvariantError(f"{kernel.name} is for {WARPGROUP_TARGET}, not {target}")
    first, *others = recipes(kernel, target)
    compiled = _build(kernel, target, first)
    for recipe in others:
        if not compiled.figures.is_local:
            break
        compiled = _build(kernel, target, recipe)
    return compiled


def figures_of(log: str) -> Figures:
    """Read the linker's log of one kernel.

    Raises:
        InvariantError: it is not such a log.
    """
    last = log[max(log.rfind("info    : used "), log.rfind("ptxas info    : Used ")) :]
    spilled = [int(number) for number in re.findall(r"(\d+) bytes spill (?:stores|loads)", log)]
    registers = re.search(r"[uU]sed (\d+) registers", last)
    shared = re.search(r"(\d+) bytes smem", last)
    # Local arrays that stay in memory are counted as stack; "lmem" is 0 for them.
    local = re.findall(r"(\d+) (?:stack|bytes lmem|bytes cumulative stack size)", last)
    local += re.findall(r"(\d+) bytes stack frame", log)
    if registers is None or not local or not spilled:
        raise InvariantError(f"no figures in the linker's log: {log[:400]!r}")
    most = max(int(number) for number in local)
    return Figures(int(registers[1]), sum(spilled), most, int(shared[1]) if shared else 0)


def _is_whole(target: str) -> bool:
    """Whether kernels are compiled as whole programs, by link-time optimisation.

    Assembled for linking, as nvJitLink does with PTX, shuffles and barriers of a warp become calls
    on chips before sm_90, and no more registers than a callee keeps stay where they are.
    """
    return TARGETS[target] < _FIRST_DEPENDENT


def _build(kernel: Kernel, target: str, recipe: Recipe) -> Compiled:
    architecture = f"{target}a" if kernel.is_warpgroup else target
    options = (f"-arch={architecture}", *_LINK_OPTIONS, *recipe.options)
    if kernel.is_whole or _is_whole(target):
        waits = not kernel.is_whole or translation.waits(kernel)
        code = translation.bitcode(kernel, recipe.min_blocks)
        cubin, log = linker.link_bitcode(code, kernel.name, options)
    else:
        ptx = translation.ptx_text(kernel, _FIRST_DEPENDENT, recipe.min_blocks)
        waits = _WAIT in ptx
        cubin, log = linker.link_ptx(ptx, kernel.name, options)
    if not waits:
        raise InvariantError(f"kernel {kernel.name!r} never waits for its predecessor")
    if _SERIALISED in log:
        raise InvariantError(f"kernel {kernel.name!r}: warpgroup products wait for each other")
    figures = figures_of(log)
    if kernel.is_whole and figures.registers != kernel.max_registers:
        # What is given away would be less than what others take, who would wait for ever.
        raise InvariantError(
            f"kernel {kernel.name!r} starts with {figures.registers} registers a thread, "
            f"not {kernel.max_registers}"
        )
    return Compiled(kernel.name, target, cubin, figures)


def _read(path: Path, key: str, name: str, target: str) -> Compiled | None:
    """Return a valid entry, None where there is none."""
    try:
        head, _, cubin = path.read_bytes().partition(b"\n")
        entry = json.loads(head)
        figures = Figures(**entry["figures"])
        is_valid = entry["key"] == key and entry["sha256"] == hashlib.sha256(cubin).hexdigest()
        if set(entry) != _FIRST_FIELDS:  # those that the first version wrote have no proof
            proof = entry["figures_sha256"]
            is_valid = is_valid and len(entry) == 4 and proof == _figures_digest(figures)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Compiled(name, target, cubin, figures) if is_valid else None


def _write(path: Path, key: str, compiled: Compiled) -> None:
    """Put an entry in place, whole or not at all; a folder that refuses it is no error."""
    head = {
        "key": key,
        "sha256": hashlib.sha256(compiled.cubin).hexdigest(),
        "figures": asdict(compiled.figures),
        "figures_sha256": _figures_digest(compiled.figures),
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(head, sort_keys=True).encode() + b"\n" + compiled.cubin)
    except OSError:
        return


def _figures_digest(figures: Figures) -> str:
    return hashlib.sha256(json.dumps(asdict(figures), sort_keys=True).encode()).hexdigest()


def _version_or_system(package: str) -> str:
    """Version of a package, or a mark for a library that came with the system."""
    try:
        return version(package)
    except ModuleNotFoundError:
        return f"system-{platform.machine()}"
