"""The Gated DeltaNet recurrence on CUDA: one arithmetic for decode, fold and prefill.

    r = S^T k ; u = beta (v - e^g r) ; S' = e^g S + k u^T ; o = S'^T q

A warp owns eight neighbouring columns of one head's matrix, whole, in registers: lane ``4 a + b``
holds columns 2b, 2b + 1 and an eighth of the key components, so that both sums are a sum in each
lane, even and odd components apart, and a butterfly over eight lanes. Every product and sum has an
explicit rounding. Nothing crosses warps, so that a head is split over as many blocks as fill the
chip, and a sequence of columns needs no barrier but those of its inputs.

Decode reads the state once and, where it folds, writes it once: 128 KB a head and row of 128 x 128.
It stores what the next fold needs in scratch memory, because other blocks still read the records.
Prefill streams q, k, v and gates of sixteen columns at a time through shared memory.
"""

import math
from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.delta_columns import (
    DeltaHeads,
    convolved_pair,
    gate_input,
    log_decay,
    make_unit_head,
    sigmoid,
)
from ninfer.kernels.cuda.launch import WARP

COLUMNS: Final = 8
"""Columns of a matrix that one warp owns."""

_BATCH: Final = 16  # prefill columns in one of the two shared buffers


def num_warps(heads: DeltaHeads) -> int:
    """Warps of a block: 32 columns of a head, or the whole of a small one."""
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
def over_parts(value: Any) -> Any:
    """Sum over the eight lanes that share a column."""
    value = ptx.add_f32(value, cuda.shfl_xor_sync(0xFFFFFFFF, value, 4))
    value = ptx.add_f32(value, cuda.shfl_xor_sync(0xFFFFFFFF, value, 8))
    return ptx.add_f32(value, cuda.shfl_xor_sync(0xFFFFFFFF, value, 16))


def make_step(key_dim: int) -> Any:
    """Functions ``update(s, k, v0, v1, decay, beta)``, in place, and ``read(s, q) -> (o0, o1)``."""
    count = key_dim // 8

    @device_function
    def read(s: Any, q: Any) -> Any:
        a0, a1, b0, b1 = float32(0.0), float32(0.0), float32(0.0), float32(0.0)
        for i in range(count):
            if i % 2 == 0:
                a0 = ptx.fused_multiply_add(s[2 * i], q[i], a0)
                a1 = ptx.fused_multiply_add(s[2 * i + 1], q[i], a1)
            else:
                b0 = ptx.fused_multiply_add(s[2 * i], q[i], b0)
                b1 = ptx.fused_multiply_add(s[2 * i + 1], q[i], b1)
        return over_parts(ptx.add_f32(a0, b0)), over_parts(ptx.add_f32(a1, b1))

    @device_function
    def update(s: Any, k: Any, v0: Any, v1: Any, decay: Any, beta: Any) -> None:
        r0, r1 = read(s, k)
        u0 = ptx.multiply_f32(beta, ptx.fused_multiply_add(-decay, r0, v0))
        u1 = ptx.multiply_f32(beta, ptx.fused_multiply_add(-decay, r1, v1))
        for i in range(count):
            s[2 * i] = ptx.fused_multiply_add(k[i], u0, ptx.multiply_f32(s[2 * i], decay))
            s[2 * i + 1] = ptx.fused_multiply_add(k[i], u1, ptx.multiply_f32(s[2 * i + 1], decay))

    return update, read


def make_transfer(heads: DeltaHeads) -> Any:
    """Functions ``load(address, part, s)`` and ``store``; the address is of the lane's columns."""
    count, row_bytes = heads.key_dim // 8, 4 * heads.value_dim
    row_of, _, _ = make_rows(heads.key_dim)

    @device_function
    def load(address: Any, part: Any, s: Any) -> None:
        for i in range(count):
            row = row_of(part, i)
            s[2 * i], s[2 * i + 1] = ptx.load_f32x2(address + uint64(row) * uint64(row_bytes))

    @device_function
    def store(address: Any, part: Any, s: Any) -> None:
        for i in range(count):
            row = row_of(part, i)
            ptx.store_f32x2(address + uint64(row) * uint64(row_bytes), s[2 * i], s[2 * i + 1])

    return load, store


