"""The Gated DeltaNet recurrence on CUDA: one arithmetic for decode, fold and prefill.

    r = S^T k ; u = beta (v - e^g r) ; S' = e^g S + k u^T ; o = S'^T q

A warp owns sixteen neighbouring columns of one head's matrix, whole, in registers: lane
``4 a + b`` holds columns 4b..4b + 3 and an eighth of the key components, so that both sums are a
sum in each lane, even and odd components apart, and a butterfly over eight lanes. Every product and
sum has an explicit rounding. Nothing crosses warps, so that a head is split over as many blocks as
fill the chip, and a sequence of columns needs no barrier but those of its inputs.
"""

import math
from typing import Any, Final

from numba import cuda, float32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.delta_columns import DeltaHeads

COLUMNS: Final = 16
"""Columns of a matrix that one warp owns."""

PARTS: Final = 8
"""Lanes that share a column."""


def num_warps(heads: DeltaHeads) -> int:
    """Warps of a block: 64 columns of a head, or the whole of a small one."""
    return min(4, heads.value_dim // COLUMNS)


def num_slices(heads: DeltaHeads) -> int:
    """Blocks that share a head."""
    return heads.value_dim // (COLUMNS * num_warps(heads))


def make_rows(key_dim: int) -> Any:
    """Functions of one lane's key components.

    Returns:
        ``row_of(part, i)``, ``load_shared(address, part, target)`` and ``load_global``.
    """
    count = key_dim // 8
    is_quad = count % 4 == 0

    @device_function
    def row_of(part: Any, i: Any) -> Any:
        if is_quad:
            return 32 * (i // 4) + 4 * part + i % 4
        return part * count + i

    @device_function
    def load_shared(address: Any, part: Any, target: Any) -> None:
        if is_quad:
            for j in range(count // 4):
                at = address + uint32(part) * uint32(16) + uint32(j * 128)
                a, b, c, d = ptx.shared_f32x4(at)
                target[4 * j], target[4 * j + 1] = a, b
                target[4 * j + 2], target[4 * j + 3] = c, d
        else:
            for i in range(count):
                target[i] = ptx.shared_f32(address + uint32(part * count + i) * uint32(4))

    @device_function
    def load_global(address: Any, part: Any, target: Any) -> None:
        if is_quad:
            for j in range(count // 4):
                at = address + uint64(part) * uint64(16) + uint64(j * 128)
                a, b, c, d = ptx.load_f32x4(at)
                target[4 * j], target[4 * j + 1] = a, b
                target[4 * j + 2], target[4 * j + 3] = c, d
        else:
            for i in range(count):
                target[i] = ptx.load_f32(address + uint64(part * count + i) * uint64(4))

    return row_of, load_shared, load_global


@device_function
def over_parts(a: Any, b: Any, c: Any, d: Any) -> Any:
    """Sums over the eight lanes that share four columns; the four chains overlap."""
    for step in (4, 8, 16):
        e, f = cuda.shfl_xor_sync(0xFFFFFFFF, a, step), cuda.shfl_xor_sync(0xFFFFFFFF, b, step)
        g, h = cuda.shfl_xor_sync(0xFFFFFFFF, c, step), cuda.shfl_xor_sync(0xFFFFFFFF, d, step)
        a, b = ptx.add_f32(a, e), ptx.add_f32(b, f)
        c, d = ptx.add_f32(c, g), ptx.add_f32(d, h)
    return a, b, c, d


def make_step(key_dim: int) -> Any:
    """Functions ``read(s, q)`` and ``apply(s, k, r, v, decay, beta)``.

    ``read`` returns the four columns' products with q; ``apply`` updates the state from its
    products with k and the column's values.
    """
    count = key_dim // 8

    @device_function
    def read(s: Any, q: Any) -> Any:
        a0, a1, a2, a3 = float32(0.0), float32(0.0), float32(0.0), float32(0.0)
        b0, b1, b2, b3 = float32(0.0), float32(0.0), float32(0.0), float32(0.0)
        for i in range(count):
            if i % 2 == 0:
                a0 = ptx.fused_multiply_add(s[4 * i], q[i], a0)
                a1 = ptx.fused_multiply_add(s[4 * i + 1], q[i], a1)
                a2 = ptx.fused_multiply_add(s[4 * i + 2], q[i], a2)
                a3 = ptx.fused_multiply_add(s[4 * i + 3], q[i], a3)
            else:
                b0 = ptx.fused_multiply_add(s[4 * i], q[i], b0)
                b1 = ptx.fused_multiply_add(s[4 * i + 1], q[i], b1)
                b2 = ptx.fused_multiply_add(s[4 * i + 2], q[i], b2)
                b3 = ptx.fused_multiply_add(s[4 * i + 3], q[i], b3)
        return over_parts(
            ptx.add_f32(a0, b0), ptx.add_f32(a1, b1), ptx.add_f32(a2, b2), ptx.add_f32(a3, b3)
        )

    @device_function
    def apply(s: Any, k: Any, r: Any, v: Any, decay: Any, beta: Any) -> None:
        r0, r1, r2, r3 = r
        v0, v1, v2, v3 = v
        u0 = ptx.multiply_f32(beta, ptx.fused_multiply_add(-decay, r0, v0))
        u1 = ptx.multiply_f32(beta, ptx.fused_multiply_add(-decay, r1, v1))
        u2 = ptx.multiply_f32(beta, ptx.fused_multiply_add(-decay, r2, v2))
        u3 = ptx.multiply_f32(beta, ptx.fused_multiply_add(-decay, r3, v3))
        for i in range(count):
            j = 4 * i
            s[j] = ptx.fused_multiply_add(k[i], u0, ptx.multiply_f32(s[j], decay))
            s[j + 1] = ptx.fused_multiply_add(k[i], u1, ptx.multiply_f32(s[j + 1], decay))
            s[j + 2] = ptx.fused_multiply_add(k[i], u2, ptx.multiply_f32(s[j + 2], decay))
            s[j + 3] = ptx.fused_multiply_add(k[i], u3, ptx.multiply_f32(s[j + 3], decay))

    return read, apply


def make_transfer(heads: DeltaHeads) -> Any:
    """Functions ``load(address, part, s)`` and ``store``; the address is of the lane's columns."""
    count, row_bytes = heads.key_dim // 8, 4 * heads.value_dim
    row_of, _, _ = make_rows(heads.key_dim)

    @device_function
    def load(address: Any, part: Any, s: Any) -> None:
        for i in range(count):
            at = address + uint64(row_of(part, i)) * uint64(row_bytes)
            s[4 * i], s[4 * i + 1], s[4 * i + 2], s[4 * i + 3] = ptx.load_f32x4(at)

    @device_function
    def store(address: Any, part: Any, s: Any) -> None:
        for i in range(count):
            at = address + uint64(row_of(part, i)) * uint64(row_bytes)
            ptx.store_f32x4(at, s[4 * i], s[4 * i + 1], s[4 * i + 2], s[4 * i + 3])

    return load, store


def make_fold(heads: DeltaHeads) -> Any:
    """Function that folds the records before ``folded`` into a state."""
    key_dim, value_dim, sharing = heads.key_dim, heads.value_dim, heads.sharing
    num_key_heads, num_value_heads = heads.num_key_heads, heads.num_value_heads
    count = key_dim // 8
    _, _, load_global = make_rows(key_dim)
    read, apply = make_step(key_dim)

    @device_function
    def load_record(
        record_k: int,
        record_v: int,
        record_g: int,
        record_beta: int,
        row: Any,
        head: Any,
        column: Any,
        part: Any,
        k: Any,
    ) -> Any:
        """Fill ``k`` and return the four values, g and beta of a record."""
        at = uint64(row) * uint64(num_key_heads) + uint64(head // sharing)
        load_global(record_k + at * uint64(4 * key_dim), part, k)
        at = uint64(row) * uint64(num_value_heads) + uint64(head)
        v = ptx.load_f32x4(record_v + (at * uint64(value_dim) + uint64(column)) * uint64(4))
        g = ptx.load_f32(record_g + at * uint64(4))
        return v, g, ptx.load_f32(record_beta + at * uint64(4))

    @device_function
    def fold(
        record_k: int,
        record_v: int,
        record_g: int,
        record_beta: int,
        first_record: Any,
        folded: Any,
        head: Any,
        column: Any,
        part: Any,
        s: Any,
    ) -> None:
        k = cuda.local.array(count, float32)
        for c in range(folded):
            row = uint64(first_record) + uint64(c)
            v, g, beta = load_record(
                record_k, record_v, record_g, record_beta, row, head, column, part, k
            )
            apply(s, k, read(s, k), v, float32(math.exp(g)), beta)

    return fold
