"""A kernel of tests: every bf16 gate by the two formulas of SwiGLU that kernels have."""

from functools import cache
from typing import Final

from numba import cuda, float32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.coded_gate import gated_value
from ninfer.kernels.cuda.pointwise import gated

GATES: Final = 1 << 16

_THREADS: Final = 256

GRID: Final = (GATES // _THREADS, 1, 1)


@cache
def make_gate_values() -> Kernel:
    """One thread for each bf16 word: the f32 that `gated_value` makes of it, then `gated`'s."""

    def gate_values(out: int) -> None:
        ptx.release_successor()
        ptx.wait_for_predecessor()
        word = uint32(cuda.blockIdx.x * _THREADS + cuda.threadIdx.x)
        gate = ptx.f32_of_bits(word << uint32(16))
        to = out + uint64(word) * uint64(8)
        ptx.store_f32(to, gated_value(gate, float32(1.0)))
        ptx.store_f32(to + uint64(4), gated(gate, float32(1.0)))

    return Kernel("gate_values", gate_values, (Param.ADDRESS,), _THREADS, max_registers=64)
