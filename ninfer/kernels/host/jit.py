"""How the cache, attention, mixer and expert kernels are compiled.

All of them run without the interpreter lock and round every operation by itself: no fast-math, no
contraction. A `kernel` is what a stream calls; it is kept on disk, in the user's cache folder or
where ``NUMBA_CACHE_DIR`` says, never inside the package: an installer does not know files that it
has not written, and leaves them behind. Where nothing can be kept, each process compiles anew; a
damaged file is compiled anew and replaced (`kernel_files`). A `kernel_part` can be called from
kernels only, which spares its Python entry and makes a cold start shorter.
"""

import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numba
from numba import njit

from ninfer.config import user_cache_folder
from ninfer.kernels.host.kernel_files import KernelCache


def _is_kept() -> bool:
    """Decide where kernels are kept, and whether they can be."""
    try:
        folder = Path(numba.config.CACHE_DIR or user_cache_folder() / "host-kernels")
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, RuntimeError):  # RuntimeError: this user has no home
        return False
    numba.config.CACHE_DIR = str(folder)
    return True


_KEPT: Final = _is_kept()


def kernel(function: Callable[..., object]) -> Any:
    """Compile a function when it is first called; what a stream calls is kept on disk."""
    compiled = njit(nogil=True, error_model="numpy")(function)
    if _KEPT:
        # Sources that cannot be read cannot be told apart; another Numba may have no such cache.
        with suppress(OSError, AttributeError, TypeError):
            compiled._cache = KernelCache(function)  # Numba offers no way to name another cache
    return compiled


kernel_part: Final = njit(
    nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True
)
