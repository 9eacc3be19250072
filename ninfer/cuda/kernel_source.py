"""What a kernel is before it is compiled, and the digest of everything it is made from.

The digest follows a kernel function into every function, constant and intrinsic it reaches, so that
a change anywhere below it, and no other change, gives another digest. It reads source text rather
than byte code: it is the same for every Python version. Knows no compiler.
"""

import enum
import hashlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

import numpy as np

from ninfer.errors import InvariantError

_OURS: Final = "ninfer."


class Param(enum.Enum):
    """Types of kernel parameters."""

    ADDRESS = "u64"
    U64 = "uint64"
    I32 = "i32"
    U32 = "u32"
    F32 = "f32"


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """One specialised kernel; two objects are two kernels.

    Attributes:
        name: stable name of our own, unique among all kernels: letters, digits and ``_``.
        function: plain function of the parameters, closed over its constants.
        params: parameter types in order.
        threads: most threads of a block.
        max_registers: declared budget of each thread.
        dynamic_shared_bytes: what every launch asks for.
        min_blocks: blocks that must fit on a multiprocessor; 0 leaves it to the compiler.
        is_warpgroup: uses instructions of `warpgroup`, which only sm_90 has.
        cluster_blocks: neighbouring blocks that start together; more than one use instructions of
            `cluster`, which sm_90 and later have.
        is_whole: compiled as a whole program, where warpgroups may exchange registers; then
            ``max_registers`` is what a thread starts with.
    """

    name: str
    function: Callable[..., None]
    params: tuple[Param, ...]
    threads: int
    max_registers: int
    dynamic_shared_bytes: int = 0
    min_blocks: int = 0
    is_warpgroup: bool = False
    cluster_blocks: int = 1
    is_whole: bool = False


def source_digest(kernel: Kernel) -> str:
    """Hexadecimal digest of the kernel's source, constants and launch attributes."""
    digest = hashlib.sha256()
    attributes = (kernel.name, kernel.params, kernel.threads, kernel.min_blocks)
    digest.update(repr(attributes).encode())
    if kernel.is_warpgroup:
        digest.update(f"warpgroup 1 {kernel.max_registers}".encode())
    if kernel.is_whole:
        digest.update(b"whole 1")
    for line in _describe(kernel.function, set()):
        digest.update(line.encode())
        digest.update(b"\0")
    return digest.hexdigest()


def _describe(value: Any, seen: set[int]) -> Iterator[str]:
    """List what a value that a kernel refers to consists of, each object once."""
    if isinstance(value, (bool, int, float, str, type(None))):
        yield repr(value)
        return
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _describe(item, seen)
        return
    if isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape} {value.tobytes().hex()}"
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    if hasattr(value, "ptx_text"):
        yield value.ptx_text
    elif hasattr(value, "_defn"):  # an intrinsic that is no single instruction
        yield from _describe(value._defn, seen)
    elif hasattr(value, "py_func"):
        yield from _describe(value.py_func, seen)
    elif isinstance(value, FunctionType) and not _is_foreign(value):
        yield from _describe_function(value, seen)
    elif hasattr(value, "_fields"):  # a class of tuples that a kernel makes
        yield f"{value.__name__} {value._fields}"
    else:
        yield f"{type(value).__name__} {getattr(value, '__name__', value)}"


def _is_foreign(function: FunctionType) -> bool:
    """Whether a function belongs to a library, whose version stands for it."""
    return function.__module__.split(".")[0] in ("numba", "numpy", "math", "llvmlite")


def _describe_function(function: FunctionType, seen: set[int]) -> Iterator[str]:
    code = function.__code__
    try:
        yield _source_text(code, code.co_filename)
    except OSError as error:
        raise InvariantError(f"no source of the kernel code {function.__qualname__}") from error
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in sorted(cells):
        yield name
        yield from _describe(cell.cell_contents, seen)
    names = sorted(set(names_of(function.__code__)))
    for name in names:
        if name not in function.__globals__:
            continue
        value = function.__globals__[name]
        yield name
        if isinstance(value, ModuleType):
            yield from _describe_module(value, names, seen)
        else:
            yield from _describe(value, seen)


@cache
def _source_text(code: CodeType, filename: str) -> str:
    """Text of a function; kernels share most of theirs, and finding one takes time."""
    return textwrap.dedent(inspect.getsource(code))


def _describe_module(module: ModuleType, names: list[str], seen: set[int]) -> Iterator[str]:
    """Describe the members of a module of ours that a function may mean by ``module.name``."""
    yield module.__name__
    if module.__name__.startswith(_OURS):
        for name in names:
            if hasattr(module, name):
                yield name
                yield from _describe(getattr(module, name), seen)


def names_of(code: CodeType) -> Iterator[str]:
    """Global names and attributes that a function's text means, with functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_of(constant)
