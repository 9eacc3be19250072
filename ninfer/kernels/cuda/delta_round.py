"""One round of the Gated DeltaNet recurrence on CUDA: fold, then read one column of each row.

    y = norm * (o / sqrt(mean over the head of o^2 + eps)) * (z * sigmoid(z))

A block owns one head of one row. The state is read once and, where something is folded, written
once: 128 KB of 128 x 128. Convolution, unit heads and gates of the column are made in the same
kernel, one task a warp, and so are the output and what the next fold needs. Blocks that share a key
head read its part of the window and of the records; the one of them that has read last, by a
counter, writes that part. Heads of whole groups of 64 write the linear input; others leave their
outputs to `delta_output`. A little over 400 lines: the steps of one kernel share its registers and
shared memory, and are read in one go.
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
    history_rows,
    log_decay,
    make_unit_head,
    move_window,
    sigmoid,
)
from ninfer.kernels.cuda.delta_step import (
    COLUMNS,
    make_fold,
    make_rows,
    make_step,
    make_transfer,
)
from ninfer.kernels.cuda.device_functions import lower_bf16, upper_bf16
from ninfer.kernels.cuda.fragments import CHUNK, GROUP, padded_width, store_chunk
from ninfer.kernels.cuda.launch import WARP

EARLY_BLOCKS: Final = 198
"""Blocks that fold before they make their inputs: most of what an H200 holds at once."""


def is_direct(heads: DeltaHeads) -> bool:
    """Whether the decode kernel writes the linear input itself."""
    return heads.value_dim % GROUP == 0


def make_make_inputs(heads: DeltaHeads, is_wide: bool) -> Any:
    """Function that does one of `num_tasks` tasks in the calling warp, into shared arrays."""
    key_dim, value_dim, sharing = heads.key_dim, heads.value_dim, heads.sharing
    key_width, num_value_heads = heads.key_width, heads.num_value_heads
    channel_bytes = 2 * heads.channels
    pairs = -(-key_dim // (2 * WARP))
    head_size = 2 * pairs
    query_length = key_dim**-0.5
    unit_head = make_unit_head(key_dim)
    value_tasks = -(-value_dim // (2 * WARP))

    @device_function
    def make_inputs(
        task: Any,
        projected: Any,
        rows: Any,
        ab: Any,
        taps: Any,
        a_log: Any,
        dt_bias: Any,
        norm: Any,
        row: Any,
        head: Any,
        lane: Any,
        unit: Any,
        value: Any,
        factor: Any,
        gate: Any,
    ) -> None:
        """Tasks: 0 the query, 1 the key, 2 the gates; then values and factors of outputs."""
        if task < 2:
            values = cuda.local.array(head_size, float32)
            length = float32(query_length) if task == 0 else float32(1.0)
            first = task * key_width + (head // sharing) * key_dim
            unit_head(rows, taps, channel_bytes, first, length, lane, values)
            for i in range(pairs):
                at = i * 64 + lane * 2
                if at < key_dim:
                    unit[task * key_dim + at] = values[2 * i]
                    unit[task * key_dim + at + 1] = values[2 * i + 1]
        elif task == 2:
            if lane == 0:
                offset = uint64(head) * uint64(4)
                at = int32(row) * int32(2 * num_value_heads) + int32(head)
                gate[0] = log_decay(
                    gate_input(ab, at, is_wide),
                    ptx.load_f32(a_log + offset),
                    ptx.load_f32(dt_bias + offset),
                )
                gate[1] = sigmoid(gate_input(ab, at + int32(num_value_heads), is_wide))
        elif task < 3 + value_tasks:
            at = (task - 3) * 64 + lane * 2
            if at < value_dim:
                channel = 2 * key_width + head * value_dim + at
                first, second = convolved_pair(rows, taps, channel_bytes, channel)
                value[at], value[at + 1] = first, second
        else:
            at = (task - 3 - value_tasks) * 64 + lane * 2
            if at < value_dim:
                z = ptx.load_u32(
                    projected + uint64(channel_bytes) + uint64(head * value_dim + at) * uint64(2)
                )
                w = ptx.load_u32(norm + uint64(at) * uint64(2))
                z0, z1 = lower_bf16(z), upper_bf16(z)
                factor[at] = lower_bf16(w) * (z0 * sigmoid(z0))
                factor[at + 1] = upper_bf16(w) * (z1 * sigmoid(z1))

    return make_inputs


def make_keep_inputs(heads: DeltaHeads) -> Any:
    """Functions that bring window and first record behind the fold: own values, shared heads."""
    key_dim, value_dim, sharing = heads.key_dim, heads.value_dim, heads.sharing
    key_width, value_width = heads.key_width, heads.value_width
    num_value_heads = heads.num_value_heads
    channel_bytes = 2 * heads.channels
    row_bytes = channel_bytes + 2 * value_width

    @device_function
    def keep_channel(line: Any, window: Any, records: Any, folded: Any, channel: Any) -> None:
        move_window(line, window, records, folded, row_bytes, channel_bytes, 0, channel)
        offset = uint64(channel) * uint64(2)
        ptx.store_u16(records + offset, ptx.load_u16(line + offset))

    @device_function
    def keep_own(
        line: Any,
        window: Any,
        records: Any,
        folded: Any,
        record_v: Any,
        record_g: Any,
        record_beta: Any,
        first_record: Any,
        head: Any,
        value: Any,
        gate: Any,
    ) -> None:
        i = cuda.threadIdx.x
        while i < value_dim:
            keep_channel(line, window, records, folded, 2 * key_width + head * value_dim + i)
            at = first_record * uint64(value_width) + uint64(head * value_dim + i)
            ptx.store_f32(record_v + at * uint64(4), value[i])
            i += cuda.blockDim.x
        if cuda.threadIdx.x == 0:
            at = first_record * uint64(num_value_heads) + uint64(head)
            ptx.store_f32(record_g + at * uint64(4), gate[0])
            ptx.store_f32(record_beta + at * uint64(4), gate[1])

    @device_function
    def keep_shared(
        line: Any,
        window: Any,
        records: Any,
        folded: Any,
        record_k: Any,
        first_record: Any,
        head: Any,
        unit: Any,
    ) -> None:
        first = head // sharing * key_dim
        i = cuda.threadIdx.x
        while i < key_dim:
            keep_channel(line, window, records, folded, first + i)
            keep_channel(line, window, records, folded, key_width + first + i)
            at = first_record * uint64(key_width) + uint64(first + i)
            ptx.store_f32(record_k + at * uint64(4), unit[key_dim + i])
            i += cuda.blockDim.x

    return keep_own, keep_shared


def make_write(heads: DeltaHeads) -> Any:
    """Function with which one warp normalises a head's outputs and writes a linear input."""
    value_dim, num_value_heads = heads.value_dim, heads.num_value_heads
    chunks = value_dim // CHUNK
    padded = padded_width(heads.value_width)

    @device_function
    def write(
        row: Any, factor: Any, base: Any, sums: Any, column: Any, head: Any, lane: Any, eps: Any
    ) -> None:
        """``row`` and ``factor`` are shared addresses."""
        x = cuda.local.array(8, float32)
        total = float32(0.0)
        offset = uint32(lane) * uint32(32)
        for i in range(8):
            x[i] = float32(0.0)
        if lane < chunks:
            x[0], x[1], x[2], x[3] = ptx.shared_f32x4(row + offset)
            x[4], x[5], x[6], x[7] = ptx.shared_f32x4(row + offset + uint32(16))
        for i in range(8):
            total += x[i] * x[i]
        for step in (16, 8, 4, 2, 1):
            total += cuda.shfl_xor_sync(0xFFFFFFFF, total, step)
        inverse = float32(1.0) / ptx.square_root(total / float32(value_dim) + eps)
        if lane < chunks:
            a, b, c, d = ptx.shared_f32x4(factor + offset)
            e, f, g, h = ptx.shared_f32x4(factor + offset + uint32(16))
            x[0], x[1] = a * (x[0] * inverse), b * (x[1] * inverse)
            x[2], x[3] = c * (x[2] * inverse), d * (x[3] * inverse)
            x[4], x[5] = e * (x[4] * inverse), f * (x[5] * inverse)
            x[6], x[7] = g * (x[6] * inverse), h * (x[7] * inverse)
        chunk = int32(head * chunks + lane)
        is_inside = lane < chunks or (head == num_value_heads - 1 and chunk * 8 < padded)
        store_chunk(
            base,
            sums,
            uint32(padded),
            column,
            chunk,
            is_inside,
            x[0],
            x[1],
            x[2],
            x[3],
            x[4],
            x[5],
            x[6],
            x[7],
        )

    return write


