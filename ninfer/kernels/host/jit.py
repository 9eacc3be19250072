"""How the cache, attention, mixer and expert kernels are compiled.

All of them run without the interpreter lock and round every operation by itself: no fast-math, no
contraction. A `kernel` is what a stream calls; it is kept on disk. A `kernel_part` can be called
from kernels only, which spares its Python entry and makes a cold start shorter.
"""

from typing import Final

from numba import njit

kernel: Final = njit(nogil=True, cache=True, error_model="numpy")
kernel_part: Final = njit(
    nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True
)
