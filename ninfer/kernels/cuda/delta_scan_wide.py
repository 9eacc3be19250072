"""The chunked Gated DeltaNet recurrence on Hopper: one warpgroup, everything in its registers.

    r = v - e^b (k S) ; u = solution r ; o = e^b (q S) + weights u
    S' = e^(b_end) S + sum_j e^(b_end - b_j) k_j u_j^T

A block owns 64 columns of one head's state. All matrices that depend on the state lie turned, its
columns along the rows of the products: sums of one product then are the left operand of the next
one in the same lanes, and no step of the chain goes through shared memory or meets a barrier. Row
``16 w + 8 h + r`` of the products is column ``16 w + 2 r + h``, so that a lane has neighbours in
memory. Right operands are the chunk's own (`delta_blocks`), which a fifth warp brings in bulk, one
chunk ahead. Every product has both parts of both operands, an error near 2^-17. Outputs take the
place of the values. Traffic: `CHUNK_ROWS` and `CHUNK_FACTORS` bytes a chunk for each block of a
head, values and outputs once, the state once each way. Tensor cores are busy for six tenths of the
time; the rest is making operands of sums, one warp a scheduler.
"""

from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx, warpgroup
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.cuda.warpgroup_split import (
    LARGE,
    LEFT_WORDS,
    SMALL,
    in_turn,
    multiply,
    parted,
    plain_descriptor,
    settle,
)
from ninfer.cuda.warpgroup_turned import turned_descriptor
from ninfer.kernels.cuda.delta_blocks import (
    CHUNK_FACTORS,
    CHUNK_ROWS,
    HALF_ROWS_BYTES,
    POSITIONS,
    ROWS_BYTES,
    TRIANGLE_BYTES,
    WIDTH,
    split_pair,
)
from ninfer.kernels.cuda.delta_columns import DeltaHeads
from ninfer.kernels.cuda.launch import WARP

COLUMNS: Final = 64
"""Columns of the state that a block owns: rows of a warpgroup's product."""

_GROUP_WARPS: Final = 4
_THREADS: Final = (_GROUP_WARPS + 1) * WARP
_NUM_STATE: Final = WIDTH // 2  # sums of a lane
_NUM_SUMS: Final = POSITIONS // 2
_STATE_WORDS: Final = _NUM_STATE // 2
_WORDS: Final = _NUM_SUMS // 2
_HALF_SUMS: Final = _NUM_SUMS // 2

