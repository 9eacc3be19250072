"""SwiGLU on CUDA, written as a linear input.

    y[t, i] = g / (1 + exp(-g)) * u        g = gate_up[t, i], u = gate_up[t, I + i]

One thread computes one chunk of eight features; 4 I bytes in and about 2 I out for a column, no
reuse. Arithmetic is f32; exp overflows to infinity, where silu is -0.
"""

import math
from functools import cache
from itertools import product
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.cuda.stream import CudaStream
from ninfer.kernels.cuda.column_image import is_image, order_suffix, storer
from ninfer.kernels.cuda.device_functions import load_chunk, load_ragged_chunk
from ninfer.kernels.cuda.fragments import CHUNK
from ninfer.kernels.cuda.launch import KernelShapes, block_parts, blocks_for, orders
from ninfer.tensor import LinearInput, Tensor

_THREADS: Final = 128  # 17 blocks a column at I = 17,408


def swiglu(stream: CudaStream, gate_up: Tensor, out: LinearInput) -> None:
    """Write ``silu(first half) * second half``."""
    base, sums, padded = block_parts(out)
    stream.launch(
        make_swiglu(out.width % CHUNK == 0, is_image(out.num_columns, stream.has_warpgroups)),
        (out.num_columns, blocks_for(padded // CHUNK, _THREADS), 1),
        (gate_up.address, base, sums, out.width, padded),
    )


def declared(shapes: KernelShapes) -> tuple[Kernel, ...]:
    """Kernels a model needs."""
    widths = {shapes.intermediate, shapes.shared_width} - {0}
    ways = product({w % CHUNK == 0 for w in widths}, orders(shapes))
    return tuple(make_swiglu(is_aligned, to_image) for is_aligned, to_image in ways)


@device_function
def gated(gate: Any, up: Any) -> Any:
    """``silu(gate) * up``."""
    return gate / (float32(1.0) + math.exp(-gate)) * up


def make_gate_chunk(is_aligned: bool, to_image: bool = False) -> Any:
    """Function that gates one chunk of a column and writes it as part of a linear input.

    Args:
        is_aligned: halves are whole chunks, read sixteen bytes at a time.
        to_image: the order of the linear input.
    """
    load, store = load_chunk if is_aligned else load_ragged_chunk, storer(to_image)

    @device_function
    def gate_chunk(
        gate_up: Any, column: Any, chunk: Any, base: Any, sums: Any, width: Any, padded: Any
    ) -> None:
        row = gate_up + uint64(column) * uint64(width) * uint64(4)
        g0, g1, g2, g3, g4, g5, g6, g7 = load(row, chunk, width)
        half = row + uint64(width) * uint64(2)
        u0, u1, u2, u3, u4, u5, u6, u7 = load(half, chunk, width)
        store(
            base,
            sums,
            uint32(padded),
            column,
            chunk,
            int32(chunk) * int32(8) < padded,
            gated(g0, u0),
            gated(g1, u1),
            gated(g2, u2),
            gated(g3, u3),
            gated(g4, u4),
            gated(g5, u5),
            gated(g6, u6),
            gated(g7, u7),
        )

    return gate_chunk


@cache
def make_swiglu(is_aligned: bool, to_image: bool) -> Kernel:
    """One thread per chunk; grid (columns, blocks of chunks), block (128,).

    Args:
        is_aligned: see `make_gate_chunk`.
        to_image: likewise.
    """
    gate_chunk = make_gate_chunk(is_aligned, to_image)

    def gate_columns(gate_up: int, base: int, sums: int, width: int, padded: int) -> None:
        ptx.release_successor()
        ptx.wait_for_predecessor()
        column = cuda.blockIdx.x
        chunk = cuda.blockIdx.y * _THREADS + cuda.threadIdx.x
        gate_chunk(gate_up, column, chunk, base, sums, width, padded)

    params = (Param.ADDRESS,) * 3 + (Param.I32, Param.I32)
    name = "swiglu" if is_aligned else "swiglu_ragged"
    name += order_suffix(to_image)
    return Kernel(name, gate_columns, params, threads=_THREADS, max_registers=64)
