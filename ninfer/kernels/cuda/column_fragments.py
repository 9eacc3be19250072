"""An image of columns back to the order of `fragments`, for products that read no other.

Only experts of shapes that `expert_many` does not suit need it, and no published model has such. A
lane turns one piece of a column back into the chunk of the same number, and stores it as whoever
writes fragments does, sums included. Bound by memory.
"""

from functools import cache
from typing import Final

from numba import cuda, int32, uint32

from ninfer.cuda import ptx
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.column_image import piece_address, turn_square
from ninfer.kernels.cuda.device_functions import lower_bf16, upper_bf16
from ninfer.kernels.cuda.fragments import CHUNK, store_chunk
from ninfer.kernels.cuda.launch import blocks_for

THREADS: Final = 128


def fragments_grid(num_columns: int, padded: int) -> tuple[int, int, int]:
    """Blocks for so many columns of so many features."""
    return (num_columns, blocks_for(padded // CHUNK, THREADS), 1)


@cache
def make_fragments() -> Kernel:
    """One thread for each chunk; grid `fragments_grid`, block (128,)."""

    def fragments(image: int, base: int, sums: int, padded: int) -> None:
        ptx.release_successor()
        ptx.wait_for_predecessor()
        column = cuda.blockIdx.x
        chunk = int32(cuda.blockIdx.y) * int32(THREADS) + int32(cuda.threadIdx.x)
        is_inside = chunk * int32(8) < padded
        a, b, c, d = uint32(0), uint32(0), uint32(0), uint32(0)
        if is_inside:
            at = piece_address(image, uint32(padded) >> uint32(6), column, chunk)
            a, b, c, d = ptx.load_u32x4(at)
        a, b, c, d = turn_square(chunk, a, b, c, d)
        store_chunk(
            base,
            sums,
            uint32(padded),
            column,
            chunk,
            is_inside,
            lower_bf16(a),
            lower_bf16(b),
            lower_bf16(c),
            lower_bf16(d),
            upper_bf16(a),
            upper_bf16(b),
            upper_bf16(c),
            upper_bf16(d),
        )

    params = (Param.ADDRESS,) * 3 + (Param.I32,)
    return Kernel("column_fragments", fragments, params, threads=THREADS, max_registers=64)
