"""Plain columns to a linear input on CUDA, for tests and rare uses.

One thread packs one chunk of eight features; a column's values are rounded to bf16 once.
"""

from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.column_image import order_suffix, storer
from ninfer.kernels.cuda.device_functions import load_value

THREADS: Final = 128


@device_function
def _load_f32(row: Any, index: Any, width: Any) -> Any:
    """One f32 value of a row; zero behind the row."""
    value = float32(0.0)
    if int32(index) < int32(width):
        value = ptx.load_f32(row + uint64(index) * uint64(4))
    return value


@cache
def make_pack(is_f32: bool, to_image: bool) -> Kernel:
    """One thread for each chunk; grid (columns, blocks of chunks), block (128,)."""
    load, store = _load_f32 if is_f32 else load_value, storer(to_image)
    itemsize = 4 if is_f32 else 2

    def pack(x: int, base: int, sums: int, width: int, padded: int) -> None:
        ptx.release_successor()
        ptx.wait_for_predecessor()
        column = cuda.blockIdx.x
        chunk = int32(cuda.blockIdx.y) * int32(THREADS) + int32(cuda.threadIdx.x)
        first = chunk * int32(8)
        row = x + uint64(column) * uint64(width) * uint64(itemsize)
        store(
            base,
            sums,
            uint32(padded),
            column,
            chunk,
            first < padded,
            load(row, first, width),
            load(row, first + int32(1), width),
            load(row, first + int32(2), width),
            load(row, first + int32(3), width),
            load(row, first + int32(4), width),
            load(row, first + int32(5), width),
            load(row, first + int32(6), width),
            load(row, first + int32(7), width),
        )

    name = f"pack_{'f32' if is_f32 else 'bf16'}{order_suffix(to_image)}"
    params = (Param.ADDRESS,) * 3 + (Param.I32,) * 2
    return Kernel(name, pack, params, threads=THREADS, max_registers=64)
