"""Offset RMS norm on CUDA, written as a linear input.

    y[t, i] = x[t, i] / sqrt(mean over i of x[t, i]^2 + eps) * (1 + w[i])

One block normalises one column and one thread holds one chunk of eight features in registers, so
that x is read once: 2 H bytes in, about 2 H out. Sums are f32 butterflies of a fixed shape that
depends on H alone. The weight is read before the predecessor has ended.
"""

from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.cuda.stream import CudaStream
from ninfer.errors import ShapeError
from ninfer.kernels.cuda.column_image import is_image, order_suffix, storer
from ninfer.kernels.cuda.device_functions import load_chunk, load_ragged_chunk, warp_sum
from ninfer.kernels.cuda.fragments import CHUNK
from ninfer.kernels.cuda.launch import (
    MAX_THREADS,
    WARP,
    KernelShapes,
    block_parts,
    blocks_for,
    orders,
)
from ninfer.tensor import LinearInput, Tensor

MAX_HIDDEN: Final = MAX_THREADS * CHUNK
"""Widest column one block holds."""

_WARPS: Final = MAX_THREADS // WARP


def rms_norm(stream: CudaStream, x: Tensor, weight: Tensor, eps: float, out: LinearInput) -> None:
    """Write ``x / sqrt(mean(x^2) + eps) * (1 + weight)``.

    Raises:
        ShapeError: a column is wider than `MAX_HIDDEN`.
    """
    num_tokens, hidden = x.shape
    if hidden > MAX_HIDDEN:
        raise ShapeError(f"x: columns of {hidden}, the CUDA norm takes up to {MAX_HIDDEN}")
    base, sums, padded = block_parts(out)
    threads = blocks_for(padded // CHUNK, WARP) * WARP
    stream.launch(
        make_rms_norm(hidden % CHUNK == 0, is_image(num_tokens, stream.has_warpgroups)),
        (num_tokens, 1, 1),
        (x.address, weight.address, base, sums, hidden, padded, eps),
        threads=threads,
    )


def declared(shapes: KernelShapes) -> tuple[Kernel, ...]:
    """Kernels a model needs."""
    is_aligned = shapes.hidden % CHUNK == 0
    return tuple(make_rms_norm(is_aligned, to_image) for to_image in orders(shapes))


@device_function
def _squares(a: Any, b: Any, c: Any, d: Any) -> Any:
    return (a * a + b * b) + (c * c + d * d)


@cache
def make_rms_norm(is_aligned: bool, to_image: bool) -> Kernel:
    """One block per column; grid (columns,), block (padded width / 8 rounded up to warps,).

    Args:
        is_aligned: rows are whole chunks, read sixteen bytes at a time.
        to_image: the order of the linear input.
    """
    load, store = load_chunk if is_aligned else load_ragged_chunk, storer(to_image)

    def norm(
        x: int, weight: int, base: int, sums: int, hidden: int, padded: int, eps: float
    ) -> None:
        partial = cuda.shared.array(_WARPS, float32)
        ptx.release_successor()
        chunk = cuda.threadIdx.x
        column = cuda.blockIdx.x
        w0, w1, w2, w3, w4, w5, w6, w7 = load(weight, chunk, hidden)
        ptx.wait_for_predecessor()
        row = x + uint64(column) * uint64(hidden) * uint64(2)
        x0, x1, x2, x3, x4, x5, x6, x7 = load(row, chunk, hidden)
        total = warp_sum(_squares(x0, x1, x2, x3) + _squares(x4, x5, x6, x7))
        lane = chunk & 31
        if lane == 0:
            partial[chunk >> 5] = total
        cuda.syncthreads()
        value = float32(0.0)
        if lane * 32 < cuda.blockDim.x:
            value = partial[lane]
        total = warp_sum(value)
        one = float32(1.0)
        inverse = one / ptx.square_root(total / float32(hidden) + eps)
        store(
            base,
            sums,
            uint32(padded),
            column,
            chunk,
            int32(chunk) * int32(8) < padded,
            x0 * inverse * (one + w0),
            x1 * inverse * (one + w1),
            x2 * inverse * (one + w2),
            x3 * inverse * (one + w3),
            x4 * inverse * (one + w4),
            x5 * inverse * (one + w5),
            x6 * inverse * (one + w6),
            x7 * inverse * (one + w7),
        )

    params = (Param.ADDRESS,) * 4 + (Param.I32, Param.I32, Param.F32)
    name = "rms_norm" if is_aligned else "rms_norm_ragged"
    name += order_suffix(to_image)
    return Kernel(name, norm, params, threads=MAX_THREADS, max_registers=64)
