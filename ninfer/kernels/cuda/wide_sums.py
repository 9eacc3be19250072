"""Sums of a wide product on their way from block to block, and the end of a turn.

Each block of a cluster has sums of one part of K. A warp sends its own to the eight blocks, an
eighth of them to each, by stores that count their bytes at a barrier of the warp with the same
number there; that one adds the eight parts up in order. Sums of even and of odd turns have places
and barriers of their own: a warp that sends those of a turn has seen those of the turn before from
every block, and whoever sent them had added up those before.

Of four column tiles, block ``2 j + m`` adds up row tile m and column tile j: four products a lane.
Of two, block ``4 j + 2 m + h`` does so for half h of the rows: two products a lane.
"""

from typing import Any

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import cluster, ptx, warpgroup
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.held_walk import find_target
from ninfer.kernels.cuda.product_output import load_before, store_after
from ninfer.kernels.cuda.row_products import MODE_AT, SKIP_AT
from ninfer.kernels.cuda.skinny_shape import PARTS
from ninfer.kernels.cuda.weight_layout import TILE_ROWS
from ninfer.kernels.cuda.wide_shape import BARRIER_BYTES, PAIR, SENT_AT, TURN_AT, sum_bytes
from ninfer.kernels.cuda.wide_walk import find_pair

Address = Any
Array = Any
Index = Any


@device_function
def find_turn(plan: Address, turn: Index) -> Any:
    """The warp's pair of a turn; below 0 before the first."""
    first, _, _, stride = ptx.shared_u32x4(plan + uint32(TURN_AT))
    return int32(int32(first) + turn * int32(stride))


@device_function
def _find_sums(plan: Address, turn: Index) -> Any:
    """Where sums of a turn come to, and the barrier that they arrive at."""
    _, place, step, _ = ptx.shared_u32x4(plan + uint32(TURN_AT))
    odd = uint32(uint32(turn) & uint32(1))
    barrier = uint32(plan + uint32(SENT_AT) + odd * uint32(BARRIER_BYTES))
    return uint32(place + odd * step), barrier


def make_push(tiles: int) -> Any:
    """Send a warp's sums of a turn: (plan, turn, lane, total)."""
    own_bytes, own_sums, halves = sum_bytes(tiles), tiles, 4 // tiles

    @device_function
    def push(plan: Address, turn: Index, lane: Index, total: Array) -> None:
        part = ptx.shared_u32(plan + uint32(4))
        at, barrier = _find_sums(plan, turn)
        at = uint32(at + part * uint32(own_bytes) + lane * uint32(4 * own_sums))
        for block in range(PARTS):
            j, m, h = block // (2 * halves), block // halves % 2, block % halves
            i = (m * tiles + j) * 4 + 2 * h
            to = cluster.map_shared(at, uint32(block))
            there = cluster.map_shared(barrier, uint32(block))
            if own_sums == 4:
                cluster.send_f32x4(to, total[i], total[i + 1], total[i + 2], total[i + 3], there)
            else:
                cluster.send_f32x2(to, total[i], total[i + 1], there)

    return push


def make_add_up(tiles: int) -> Any:
    """Add up an eighth of what the cluster made of a warp's pair in a turn, if there was one.

    (plan, turn, lane, total pairs, num_columns, rows, targets). What products are added to is asked
    for before sums are waited for.
    """
    own_bytes, own_sums = sum_bytes(tiles), tiles
    locate, collect = _make_locate(tiles), _make_collect(tiles)

    @device_function
    def add_up(
        plan: Address,
        turn: Index,
        lane: Index,
        total_pairs: Index,
        num_columns: Index,
        rows: Any,
        targets: Any,
    ) -> None:
        pair = find_turn(plan, turn)
        if pair >= int32(0) and pair < total_pairs:
            here, barrier = _find_sums(plan, turn)
            _, own, _, kind = find_pair(pair, rows)
            out, num_rows, width = find_target(pair, targets)
            mode = (kind >> int32(MODE_AT)) & int32(15)
            row, column = locate(ptx.shared_u32(plan + uint32(4)), own, lane)
            row = int32(row - ((kind >> int32(SKIP_AT)) & int32(15)))
            before = cuda.local.array(4, uint32)
            values = cuda.local.array(4, float32)
            for i in range(own_sums):
                own_row, own_column = int32(row + int32(i // 2 * 8)), int32(column + int32(i % 2))
                is_inside = _is_inside(own_row, num_rows, own_column, num_columns)
                at = uint64(own_column) * uint64(width) + uint64(own_row)
                before[i] = load_before(out, at, is_inside, mode)
            is_first = uint32(lane == uint32(0))
            warpgroup.expect_bytes_if(is_first, barrier, uint32(PARTS * own_bytes))
            warpgroup.wait_phase(barrier, uint32((uint32(turn) >> uint32(1)) & uint32(1)))
            collect(uint32(here + lane * uint32(4 * own_sums)), values)
            for i in range(own_sums):
                own_row, own_column = int32(row + int32(i // 2 * 8)), int32(column + int32(i % 2))
                is_inside = _is_inside(own_row, num_rows, own_column, num_columns)
                at = uint64(own_column) * uint64(width) + uint64(own_row)
                store_after(out, at, is_inside, mode, values[i], before[i])

    return add_up


def _make_locate(tiles: int) -> Any:
    """Row in the weight and column of a lane's first product: (block, pair in the weight, lane)."""
    halves = 4 // tiles

    @device_function
    def locate(block: Index, pair: Index, lane: Index) -> Any:
        row = int32(pair * int32(PAIR * TILE_ROWS) + int32(lane >> uint32(2)))
        row = int32(row + int32(block // uint32(halves) & uint32(1)) * int32(TILE_ROWS))
        row = int32(row + int32(block & uint32(halves - 1)) * int32(8))
        column = int32(int32(block // uint32(2 * halves)) * int32(8))
        return row, int32(column + int32(lane & uint32(3)) * int32(2))

    return locate


def _make_collect(tiles: int) -> Any:
    """Parts of a lane's products, added in order: (at, values)."""
    own_bytes = sum_bytes(tiles)

    @device_function
    def four(at: Address, values: Array) -> None:
        values[0], values[1], values[2], values[3] = ptx.shared_f32x4(at)
        for p in range(1, PARTS):
            a, b, c, d = ptx.shared_f32x4(at + uint32(p * own_bytes))
            values[0] += a
            values[1] += b
            values[2] += c
            values[3] += d

    @device_function
    def two(at: Address, values: Array) -> None:
        values[0], values[1] = ptx.shared_f32x2(at)
        for p in range(1, PARTS):
            a, b = ptx.shared_f32x2(at + uint32(p * own_bytes))
            values[0] += a
            values[1] += b

    return four if tiles == 4 else two


@device_function
def _is_inside(row: Index, num_rows: Index, column: Index, num_columns: Index) -> Any:
    """Whether a product exists."""
    return uint32(row >= int32(0)) & uint32(row < num_rows) & uint32(column < num_columns)