# A stage: rows, factors, values. Pairs of values that a warp reads find different banks.
_VALUE_LINE: Final = 4 * COLUMNS
_VALUE_STRIDE: Final = _VALUE_LINE + 16
_DECAYS_AT: Final = CHUNK_ROWS + 4 * TRIANGLE_BYTES
_VALUES_AT: Final = CHUNK_ROWS + CHUNK_FACTORS
_STAGE_BYTES: Final = -(-(_VALUES_AT + POSITIONS * _VALUE_STRIDE) // 1024) * 1024
_STAGES: Final = 2
_STATE_LINE: Final = 4 * WIDTH
_FULL_AT: Final = _STAGES * _STAGE_BYTES
_EMPTY_AT: Final = _FULL_AT + 8 * _STAGES
_SHARED_BYTES: Final = _EMPTY_AT + 8 * _STAGES + 1024

_UNIT: Final = 16  # bytes, of descriptors
_ROWS_UNITS: Final = ROWS_BYTES // _UNIT
_TRIANGLE_UNITS: Final = TRIANGLE_BYTES // _UNIT
_TURNED: Final = turned_descriptor(HALF_ROWS_BYTES)
_TRIANGLE: Final = plain_descriptor(128, 256)
_ROW_STEPS: Final = tuple(
    step // 4 * (HALF_ROWS_BYTES // _UNIT) + step % 4 * 2 for step in range(WIDTH // 16)
)
_TURNED_STEPS: Final = tuple(step * 16 * 128 // _UNIT for step in range(POSITIONS // 16))
_UPPER_STEPS: Final = (0, 4 * 512 // _UNIT)  # blocks of a triangle: two columns of four rows,
_LOWER_STEPS: Final = (8 * 512 // _UNIT, 10 * 512 // _UNIT)  # two of the lower two

_READ: Final = in_turn(
    parted((*SMALL, *LARGE), _ROW_STEPS), parted(SMALL, _ROW_STEPS, sums=1, right=2)
)
_FIRST, _SECOND = _ROW_STEPS[: WIDTH // 32], _ROW_STEPS[WIDTH // 32 :]
_HALVES: Final = in_turn(
    parted((*SMALL, *LARGE), _UPPER_STEPS),
    parted((*SMALL, *LARGE), _LOWER_STEPS, sums=1, word=LEFT_WORDS * len(_UPPER_STEPS)),
)
_read = multiply((POSITIONS, POSITIONS), _READ)
_read_first = multiply((POSITIONS,), parted(LARGE, _FIRST), added=(0,))
_read_second = multiply(
    (POSITIONS,), parted(LARGE, _SECOND, word=LEFT_WORDS * len(_FIRST)), added=(0,)
)
_solve = multiply((POSITIONS, POSITIONS // 2), _HALVES)
_weigh = multiply((POSITIONS, POSITIONS // 2), _HALVES, added=(0,))
_advance = multiply((WIDTH,), parted((*SMALL, *LARGE), _TURNED_STEPS), is_turned=True, added=(0,))
_settle_read = settle(1, (_NUM_SUMS, _STATE_WORDS), 1)
_settle_solved = settle(1, (_NUM_SUMS, _HALF_SUMS, _WORDS, _WORDS), 2)
_settle_queries = settle(1, (_NUM_SUMS, _STATE_WORDS), 1)
_settle_state = settle(1, (_NUM_STATE, _WORDS, _WORDS), 1)
_settle_outputs = settle(0, (_NUM_SUMS, _HALF_SUMS, _WORDS, _WORDS), 2)


@device_function
def bring(
    stage: Any, full: Any, rows: Any, factors: Any, values: Any, row_bytes: Any, lane: Any
) -> None:
    """Start a warp's copies of one chunk: its operands, and two rows of values a lane."""
    is_first = uint32(lane == 0)
    warpgroup.expect_bytes_if(
        is_first, full, uint32(CHUNK_ROWS + CHUNK_FACTORS + POSITIONS * _VALUE_LINE)
    )
    cuda.syncwarp()
    warpgroup.copy_bulk_if(is_first, stage, rows, uint32(CHUNK_ROWS), full)
    warpgroup.copy_bulk_if(
        is_first, stage + uint32(CHUNK_ROWS), factors, uint32(CHUNK_FACTORS), full
    )
    for half in range(POSITIONS // WARP):
        row = uint32(lane) + uint32(half * WARP)
        warpgroup.copy_bulk(
            stage + uint32(_VALUES_AT) + row * uint32(_VALUE_STRIDE),
            values + uint64(row) * uint64(row_bytes),
            uint32(_VALUE_LINE),
            full,
        )


@device_function
def load_state(place: Any, s: Any) -> None:
    """Take a lane's part of the state: of two rows and two columns of each 8 x 8."""
    for t in range(WIDTH // 8):
        at = place + uint64(8 * t * _STATE_LINE)
        s[4 * t], s[4 * t + 2] = ptx.load_f32x2(at)
        s[4 * t + 1], s[4 * t + 3] = ptx.load_f32x2(at + uint64(_STATE_LINE))


@device_function
def store_sums(place: Any, line_bytes: Any, count: Any, sums: Any) -> None:
    """Store a lane's sums, turned; ``place`` is that of the first."""
    for t in range(count // 4):
        at = place + uint64(8 * t * line_bytes)
        ptx.store_f32x2(at, sums[4 * t], sums[4 * t + 2])
        ptx.store_f32x2(at + uint64(line_bytes), sums[4 * t + 1], sums[4 * t + 3])


@device_function
def part(sums: Any, count: Any, high: Any, low: Any) -> None:
    """Make left operands of sums."""
    for i in range(count // 2):
        high[i], low[i] = split_pair(sums[2 * i], sums[2 * i + 1])


@device_function
def part_decayed(c: Any, decays: Any, high: Any, low: Any) -> None:
    """The same of decayed sums."""
    for t in range(POSITIONS // 8):
        d0, d1 = ptx.shared_f32x2(decays + uint32(32 * t))
        i = 4 * t
        high[2 * t], low[2 * t] = split_pair(d0 * c[i], d1 * c[i + 1])
        high[2 * t + 1], low[2 * t + 1] = split_pair(d0 * c[i + 2], d1 * c[i + 3])


@device_function
def part_rest(c: Any, decays: Any, values: Any, high: Any, low: Any) -> None:
    """The same of values less decayed sums."""
    for t in range(POSITIONS // 8):
        d0, d1 = ptx.shared_f32x2(decays + uint32(32 * t))
        at = values + uint32(8 * t * _VALUE_STRIDE)
        v0, w0 = ptx.shared_f32x2(at)
        v1, w1 = ptx.shared_f32x2(at + uint32(_VALUE_STRIDE))
        i = 4 * t
        high[2 * t], low[2 * t] = split_pair(v0 - d0 * c[i], v1 - d1 * c[i + 1])
        high[2 * t + 1], low[2 * t + 1] = split_pair(w0 - d0 * c[i + 2], w1 - d1 * c[i + 3])


@device_function
def decay(o: Any, decays: Any) -> None:
    """Decay what positions read of the state before the chunk."""
    for t in range(POSITIONS // 8):
        d0, d1 = ptx.shared_f32x2(decays + uint32(32 * t))
        i = 4 * t
        o[i], o[i + 1] = d0 * o[i], d1 * o[i + 1]
        o[i + 2], o[i + 3] = d0 * o[i + 2], d1 * o[i + 3]


@device_function
def add_lower(sums: Any, e: Any) -> None:
    """Add what the lower half of a triangle gives."""
    for i in range(_HALF_SUMS):
        sums[_HALF_SUMS + i] += e[i]


@cache
def make_wide_scan(  # noqa: PLR0915 - one loop over chunks, and who brings them
    heads: DeltaHeads,
) -> Kernel:
    """Advance a state over chunks; grid (value heads, WIDTH / COLUMNS), block (160,).

    Args:
        heads: of the mixer, of `WIDTH` components.
    """
    sharing, num_key_heads, num_value_heads = (
        heads.sharing, heads.num_key_heads, heads.num_value_heads,
    )  # fmt: skip
    row_bytes = 4 * heads.value_width

    @device_function
    def bring_all(
        shared: Any, rows: int, factors: int, values: int, num_chunks: Any, lane: Any
    ) -> None:
        """Copy chunk after chunk where the one before the last has been read."""
        for chunk in range(num_chunks):
            odd, turn = uint32(chunk) & uint32(1), uint32(chunk) >> uint32(1)
            slot = shared + odd * uint32(8)
            if chunk >= _STAGES:
                warpgroup.wait_phase(slot + uint32(_EMPTY_AT), (turn - uint32(1)) & uint32(1))
            bring(
                shared + odd * uint32(_STAGE_BYTES), slot + uint32(_FULL_AT),
                rows, factors, values, row_bytes, lane,
            )  # fmt: skip
            rows += uint64(num_key_heads * CHUNK_ROWS)
            factors += uint64(num_value_heads * CHUNK_FACTORS)
            values += uint64(POSITIONS * row_bytes)

    def wide_scan(  # noqa: PLR0915 - as above
        rows: int,
        factors: int,
        values: int,
        matrices: int,
        slots: int,
        num_chunks: int,
    ) -> None:
        memory = cuda.shared.array(0, uint64)
        shared = (ptx.shared_address(memory) + uint32(1023)) & uint32(0xFFFFFC00)
        thread = int32(cuda.threadIdx.x)
        lane, warp = thread & int32(31), int32(cuda.shfl_sync(0xFFFFFFFF, thread >> int32(5), 0))
        for slot in range(_STAGES):
            at, is_first = shared + uint32(8 * slot), uint32(thread == 0)
            warpgroup.init_barrier_if(is_first, at + uint32(_FULL_AT), uint32(1))
            warpgroup.init_barrier_if(is_first, at + uint32(_EMPTY_AT), uint32(_GROUP_WARPS * WARP))
        warpgroup.publish_barriers()
        ptx.release_successor()
        ptx.wait_for_predecessor()
        cuda.syncthreads()
        head, first = int32(cuda.blockIdx.x), int32(cuda.blockIdx.y) * int32(COLUMNS)
        rows += uint64(head // int32(sharing)) * uint64(CHUNK_ROWS)
        factors += uint64(head) * uint64(CHUNK_FACTORS)
        values += uint64(head * int32(WIDTH) + first) * uint64(4)
        if warp == int32(_GROUP_WARPS):
            bring_all(shared, rows, factors, values, num_chunks, lane)
        else:
            line, pair = uint32(lane) >> uint32(2), (uint32(lane) & uint32(3)) << uint32(1)
            column = uint32(warp) * uint32(16) + line * uint32(2)
            s = cuda.local.array(_NUM_STATE, float32)
            c = cuda.local.array(_NUM_SUMS, float32)
            o = cuda.local.array(_NUM_SUMS, float32)
            e = cuda.local.array(_HALF_SUMS, float32)
            s_high = cuda.local.array(_STATE_WORDS, uint32)
            s_low = cuda.local.array(_STATE_WORDS, uint32)
            u_high = cuda.local.array(_WORDS, uint32)
            u_low = cuda.local.array(_WORDS, uint32)
            d_high = cuda.local.array(_WORDS, uint32)
            d_low = cuda.local.array(_WORDS, uint32)
            slot = ptx.load_i32(slots)
            matrix = uint64(slot) * uint64(num_value_heads) + uint64(head)
            place = matrices + matrix * uint64(WIDTH * _STATE_LINE)
            place += uint64(pair) * uint64(_STATE_LINE)
            place += uint64(uint32(first) + column) * uint64(4)
            value = values + uint64(pair) * uint64(row_bytes) + uint64(column) * uint64(4)
            own_value = uint32(_VALUES_AT) + pair * uint32(_VALUE_STRIDE) + column * uint32(4)
            own_decay = uint32(_DECAYS_AT) + pair * uint32(4)
            load_state(place, s)
            part(s, _NUM_STATE, s_high, s_low)
            for chunk in range(num_chunks):
                odd, turn = uint32(chunk) & uint32(1), uint32(chunk) >> uint32(1)
                stage, slot = shared + odd * uint32(_STAGE_BYTES), shared + odd * uint32(8)
                decays, units = stage + own_decay, uint64(stage >> uint32(4))
                warpgroup.wait_phase(slot + uint32(_FULL_AT), turn & uint32(1))
                # k S and q S, of which half of the large products go on while others are parted
                keys = uint64(warpgroup.DESCRIPTOR) + units
                queries = keys + uint64(2 * _ROWS_UNITS)
                _read(
                    c, o, s_high, s_low, keys, keys + uint64(_ROWS_UNITS),
                    queries, queries + uint64(_ROWS_UNITS),
                )  # fmt: skip
                _read_first(o, s_high, queries)
                _settle_read(c, s_low)
                part_rest(c, decays, stage + own_value, u_high, u_low)
                triangle = uint64(_TRIANGLE) + units + uint64(CHUNK_ROWS // _UNIT)
                _solve(c, e, u_high, u_low, triangle, triangle + uint64(_TRIANGLE_UNITS))
                _read_second(o, s_high, queries)
                end = ptx.shared_f32(stage + uint32(_DECAYS_AT + 4 * POSITIONS - 4))
                for i in range(_NUM_STATE):
                    s[i] = end * s[i]
                _settle_solved(c, e, u_high, u_low)
                add_lower(c, e)
                part_decayed(c, decays + uint32(4 * POSITIONS), d_high, d_low)
                keys = uint64(_TURNED) + units
                _advance(s, d_high, d_low, keys, keys + uint64(_ROWS_UNITS))
                # outputs, while the new state is parted
                _settle_queries(o, s_high)
                part(c, _NUM_SUMS, u_high, u_low)
                decay(o, decays)
                triangle += uint64(2 * _TRIANGLE_UNITS)
                _weigh(o, e, u_high, u_low, triangle, triangle + uint64(_TRIANGLE_UNITS))
                _settle_state(s, d_high, d_low)
                part(s, _NUM_STATE, s_high, s_low)
                _settle_outputs(o, e, u_high, u_low)
                warpgroup.arrive(slot + uint32(_EMPTY_AT))  # each lane for what it has read
                add_lower(o, e)
                store_sums(value, row_bytes, _NUM_SUMS, o)
                value += uint64(POSITIONS * row_bytes)
            store_sums(place, _STATE_LINE, _NUM_STATE, s)

    params = (Param.ADDRESS,) * 5 + (Param.I32,)
    return Kernel(
        f"delta_scan_wide_{heads.digits}",
        wide_scan,
        params,
        threads=_THREADS,
        max_registers=255,
        dynamic_shared_bytes=_SHARED_BYTES,
        min_blocks=1,
        is_warpgroup=True,
    )
