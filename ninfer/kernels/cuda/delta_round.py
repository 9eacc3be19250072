"""One round of the Gated DeltaNet recurrence on CUDA: fold, then read one column of each row.

    y = norm * (o / sqrt(mean over the head of o^2 + eps)) * (z * sigmoid(z))

A block owns one head of one row. The state is read once and, where something is folded, written
once: 128 KB of 128 x 128. Most warps own columns of the state; others make the column's inputs
beside the fold (`delta_inputs`), so that neither waits for the other. Heads of whole groups of 64
write the linear input; others leave their outputs to `delta_output`.

The state comes in one of two ways, with the same arithmetic. *Held*: a warp has sixteen columns in
registers from the start, which is quickest while every block finds a multiprocessor of its own.
*Staged*: a warp has 32 columns in shared memory, brought by asynchronous copies, and takes them
into registers sixteen at a time; three such blocks share a multiprocessor, so that 384 blocks are
one turn on an H200 and 192 KB a multiprocessor are under way. Rows of a stage are 128 bytes; the
16-byte pieces of every other four rows are exchanged by halves, for no load to find a conflict.
"""

from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.column_image import array_storer
from ninfer.kernels.cuda.delta_columns import DeltaHeads
from ninfer.kernels.cuda.delta_inputs import make_input_warp, releases_late, shared_places
from ninfer.kernels.cuda.delta_step import (
    COLUMNS,
    make_fold,
    make_rows,
    make_step,
    make_transfer,
)
from ninfer.kernels.cuda.fragments import CHUNK, GROUP, padded_width
from ninfer.kernels.cuda.launch import WARP
from ninfer.kernels.cuda.product_output import warp_index

STAGED_BLOCKS: Final = 3
"""Staged blocks that share a multiprocessor."""

_STAGED_COLUMNS: Final = 2 * COLUMNS
_ROW_BYTES: Final = 4 * _STAGED_COLUMNS  # of a stage


def is_direct(heads: DeltaHeads) -> bool:
    """Whether the decode kernel writes the linear input itself."""
    return heads.value_dim % GROUP == 0


def can_stage(heads: DeltaHeads) -> bool:
    """Whether a block of these heads can have its state in shared memory."""
    return heads.value_dim % _STAGED_COLUMNS == 0 and heads.key_dim % WARP == 0


