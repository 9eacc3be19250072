"""The final sum of many experts, behind their wide products; bound by memory.

    residual += sum over slots, in ranking order, of w * product + shared gate * shared

Products lie in the order of the plan; ``places`` says where that of each choice lies.
"""

from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.device_functions import load_chunk

THREADS: Final = 256

Address = Any
Index = Any


@device_function
def _word(low: Any, high: Any) -> Any:
    return ptx.bf16x2_of_f32(low, high)


@cache
def make_combine() -> Kernel:
    """A thread for eight features of a token; grid (blocks of chunks, tokens)."""

    def combine(
        products: int,
        places: int,
        weights: int,
        shared: int,
        shared_gate: int,
        residual: int,
        hidden: int,
        chosen: int,
    ) -> None:
        ptx.release_successor()
        ptx.wait_for_predecessor()
        token = uint64(cuda.blockIdx.y)
        chunk = int32(cuda.blockIdx.x) * int32(THREADS) + int32(cuda.threadIdx.x)
        if chunk * int32(8) < hidden:
            total = cuda.local.array(8, float32)
            for i in range(8):
                total[i] = float32(0.0)
            row_bytes = uint64(hidden) * uint64(2)
            for slot in range(chosen):
                choice = token * uint64(chosen) + uint64(slot)
                weight = ptx.load_f32(weights + choice * uint64(4))
                place = uint64(ptx.load_u32(places + choice * uint64(4)))
                v0, v1, v2, v3, v4, v5, v6, v7 = load_chunk(
                    products + place * row_bytes, chunk, hidden
                )
                total[0] += weight * v0
                total[1] += weight * v1
                total[2] += weight * v2
                total[3] += weight * v3
                total[4] += weight * v4
                total[5] += weight * v5
                total[6] += weight * v6
                total[7] += weight * v7
            gate = ptx.load_f32(shared_gate + token * uint64(4))
            s0, s1, s2, s3, s4, s5, s6, s7 = load_chunk(shared + token * row_bytes, chunk, hidden)
            r0, r1, r2, r3, r4, r5, r6, r7 = load_chunk(residual + token * row_bytes, chunk, hidden)
            ptx.store_u32x4(
                residual + token * row_bytes + uint64(chunk) * uint64(16),
                _word(total[0] + gate * s0 + r0, total[1] + gate * s1 + r1),
                _word(total[2] + gate * s2 + r2, total[3] + gate * s3 + r3),
                _word(total[4] + gate * s4 + r4, total[5] + gate * s5 + r5),
                _word(total[6] + gate * s6 + r6, total[7] + gate * s7 + r7),
            )

    params = (Param.ADDRESS,) * 6 + (Param.I32,) * 2
    return Kernel("expert_combine", combine, params, threads=THREADS, max_registers=64)
