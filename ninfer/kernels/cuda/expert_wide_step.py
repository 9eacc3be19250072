"""One stage of an item of `expert_wide`: a warp decodes its tile and its group multiplies it."""

from typing import Any, Final

from numba import cuda, int32, uint32, uint64

from ninfer.cuda import warpgroup
from ninfer.cuda.device_code import device_function
from ninfer.cuda.warpgroup_registers import multiply_registers
from ninfer.kernels.cuda.coded_weights import EXTRA_WORDS
from ninfer.kernels.cuda.expert_weights import lane_words, make_load_half, make_rounded
from ninfer.kernels.cuda.expert_wide_shape import COLUMN_BYTES, ExpertWide

WIDTHS: Final = (32, 64, 80, 96, 112, 128)
"""Columns of an instruction."""

Address = Any
Array = Any
Index = Any


def _make_multiply(widths: tuple[int, ...]) -> Any:
    """Make ``(count, total, left, right)``: 64 features of a tile, as many columns as there are."""
    if len(widths) == 1:
        only = multiply_registers(widths[0], 4, is_added=True)

        @device_function
        def multiply(count: Index, total: Array, left: Array, right: Any) -> None:
            only(total, left, right)

        return multiply
    middle = len(widths) // 2
    most = widths[middle - 1]
    few = _make_multiply(widths[:middle])
    many = _make_multiply(widths[middle:])

    @device_function
    def choose(count: Index, total: Array, left: Array, right: Any) -> None:
        if count > int32(most):
            many(count, total, left, right)
        else:
            few(count, total, left, right)

    return choose


def _make_tile_at(shape: ExpertWide) -> Any:
    """Where the upper record of a warp's 16 rows lies; the warps of a pair share tiles of gate."""
    tile_bytes, is_gate = shape.tile_bytes, shape.is_gate

    @device_function
    def tile_at(stored: Address, warp: Index) -> Address:
        tile = uint32(warp)
        if is_gate:
            at = stored + (tile >> uint32(1)) * uint32(tile_bytes)
            return at + (tile & uint32(1)) * uint32(tile_bytes // 2)
        return stored + tile * uint32(tile_bytes)

    return tile_at


def make_step(shape: ExpertWide) -> Any:
    """Products of one stage with the warp's tile; other groups multiply while this one decodes."""
    stage_bytes, full_at, empty_at = shape.stage_bytes, shape.full_at, shape.empty_at
    words, tile_at = lane_words(shape.format), _make_tile_at(shape)
    load, decode = make_load_half(shape.format, shape.lower_at), make_rounded(shape.format)
    multiply = _make_multiply(WIDTHS)

    @device_function
    def step(
        count: Index,
        ring: Address,
        slot: Index,
        parity: Index,
        warp: Index,
        lane: Index,
        total: Array,
        masks: Any,
    ) -> None:
        left = cuda.local.array(16, uint32)
        now, extra = cuda.local.array(words, uint32), cuda.local.array(EXTRA_WORDS, uint32)
        warpgroup.wait_phase(ring + uint32(full_at) + slot * uint32(8), parity)
        stage = ring + slot * uint32(stage_bytes)
        at = tile_at(stage + uint32(COLUMN_BYTES), warp)
        right = uint64(warpgroup.DESCRIPTOR) + uint64(stage >> uint32(4))
        load(at, lane, 0, now, extra)
        decode(now, extra, 0, left, masks)
        multiply(count, total, left, right)
        load(at, lane, 1, now, extra)
        decode(now, extra, 1, left, masks)
        multiply(count, total, left, right + uint64(COLUMN_BYTES // 32))
        warpgroup.arrive(ring + uint32(empty_at) + slot * uint32(8))  # each lane: it has read

    return step