@cache
def make_decode(  # noqa: PLR0915 - one pass, whose state is a lane's registers
    heads: DeltaHeads, is_wide: bool, early_blocks: int = EARLY_BLOCKS
) -> Kernel:
    """Fold, then read and record one column; grid (value heads, rows).

    The fold does not wait for the predecessor: state and records are those of the round before,
    which ended before the first kernel of this one began, and nothing else of this round reads or
    writes them. Blocks that start later make their inputs first.

    Args:
        heads: of the mixer.
        is_wide: decay inputs are f32.
        early_blocks: that fold before they make their inputs.
    """
    key_dim, value_dim, sharing = heads.key_dim, heads.value_dim, heads.sharing
    num_key_heads, num_value_heads = heads.num_key_heads, heads.num_value_heads
    channel_bytes = 2 * heads.channels
    row_bytes = channel_bytes + 2 * heads.value_width
    warps = value_dim // COLUMNS
    writes = is_direct(heads)
    value_tasks = -(-value_dim // (2 * WARP))
    num_tasks = 3 + 2 * value_tasks if writes else 3 + value_tasks
    count = key_dim // 8
    size = 4 * count
    double_key = 2 * key_dim
    make_inputs = make_make_inputs(heads, is_wide)
    keep_own, keep_shared = make_keep_inputs(heads)
    write = make_write(heads)
    load, store = make_transfer(heads)
    fold = make_fold(heads)
    read, apply = make_step(key_dim)
    _, load_shared, _ = make_rows(key_dim)

    def decode(  # noqa: PLR0915 - as above
        projected: int,
        ab: int,
        taps: int,
        a_log: int,
        dt_bias: int,
        norm: int,
        matrices: int,
        windows: int,
        record_x: int,
        record_k: int,
        record_v: int,
        record_g: int,
        record_beta: int,
        slots: int,
        folds: int,
        outputs: int,
        base: int,
        sums: int,
        counters: int,
        num_records: int,
        eps: float,
    ) -> None:
        unit = cuda.shared.array(double_key, float32, alignment=16)
        value = cuda.shared.array(value_dim, float32, alignment=16)
        factor = cuda.shared.array(value_dim, float32, alignment=16)
        out_row = cuda.shared.array(value_dim, float32, alignment=16)
        gate = cuda.shared.array(2, float32)
        arrived = cuda.shared.array(1, uint32)
        ptx.release_successor()
        head, row = cuda.blockIdx.x, cuda.blockIdx.y
        lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        part = lane >> 2
        column = warp * COLUMNS + (lane & 3) * 4
        slot = ptx.load_i32(slots + uint64(row) * uint64(4))
        folded = ptx.load_i32(folds + uint64(row) * uint64(4))
        s = cuda.local.array(size, float32)
        matrix = uint64(slot) * uint64(num_value_heads) + uint64(head)
        address = matrices + (matrix * uint64(key_dim * value_dim) + uint64(column)) * uint64(4)
        first_record = uint64(slot) * uint64(num_records)
        load(address, part, s)
        line = projected + uint64(row) * uint64(row_bytes)
        window = windows + uint64(slot) * uint64(3 * channel_bytes)
        records = record_x + first_record * uint64(channel_bytes)
        rows = history_rows(line, window, records, folded, row_bytes, channel_bytes, 0)
        is_late = head + num_value_heads * row >= early_blocks
        for step in range(2):
            if (step == 0) == is_late:
                ptx.wait_for_predecessor()
                task = warp
                while task < num_tasks:
                    make_inputs(
                        task,
                        line,
                        rows,
                        ab,
                        taps,
                        a_log,
                        dt_bias,
                        norm,
                        row,
                        head,
                        lane,
                        unit,
                        value,
                        factor,
                        gate,
                    )
                    task += warps
            elif folded > 0:
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
                store(address, part, s)
        cuda.syncthreads()
        # What is shared has been read by this block; the last of its blocks will write it.
        counter = counters + uint64(row * num_key_heads + head // sharing) * uint64(4)
        if cuda.threadIdx.x == 0:
            arrived[0] = ptx.fetch_add_release_u32(counter, uint32(1))
        keep_own(
            line,
            window,
            records,
            folded,
            record_v,
            record_g,
            record_beta,
            first_record,
            head,
            value,
            gate,
        )
        k = cuda.local.array(count, float32)
        at = ptx.shared_address(unit)
        load_shared(at + uint32(4 * key_dim), part, k)
        v = ptx.shared_f32x4(ptx.shared_address(value) + uint32(column) * uint32(4))
        apply(s, k, read(s, k), v, float32(math.exp(gate[0])), gate[1])
        load_shared(at, part, k)
        o0, o1, o2, o3 = read(s, k)
        if part == 0:
            if writes:
                out_row[column], out_row[column + 1] = o0, o1
                out_row[column + 2], out_row[column + 3] = o2, o3
            else:
                at64 = uint64(row) * uint64(num_value_heads) + uint64(head)
                at64 = outputs + (at64 * uint64(value_dim) + uint64(column)) * uint64(4)
                ptx.store_f32x4(at64, o0, o1, o2, o3)
        cuda.syncthreads()
        if writes and warp == 0:
            write(
                ptx.shared_address(out_row),
                ptx.shared_address(factor),
                base,
                sums,
                row,
                head,
                lane,
                eps,
            )
        if arrived[0] == uint32(sharing - 1):
            if cuda.threadIdx.x == 0:
                ptx.store_u32(counter, uint32(0))
            keep_shared(line, window, records, folded, record_k, first_record, head, unit)

    params = (Param.ADDRESS,) * 19 + (Param.I32, Param.F32)
    name = f"delta_decode_{heads.digits}_{'f32' if is_wide else 'bf16'}"
    return Kernel(
        name,
        decode,
        params,
        threads=warps * WARP,
        max_registers=128,
        min_blocks=max(1, 16 // warps),
    )
