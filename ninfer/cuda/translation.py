"""A kernel function on its way through the compiler: Numba's LLVM text, then PTX or bitcode.

    function -- Numba --> LLVM text -- NVVM --> PTX, for the assembler
                                    -- NVVM --> bitcode, for link-time optimisation

Making the text takes most of the time. It is the same for every target and is kept while a kernel
is compiled for several. Knows no target and no cache. Source: NVVM IR specification.
"""

import importlib
import re
from functools import cache, lru_cache
from importlib.metadata import version
from typing import Any, Final

from numba.cuda import types
from numba.cuda.compiler import _compile_pyfunc_with_fixup
from numba.cuda.cudadrv import nvvm

from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.errors import DeviceUnavailable, InvariantError

_ENTRY: Final = re.compile(rb"\.visible \.entry ([\w$]+)")
_ENVIRONMENT: Final = re.compile(rb"\.common \.global \.align 8 \.u64 _ZN08NumbaEnv\w+;")
_MIN_BLOCKS: Final = re.compile(rb"\.minnctapersm \d+")
_DEPENDENT: Final = re.compile(r'"griddepcontrol\.\w+;"')
_WAIT: Final = '"griddepcontrol.wait;"'
_KINDS: Final[dict[Param, Any]] = {
    Param.ADDRESS: types.uint64,
    Param.U64: types.uint64,
    Param.I32: types.int32,
    Param.U32: types.uint32,
    Param.F32: types.float32,
}
_BITCODE_ARCHITECTURE: Final = "compute_80"
_WARPGROUP_ARCHITECTURE: Final = "compute_90a"
_LATE_PARTS: Final = "numba.cuda.cudaimpl"  # of the compiler, which loads them when it compiles


@cache
def expect_compiler() -> None:
    """Require that the compiler works beside the installed NumPy, before it is asked for anything.

    Raises:
        DeviceUnavailable: it does not load.
    """
    try:
        importlib.import_module(_LATE_PARTS)
    except (ImportError, AttributeError) as error:
        raise DeviceUnavailable(
            f"numba-cuda {version('numba-cuda')} compiles nothing beside NumPy {version('numpy')}: "
            f"{error}; pip install '.[cuda]' brings versions that fit each other"
        ) from error


def ptx_text(kernel: Kernel, capability: tuple[int, int], min_blocks: int) -> bytes:
    """PTX of a kernel under its own name.

    Args:
        kernel: what is translated.
        capability: compute capability whose instructions may be used.
        min_blocks: blocks that shall fit on a multiprocessor; 0 leaves it to the assembler.

    Raises:
        InvariantError: it is not one entry point.
        DeviceUnavailable: the compiler does not load.
    """
    architecture = "compute_{}{}".format(*capability) + ("a" if kernel.is_warpgroup else "")
    ptx = _ptx(kernel, architecture)
    entries = _ENTRY.findall(ptx)
    if len(entries) != 1:
        raise InvariantError(f"kernel {kernel.name!r}: {len(entries)} entry points")
    ptx = ptx.replace(entries[0], kernel.name.encode())
    ptx = _ENVIRONMENT.sub(b"", ptx)  # unused, and numbered anew in every process
    if kernel.is_warpgroup:
        # The assembler would give whole warpgroups registers, also where a block has fewer warps.
        return _MIN_BLOCKS.sub(b".maxnreg %d" % kernel.max_registers, ptx)
    return _MIN_BLOCKS.sub(b".minnctapersm %d" % min_blocks, ptx)


def bitcode(kernel: Kernel, min_blocks: int) -> bytes:
    """A kernel under its own name for link-time optimisation.

    Unless it is for warpgroups, it is for chips without dependent launch.

    Args:
        kernel: what is translated.
        min_blocks: as of `ptx_text`.
    """
    texts, entry = _llvm_texts(kernel)
    own = []
    for text in texts:
        renamed = text.replace(entry, kernel.name)
        if not kernel.is_warpgroup:
            renamed = _DEPENDENT.sub('""', renamed)
        own.append(re.sub(r'!"minctasm", i32 \d+', f'!"minctasm", i32 {min_blocks}', renamed))
    architecture = _WARPGROUP_ARCHITECTURE if kernel.is_warpgroup else _BITCODE_ARCHITECTURE
    options = {"opt": 3, "arch": architecture, "gen-lto": None}
    return bytes(nvvm.compile_ir(own, **options))


def waits(kernel: Kernel) -> bool:
    """Whether a kernel has an instruction that waits for its predecessor."""
    return any(_WAIT in text for text in _llvm_texts(kernel)[0])


@lru_cache(maxsize=2)
def _ptx(kernel: Kernel, architecture: str) -> bytes:
    texts, _ = _llvm_texts(kernel)
    text = bytes(nvvm.compile_ir(list(texts), opt=3, arch=architecture))
    return text.decode().strip("\x00").strip().encode()


@lru_cache(maxsize=2)
def _llvm_texts(kernel: Kernel) -> tuple[tuple[str, ...], str]:
    """LLVM modules of a kernel, and the name of its entry in them."""
    expect_compiler()
    bounds = (kernel.threads, kernel.min_blocks) if kernel.min_blocks else (kernel.threads,)
    library, _ = _compile_pyfunc_with_fixup(
        kernel.function,
        types.void(*(_KINDS[param] for param in kernel.params)),
        device=False,
        abi="numba",
        cc=(9, 0, "a") if kernel.is_warpgroup else (9, 0),
        launch_bounds=bounds,
    )
    return tuple(library.llvm_strs), str(library._entry_name)
