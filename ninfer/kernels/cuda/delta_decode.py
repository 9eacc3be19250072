"""One round of the Gated DeltaNet recurrence on CUDA: fold, then read one column of each row.

The state is read once and, where something is folded, written once: 128 KB a head and row of
128 x 128. Convolution, unit heads and gates of the column are made in the same kernel, again in
each block of a head. What the next fold needs is stored in scratch memory, because other blocks
still read the records; `delta_output` moves it.
"""

import math
from functools import cache
from typing import Any

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
from ninfer.kernels.cuda.delta_step import (
    COLUMNS,
    make_fold,
    make_rows,
    make_step,
    make_transfer,
    num_warps,
)
from ninfer.kernels.cuda.launch import WARP


def make_make_inputs(heads: DeltaHeads, is_wide: bool) -> Any:
    """Function that does one of four tasks in the calling warp, into shared arrays."""
    key_dim, value_dim, sharing = heads.key_dim, heads.value_dim, heads.sharing
    key_width, num_value_heads = heads.key_width, heads.num_value_heads
    channel_bytes = 2 * heads.channels
    row_bytes = channel_bytes + 2 * heads.value_width
    slice_columns = COLUMNS * num_warps(heads)
    pairs = -(-key_dim // (2 * WARP))
    head_size = 2 * pairs
    query_length = key_dim**-0.5
    unit_head = make_unit_head(key_dim)

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

    return make_inputs


@cache
def make_decode_state(  # noqa: PLR0915 - one pass, whose state is a lane's registers
    heads: DeltaHeads, is_wide: bool
) -> Kernel:
    """Fold, then read one column; grid (slices, value heads, rows).

    The state is asked for before the predecessor has ended: whatever has written it, a round ago,
    ended before the first kernel of this one began.

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
    double_key = 2 * key_dim
    make_inputs = make_make_inputs(heads, is_wide)
    load, store = make_transfer(heads)
    load_record, fold = make_fold(heads)
    apply, read, _ = make_step(key_dim)
    _, load_shared, _ = make_rows(key_dim)

    def decode_state(  # noqa: PLR0915 - as above
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
        row, head = cuda.blockIdx.z, cuda.blockIdx.y
        first_value = cuda.blockIdx.x * slice_columns
        lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        part = lane >> 2
        column = first_value + warp * COLUMNS + (lane & 3) * 2
        slot = ptx.load_i32(slots + uint64(row) * uint64(4))
        folded = ptx.load_i32(folds + uint64(row) * uint64(4))
        s = cuda.local.array(size, float32)
        matrix = uint64(slot) * uint64(num_value_heads) + uint64(head)
        address = matrices + (matrix * uint64(key_dim * value_dim) + uint64(column)) * uint64(4)
        load(address, part, s)
        ptx.wait_for_predecessor()
        line = projected + uint64(row) * uint64(row_bytes)
        first_record = uint64(slot) * uint64(num_records)
        window = windows + uint64(slot) * uint64(3 * channel_bytes)
        records = record_x + first_record * uint64(channel_bytes)
        # The first record is asked for before the column is made.
        k = cuda.local.array(count, float32)
        v0, v1, g, beta = float32(0.0), float32(0.0), float32(0.0), float32(0.0)
        if folded > 0:
            v0, v1, g, beta = load_record(
                record_k, record_v, record_g, record_beta, first_record, head, column, part, k
            )
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
        if folded > 0:
            r0, r1 = read(s, k)
            apply(s, k, r0, r1, v0, v1, float32(math.exp(g)), beta)
            fold(
                record_k,
                record_v,
                record_g,
                record_beta,
                first_record,
                1,
                folded,
                head,
                column,
                part,
                s,
            )
            store(address, part, s)
        cuda.syncthreads()
        base = ptx.shared_address(unit)
        load_shared(base + uint32(4 * key_dim), part, k)
        at = warp * COLUMNS + (lane & 3) * 2
        v0, v1 = value[at], value[at + 1]
        r0, r1 = read(s, k)
        apply(s, k, r0, r1, v0, v1, float32(math.exp(gate[0])), gate[1])
        load_shared(base, part, k)
        o0, o1 = read(s, k)
        line_of_head = uint64(row) * uint64(num_value_heads) + uint64(head)
        if part == 0:
            at64 = (line_of_head * uint64(value_dim) + uint64(column)) * uint64(4)
            ptx.store_f32x2(outputs + at64, o0, o1)
            ptx.store_f32x2(values + at64, v0, v1)
        if cuda.blockIdx.x == 0:
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