def make_fold(heads: DeltaHeads) -> Any:
    """Function that folds the first records of a slot into a lane's part of one head."""
    key_dim, value_dim, sharing = heads.key_dim, heads.value_dim, heads.sharing
    num_key_heads, num_value_heads = heads.num_key_heads, heads.num_value_heads
    count = key_dim // 8
    _, _, load_global = make_rows(key_dim)
    update, _ = make_step(key_dim)

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
            at = row * uint64(num_key_heads) + uint64(head // sharing)
            load_global(record_k + at * uint64(4 * key_dim), part, k)
            at = row * uint64(num_value_heads) + uint64(head)
            v0, v1 = ptx.load_f32x2(
                record_v + (at * uint64(value_dim) + uint64(column)) * uint64(4)
            )
            g = ptx.load_f32(record_g + at * uint64(4))
            beta = ptx.load_f32(record_beta + at * uint64(4))
            update(s, k, v0, v1, float32(math.exp(g)), beta)

    return fold


@cache
def make_decode_state(heads: DeltaHeads, is_wide: bool) -> Kernel:
    """Fold, then read one column; grid (rows, value heads, slices).

    Args:
        heads: of the mixer.
        is_wide: decay inputs are f32.
    """
    key_dim, value_dim, sharing = heads.key_dim, heads.value_dim, heads.sharing
    key_width, value_width = heads.key_width, heads.value_width
    num_value_heads = heads.num_value_heads
    channel_bytes = 2 * heads.channels
    row_bytes = channel_bytes + 2 * value_width
    warps = num_warps(heads)
    slice_columns = COLUMNS * warps
    count = key_dim // 8
    size = 2 * count
    pairs = -(-key_dim // (2 * WARP))
    head_size = 2 * pairs
    query_length = key_dim**-0.5
    double_key = 2 * key_dim
    unit_head = make_unit_head(key_dim)
    load, store = make_transfer(heads)
    fold = make_fold(heads)
    update, read = make_step(key_dim)
    _, load_shared, _ = make_rows(key_dim)

    @device_function
    def make_inputs(
        task: Any,
        projected: Any,
        ab: Any,
        taps: Any,
        a_log: Any,
        dt_bias: Any,
        window: Any,
        records: Any,
        folded: Any,
        row: Any,
        head: Any,
        first_value: Any,
        lane: Any,
        unit: Any,
        value: Any,
        gate: Any,
    ) -> None:
        """Tasks: 0 the query, 1 the key, 2 the slice's values, 3 the gates."""
        if task < 2:
            values = cuda.local.array(head_size, float32)
            length = float32(query_length) if task == 0 else float32(1.0)
            unit_head(
                projected,
                window,
                records,
                folded,
                row_bytes,
                channel_bytes,
                0,
                taps,
                task * key_width + (head // sharing) * key_dim,
                length,
                lane,
                values,
            )
            for i in range(pairs):
                at = i * 64 + lane * 2
                if at < key_dim:
                    unit[task * key_dim + at] = values[2 * i]
                    unit[task * key_dim + at + 1] = values[2 * i + 1]
        elif task == 2:
            if lane * 2 < slice_columns:
                channel = 2 * key_width + head * value_dim + first_value + lane * 2
                first, second = convolved_pair(
                    projected,
                    window,
                    records,
                    folded,
                    row_bytes,
                    channel_bytes,
                    0,
                    taps,
                    channel,
                )
                value[lane * 2], value[lane * 2 + 1] = first, second
        elif lane == 0:
            offset = uint64(head) * uint64(4)
            at = int32(row) * int32(2 * num_value_heads) + int32(head)
            gate[0] = log_decay(
                gate_input(ab, at, is_wide),
                ptx.load_f32(a_log + offset),
                ptx.load_f32(dt_bias + offset),
            )
            gate[1] = sigmoid(gate_input(ab, at + int32(num_value_heads), is_wide))

    def decode_state(
        projected: int,
        ab: int,
        taps: int,
        a_log: int,
        dt_bias: int,
        matrices: int,
        windows: int,
        record_x: int,
        record_k: int,
        record_v: int,
        record_g: int,
        record_beta: int,
        slots: int,
        folds: int,
        keys: int,
        values: int,
        gates: int,
        outputs: int,
        num_records: int,
    ) -> None:
        unit = cuda.shared.array(double_key, float32, alignment=16)
        value = cuda.shared.array(slice_columns, float32)
        gate = cuda.shared.array(2, float32)
        ptx.release_successor()
        ptx.wait_for_predecessor()
        row, head = cuda.blockIdx.x, cuda.blockIdx.y
        first_value = cuda.blockIdx.z * slice_columns
        lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        part = lane >> 2
        column = first_value + warp * COLUMNS + (lane & 3) * 2
        slot = ptx.load_i32(slots + uint64(row) * uint64(4))
        folded = ptx.load_i32(folds + uint64(row) * uint64(4))
        s = cuda.local.array(size, float32)
        matrix = uint64(slot) * uint64(num_value_heads) + uint64(head)
        address = matrices + (matrix * uint64(key_dim * value_dim) + uint64(column)) * uint64(4)
        load(address, part, s)
        line = projected + uint64(row) * uint64(row_bytes)
        first_record = uint64(slot) * uint64(num_records)
        window = windows + uint64(slot) * uint64(3 * channel_bytes)
        records = record_x + first_record * uint64(channel_bytes)
        task = warp
        while task < 4:
            make_inputs(
                task,
                line,
                ab,
                taps,
                a_log,
                dt_bias,
                window,
                records,
                folded,
                row,
                head,
                first_value,
                lane,
                unit,
                value,
                gate,
            )
            task += warps
        fold(
            record_k,
            record_v,
            record_g,
            record_beta,
            first_record,
            folded,
            head,
            column,
            part,
            s,
        )
        if folded > 0:
            store(address, part, s)
        cuda.syncthreads()
        k = cuda.local.array(count, float32)
        base = ptx.shared_address(unit)
        load_shared(base + uint32(4 * key_dim), part, k)
        at = warp * COLUMNS + (lane & 3) * 2
        v0, v1 = value[at], value[at + 1]
        update(s, k, v0, v1, float32(math.exp(gate[0])), gate[1])
        load_shared(base, part, k)
        o0, o1 = read(s, k)
        line_of_head = uint64(row) * uint64(num_value_heads) + uint64(head)
        if part == 0:
            at64 = (line_of_head * uint64(value_dim) + uint64(column)) * uint64(4)
            ptx.store_f32x2(outputs + at64, o0, o1)
            ptx.store_f32x2(values + at64, v0, v1)
        if cuda.blockIdx.z == 0:
            if cuda.threadIdx.x == 0:
                ptx.store_f32x2(gates + line_of_head * uint64(8), gate[0], gate[1])
            if head % sharing == 0:
                i = cuda.threadIdx.x
                while i < key_dim:
                    at64 = uint64(row) * uint64(key_width) + uint64(head // sharing * key_dim + i)
                    ptx.store_f32(keys + at64 * uint64(4), unit[key_dim + i])
                    i += warps * 32

    params = (Param.ADDRESS,) * 18 + (Param.I32,)
    name = f"delta_decode_{heads.digits}_{'f32' if is_wide else 'bf16'}"
    return Kernel(name, decode_state, params, threads=warps * WARP, max_registers=128)


@cache
def make_prefill_state(heads: DeltaHeads) -> Kernel:
    """Fold, then advance the state over columns; grid (value heads, slices)."""
    key_dim, value_dim, sharing = heads.key_dim, heads.value_dim, heads.sharing
    num_key_heads, num_value_heads = heads.num_key_heads, heads.num_value_heads
    warps = num_warps(heads)
    threads = warps * WARP
    slice_columns = COLUMNS * warps
    count = key_dim // 8
    size = 2 * count
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
    update, read = make_step(key_dim)
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

    def prefill_state(
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
        inside = warp * COLUMNS + (lane & 3) * 2
        column = first_value + inside
        fetch(base, queries, keys, values, gates, 0, num_columns, head, first_value)
        slot = ptx.load_i32(slots)
        folded = ptx.load_i32(folds)
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
                load_shared(at, part, q)
                v0, v1 = ptx.shared_f32x2(
                    buffer
                    + uint32(values_at)
                    + uint32(place) * uint32(4 * slice_columns)
                    + uint32(inside) * uint32(4)
                )
                decay, beta = ptx.shared_f32x2(
                    buffer + uint32(gates_at) + uint32(place) * uint32(8)
                )
                update(s, k, v0, v1, decay, beta)
                o0, o1 = read(s, q)
                if part == 0:
                    line = uint64(first + place) * uint64(num_value_heads) + uint64(head)
                    at64 = (line * uint64(value_dim) + uint64(column)) * uint64(4)
                    ptx.store_f32x2(outputs + at64, o0, o1)
            cuda.syncthreads()
            buffer = other
            first += _BATCH
        ptx.wait_copies_0()
        store(address, part, s)

    params = (Param.ADDRESS,) * 12 + (Param.I32,) * 3
    name = f"delta_prefill_{heads.digits}"
    return Kernel(name, prefill_state, params, threads=threads, max_registers=168)