def make_stage(heads: DeltaHeads) -> Any:
    """Functions of a warp's stage.

    Returns:
        ``bring(stage, source, lane)`` starts copies of the 32 columns at ``source``,
        ``take(stage, turn, part, lane, s)`` and ``put`` move sixteen of them.
    """
    key_dim, row_bytes = heads.key_dim, 4 * heads.value_dim
    count = key_dim // 8

    @device_function
    def bring(stage: Any, source: Any, lane: Any) -> None:
        row, piece = uint32(lane) >> uint32(3), uint32(lane) & uint32(7)
        start = source + uint64(row * uint32(row_bytes) + (piece << uint32(4)))
        target = stage + row * uint32(_ROW_BYTES)
        for i in range(key_dim // 4):
            turned = (piece ^ uint32(i % 2 * 4)) << uint32(4)
            at = target + uint32(4 * i * _ROW_BYTES) + turned
            ptx.copy_async_16(at, start + uint64(4 * i * row_bytes), uint32(16))

    @device_function
    def lane_line(stage: Any, turn: Any, part: Any, lane: Any) -> Any:
        """Address of the lane's piece of its first row; rows go by fours (see `make_rows`)."""
        piece = (uint32(turn) << uint32(2)) + (uint32(lane) & uint32(3))
        piece ^= (uint32(part) & uint32(1)) << uint32(2)
        return stage + uint32(part) * uint32(4 * _ROW_BYTES) + (piece << uint32(4))

    @device_function
    def take(stage: Any, turn: Any, part: Any, lane: Any, s: Any) -> None:
        line = lane_line(stage, turn, part, lane)
        for i in range(count):
            at = line + uint32((i // 4 * 32 + i % 4) * _ROW_BYTES)
            s[4 * i], s[4 * i + 1], s[4 * i + 2], s[4 * i + 3] = ptx.shared_f32x4(at)

    @device_function
    def put(stage: Any, turn: Any, part: Any, lane: Any, s: Any) -> None:
        line = lane_line(stage, turn, part, lane)
        for i in range(count):
            at = line + uint32((i // 4 * 32 + i % 4) * _ROW_BYTES)
            a, b = ptx.bits_of_f32(s[4 * i]), ptx.bits_of_f32(s[4 * i + 1])
            c, d = ptx.bits_of_f32(s[4 * i + 2]), ptx.bits_of_f32(s[4 * i + 3])
            ptx.put_shared_u32x4(at, a, b, c, d)

    return bring, take, put


def make_write(heads: DeltaHeads) -> Any:
    """Function with which one warp normalises a head's outputs and writes a linear input."""
    value_dim, num_value_heads = heads.value_dim, heads.num_value_heads
    chunks = value_dim // CHUNK
    padded, store = padded_width(heads.value_width), array_storer(to_image=False)

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
        store(base, sums, uint32(padded), column, chunk, is_inside, x)

    return write


@cache
def make_decode(  # noqa: C901, PLR0915 - one pass, whose state is a lane's registers
    heads: DeltaHeads, is_wide: bool, is_staged: bool
) -> Kernel:
    """Fold, then read and record one column; grid (value heads, rows).

    State, window and records are those of the round before, which ended before the first kernel of
    this one began, and nothing else of this round reads or writes them: they are read, and the
    state is folded, before the predecessor has ended.

    Args:
        heads: of the mixer.
        is_wide: decay inputs are f32.
        is_staged: the state is brought to shared memory.
    """
    key_dim, value_dim, num_value_heads = heads.key_dim, heads.value_dim, heads.num_value_heads
    channel_bytes = 2 * heads.channels
    row_bytes = channel_bytes + 2 * heads.value_width
    turns = 2 if is_staged else 1
    warp_columns = turns * COLUMNS
    warps = value_dim // warp_columns
    writes, is_early = is_direct(heads), not releases_late(heads)
    count = key_dim // 8
    size = 4 * count
    places = shared_places(heads)
    unit_at, value_at, factor_at = places.unit, places.value, places.factor
    out_at, gate_at, stage_at = places.out_row, places.gate, places.end
    stage_bytes = key_dim * _ROW_BYTES if is_staged else 0
    make_all_inputs = make_input_warp(heads, is_wide, writes, True, True)
    make_shared_inputs = make_input_warp(heads, is_wide, writes, True, False)
    make_own_inputs = make_input_warp(heads, is_wide, writes, False, True)
    write = make_write(heads)
    load, store = make_transfer(heads)
    bring, take, put = make_stage(heads)
    fold = make_fold(heads)
    read, apply = make_step(key_dim)
    _, load_shared, _ = make_rows(key_dim)

    def decode(  # noqa: C901, PLR0915 - as above
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
        memory = cuda.shared.array(0, uint64)
        if is_early:
            ptx.release_successor()
        own = ptx.shared_address(memory)
        head, row = cuda.blockIdx.x, cuda.blockIdx.y
        lane, warp = cuda.threadIdx.x & 31, warp_index()
        slot = ptx.load_i32(slots + uint64(row) * uint64(4))
        folded = ptx.load_i32(folds + uint64(row) * uint64(4))
        first_record = uint64(slot) * uint64(num_records)
        line = projected + uint64(row) * uint64(row_bytes)
        window = windows + uint64(slot) * uint64(3 * channel_bytes)
        records = record_x + first_record * uint64(channel_bytes)
        if warp < warps:
            part = lane >> 2
            s = cuda.local.array(size, float32)
            k = cuda.local.array(count, float32)
            matrix = uint64(slot) * uint64(num_value_heads) + uint64(head)
            source = matrices + matrix * uint64(4 * key_dim * value_dim)
            source += uint64(warp * (4 * warp_columns))
            stage = own + uint32(stage_at) + uint32(warp) * uint32(stage_bytes)
            quad = source + (uint64(lane) & uint64(3)) * uint64(16)
            if is_staged:
                bring(stage, source, lane)
                ptx.close_copies()
            else:
                load(quad, part, s)
            if folded > 0:
                for turn in range(turns):
                    column = warp * warp_columns + turn * COLUMNS + (lane & 3) * 4
                    if is_staged:
                        if turn == 0:
                            ptx.wait_copies_0()
                            cuda.syncwarp()
                        take(stage, turn, part, lane, s)
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
                    store(quad + uint64(turn * 4 * COLUMNS), part, s)
                    if is_staged:
                        put(stage, turn, part, lane, s)
            elif is_staged:
                ptx.wait_copies_0()
                cuda.syncwarp()
            cuda.syncthreads()
            decay, beta = ptx.shared_f32x2(own + uint32(gate_at))
            for turn in range(turns):
                column = warp * warp_columns + turn * COLUMNS + (lane & 3) * 4
                at = own + uint32(column) * uint32(4)
                if is_staged:
                    take(stage, turn, part, lane, s)
                load_shared(own + uint32(unit_at + 4 * key_dim), part, k)
                v = ptx.shared_f32x4(at + uint32(value_at))
                apply(s, k, read(s, k), v, decay, beta)
                load_shared(own + uint32(unit_at), part, k)
                o0, o1, o2, o3 = read(s, k)  # the same in every part
                if writes:
                    ptx.put_shared_f32x2(at + uint32(out_at), o0, o1)
                    ptx.put_shared_f32x2(at + uint32(out_at + 8), o2, o3)
                else:
                    at64 = uint64(row) * uint64(num_value_heads) + uint64(head)
                    at64 = outputs + (at64 * uint64(value_dim) + uint64(column)) * uint64(4)
                    ptx.store_f32x4(at64, o0, o1, o2, o3)
            cuda.syncthreads()
            if writes and warp == 0:
                write(
                    own + uint32(out_at),
                    own + uint32(factor_at),
                    base,
                    sums,
                    row,
                    head,
                    lane,
                    eps,
                )
        elif is_staged:
            make_all_inputs(
                line, window, records, folded, taps, ab, a_log, dt_bias, norm, record_k,
                record_v, record_g, record_beta, first_record, counters, row, head, lane, own,
            )  # fmt: skip
        elif warp == warps:
            make_shared_inputs(
                line, window, records, folded, taps, ab, a_log, dt_bias, norm, record_k,
                record_v, record_g, record_beta, first_record, counters, row, head, lane, own,
            )  # fmt: skip
        else:
            make_own_inputs(
                line, window, records, folded, taps, ab, a_log, dt_bias, norm, record_k,
                record_v, record_g, record_beta, first_record, counters, row, head, lane, own,
            )  # fmt: skip

    params = (Param.ADDRESS,) * 19 + (Param.I32, Param.F32)
    way = "staged" if is_staged else "held"
    name = f"delta_decode_{way}_{heads.digits}_{'f32' if is_wide else 'bf16'}"
    threads = (warps + (1 if is_staged else 2)) * WARP
    return Kernel(
        name,
        decode,
        params,
        threads=threads,
        max_registers=128,
        dynamic_shared_bytes=stage_at + warps * stage_bytes,
        min_blocks=STAGED_BLOCKS if is_staged else 1,
    )
