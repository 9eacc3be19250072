"""How the cache, attention, mixer and expert kernels are compiled.

All of them run without the interpreter lock and round every operation by itself: no fast-math, no
contraction. A `kernel` is what a stream calls; it is kept on disk, in the user's cache folder or
where ``NUMBA_CACHE_DIR`` says, never inside the package: an installer does not know files that it
has not written, and leaves them behind. Where nothing can be kept, each process compiles anew. A
`kernel_part` can be called from kernels only, which spares its Python entry and makes a cold start
shorter.
"""

import tempfile
from pathlib import Path
from typing import Final

import numba
from numba import njit

from ninfer.config import user_cache_folder


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


kernel: Final = njit(nogil=True, cache=_is_kept(), error_model="numpy")
kernel_part: Final = njit(
    nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True
)
