"""Gated norm of the Gated DeltaNet mixer on CUDA: from outputs to a linear input.

    y = norm * (o / sqrt(mean over the head of o^2 + eps)) * (z * sigmoid(z))

One lane holds a chunk of eight features, the lanes of a head sum their squares by a butterfly.
Traffic of a column is o once (f32), z once (bf16) and the output.
"""

from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.column_image import order_suffix, storer
from ninfer.kernels.cuda.delta_columns import DeltaHeads, sigmoid
from ninfer.kernels.cuda.device_functions import load_chunk
from ninfer.kernels.cuda.fragments import CHUNK, padded_width

THREADS: Final = 128


def make_gated_chunk(heads: DeltaHeads, to_image: bool = False) -> Any:
    """Function that normalises and gates one chunk of a column in every lane of a warp."""
    value_dim, value_width = heads.value_dim, heads.value_width
    row_bytes = 2 * (heads.channels + value_width)
    gate_bytes = 2 * heads.channels
    head_chunks = value_dim // CHUNK
    chunks = value_width // CHUNK
    padded_chunks = padded_width(value_width) // CHUNK
    store = storer(to_image)

    @device_function
    def head_sum(value: Any) -> Any:
        if head_chunks >= 32:
            value = value + cuda.shfl_xor_sync(0xFFFFFFFF, value, 16)
        if head_chunks >= 16:
            value = value + cuda.shfl_xor_sync(0xFFFFFFFF, value, 8)
        if head_chunks >= 8:
            value = value + cuda.shfl_xor_sync(0xFFFFFFFF, value, 4)
        if head_chunks >= 4:
            value = value + cuda.shfl_xor_sync(0xFFFFFFFF, value, 2)
        if head_chunks >= 2:
            value = value + cuda.shfl_xor_sync(0xFFFFFFFF, value, 1)
        return value

    @device_function
    def gated(o: Any, inverse: Any, w: Any, z: Any) -> Any:
        return (w * (o * inverse)) * (z * sigmoid(z))

    @device_function
    def gated_chunk(
        outputs: int,
        norm: int,
        projected: int,
        base: int,
        sums: int,
        column: Any,
        chunk: Any,
        eps: Any,
    ) -> None:
        """``outputs`` and ``projected`` are those of column 0 of ``base``."""
        a, b, c, d = float32(0.0), float32(0.0), float32(0.0), float32(0.0)
        e, f, g, h = float32(0.0), float32(0.0), float32(0.0), float32(0.0)
        if chunk < chunks:
            at = outputs + (uint64(column) * uint64(value_width) + uint64(chunk * 8)) * uint64(4)
            a, b, c, d = ptx.load_f32x4(at)
            e, f, g, h = ptx.load_f32x4(at + uint64(16))
        total = head_sum(((a * a + b * b) + (c * c + d * d)) + ((e * e + f * f) + (g * g + h * h)))
        inverse = float32(1.0) / ptx.square_root(total / float32(value_dim) + eps)
        gates = projected + uint64(column) * uint64(row_bytes) + uint64(gate_bytes)
        z0, z1, z2, z3, z4, z5, z6, z7 = load_chunk(gates, chunk, value_width)
        w0, w1, w2, w3, w4, w5, w6, w7 = load_chunk(norm, chunk % head_chunks, value_dim)
        store(
            base,
            sums,
            uint32(padded_chunks * 8),
            column,
            chunk,
            chunk < padded_chunks,
            gated(a, inverse, w0, z0),
            gated(b, inverse, w1, z1),
            gated(c, inverse, w2, z2),
            gated(d, inverse, w3, z3),
            gated(e, inverse, w4, z4),
            gated(f, inverse, w5, z5),
            gated(g, inverse, w6, z6),
            gated(h, inverse, w7, z7),
        )

    return gated_chunk


@cache
def make_gated_norm(heads: DeltaHeads, to_image: bool) -> Kernel:
    """Grid (columns, blocks of chunks), block (128,)."""
    gated_chunk = make_gated_chunk(heads, to_image)
    value_width = heads.value_width

    def gated_norm(
        outputs: int,
        norm: int,
        projected: int,
        base: int,
        sums: int,
        first_column: int,
        eps: float,
    ) -> None:
        ptx.release_successor()
        ptx.wait_for_predecessor()
        column = int32(cuda.blockIdx.x) + int32(first_column)
        chunk = cuda.blockIdx.y * THREADS + cuda.threadIdx.x
        skipped = uint64(first_column) * uint64(4 * value_width)
        gated_chunk(outputs - skipped, norm, projected, base, sums, column, chunk, eps)

    params = (Param.ADDRESS,) * 5 + (Param.I32, Param.F32)
    name = f"delta_norm_{heads.digits}{order_suffix(to_image)}"
    return Kernel(name, gated_norm, params, threads=THREADS, max_registers=64)
