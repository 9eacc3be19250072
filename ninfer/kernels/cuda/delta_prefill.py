"""The Gated DeltaNet recurrence over a chunk on CUDA: column by column, state in registers.

Queries, keys, values and gates of sixteen columns at a time stream through shared memory. Serves
heads that have no chunked form, and the fold before a chunked prefill. Traffic: the state once each
way, and the inputs once for each block of a head.
"""

from functools import cache
from typing import Any, Final

from numba import cuda, float32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.delta_columns import DeltaHeads
from ninfer.kernels.cuda.delta_step import (
    COLUMNS,
    make_fold,
    make_rows,
    make_step,
    make_transfer,
    num_warps,
)
from ninfer.kernels.cuda.launch import WARP

_BATCH: Final = 16  # columns in one of the two shared buffers


@cache
def make_prefill_state(  # noqa: PLR0915 - one pass, whose state is a lane's registers
    heads: DeltaHeads,
) -> Kernel:
    """Fold, then advance the state over columns; grid (value heads, slices)."""
    key_dim, value_dim, sharing = heads.key_dim, heads.value_dim, heads.sharing
    num_key_heads, num_value_heads = heads.num_key_heads, heads.num_value_heads
    warps = num_warps(heads)
    threads = warps * WARP
    slice_columns = COLUMNS * warps
    count = key_dim // 8
    size = 4 * count
    key_pieces = key_dim // 4
    value_pieces = slice_columns // 4
    # One buffer of floats: queries, keys, values, gates of a batch.
    keys_at = 4 * _BATCH * key_dim
    values_at = 2 * keys_at
    gates_at = values_at + 4 * _BATCH * slice_columns
    buffer_bytes = gates_at + 8 * _BATCH
    buffer_floats = 2 * buffer_bytes // 4
    load, store = make_transfer(heads)
    fold = make_fold(heads)
    read, apply = make_step(key_dim)
    _, load_shared, _ = make_rows(key_dim)

    @device_function
    def fetch(
        buffer: Any,
        queries: Any,
        keys: Any,
        values: Any,
        gates: Any,
        first: Any,
        num_columns: Any,
        head: Any,
        first_value: Any,
    ) -> None:
        """Start the copies of one batch; columns behind the last are zeros."""
        i = cuda.threadIdx.x
        while i < _BATCH * key_pieces:
            place, piece = i // key_pieces, i % key_pieces
            is_there = uint32(16) if first + place < num_columns else uint32(0)
            column = first + place if first + place < num_columns else 0
            at = uint64(column) * uint64(num_key_heads) + uint64(head // sharing)
            offset = at * uint64(4 * key_dim) + uint64(piece) * uint64(16)
            target = buffer + uint32(i) * uint32(16)
            ptx.copy_async_16(target, queries + offset, is_there)
            ptx.copy_async_16(target + uint32(keys_at), keys + offset, is_there)
            i += threads
        i = cuda.threadIdx.x
        while i < _BATCH * value_pieces:
            place, piece = i // value_pieces, i % value_pieces
            is_there = uint32(16) if first + place < num_columns else uint32(0)
            column = first + place if first + place < num_columns else 0
            at = uint64(column) * uint64(num_value_heads) + uint64(head)
            offset = (at * uint64(value_dim) + uint64(first_value + piece * 4)) * uint64(4)
            target = buffer + uint32(values_at) + uint32(i) * uint32(16)
            ptx.copy_async_16(target, values + offset, is_there)
            i += threads
        if cuda.threadIdx.x < _BATCH:
            place = cuda.threadIdx.x
            is_there = uint32(8) if first + place < num_columns else uint32(0)
            column = first + place if first + place < num_columns else 0
            at = uint64(column) * uint64(num_value_heads) + uint64(head)
            target = buffer + uint32(gates_at) + uint32(place) * uint32(8)
            ptx.copy_async_8(target, gates + at * uint64(8), is_there)
        ptx.close_copies()

    def prefill_state(  # noqa: PLR0915 - as above
        queries: int,
        keys: int,
        values: int,
        gates: int,
        matrices: int,
        record_k: int,
        record_v: int,
        record_g: int,
        record_beta: int,
        slots: int,
        folds: int,
        outputs: int,
        num_columns: int,
        num_records: int,
        is_first: int,
    ) -> None:
        buffers = cuda.shared.array(buffer_floats, float32, alignment=16)
        ptx.release_successor()
        ptx.wait_for_predecessor()
        base = ptx.shared_address(buffers)
        head = cuda.blockIdx.x
        first_value = cuda.blockIdx.y * slice_columns
        lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        part = lane >> 2
        inside = warp * COLUMNS + (lane & 3) * 4
        column = first_value + inside
        slot = ptx.load_i32(slots)
        folded = ptx.load_i32(folds)
        if num_columns == 0 and folded == 0:
            return
        fetch(base, queries, keys, values, gates, 0, num_columns, head, first_value)
        s = cuda.local.array(size, float32)
        matrix = uint64(slot) * uint64(num_value_heads) + uint64(head)
        address = matrices + (matrix * uint64(key_dim * value_dim) + uint64(column)) * uint64(4)
        load(address, part, s)
        if is_first != 0:
            fold(
                record_k,
                record_v,
                record_g,
                record_beta,
                uint64(slot) * uint64(num_records),
                folded,
                head,
                column,
                part,
                s,
            )
        k = cuda.local.array(count, float32)
        q = cuda.local.array(count, float32)
        output = outputs + uint64(head * value_dim + column) * uint64(4)
        first = 0
        buffer = base
        while first < num_columns:
            other = base + uint32(buffer_bytes) if buffer == base else base
            fetch(
                other,
                queries,
                keys,
                values,
                gates,
                first + _BATCH,
                num_columns,
                head,
                first_value,
            )
            ptx.wait_copies_1()
            cuda.syncthreads()
            stop = min(_BATCH, num_columns - first)
            for place in range(stop):
                at = buffer + uint32(place) * uint32(4 * key_dim)
                load_shared(at + uint32(keys_at), part, k)
                v = ptx.shared_f32x4(
                    buffer
                    + uint32(values_at)
                    + uint32(place) * uint32(4 * slice_columns)
                    + uint32(inside) * uint32(4)
                )
                decay, beta = ptx.shared_f32x2(
                    buffer + uint32(gates_at) + uint32(place) * uint32(8)
                )
                apply(s, k, read(s, k), v, decay, beta)
                load_shared(at, part, q)
                o0, o1, o2, o3 = read(s, q)
                if part == 0:
                    ptx.store_f32x4(output, o0, o1, o2, o3)
                    output += uint64(4 * num_value_heads * value_dim)
            cuda.syncthreads()
            buffer = other
            first += _BATCH
        ptx.wait_copies_0()
        store(address, part, s)

    params = (Param.ADDRESS,) * 12 + (Param.I32,) * 3
    name = f"delta_prefill_{heads.digits}"
    return Kernel(name, prefill_state, params, threads=threads, max_registers=224)
