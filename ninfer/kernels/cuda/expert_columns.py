"""Which columns an expert's rows are multiplied with, and where the products go.

In decode a block stands for one choice of eight tokens: it looks for the expert among all of theirs
and works only where its own choice is the first. In prefill it stands for an entry of the plan.
"""

from typing import Any, Final

from numba import cuda, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.launch import WARP
from ninfer.kernels.cuda.weight_layout import TILE_ROWS

WARPS: Final = 8
GROUP_COLUMNS: Final = 8
"""Columns of a decode group."""


@device_function
def slot_of(experts: Any, first: Any, num_tokens: Any, chosen: Any, expert: Any, lane: Any) -> Any:
    """Choice of token ``first + lane mod 8`` that is an expert, -1 where there is none."""
    found = int32(-1)
    token = int32(first) + (int32(lane) & int32(7))
    if token < num_tokens:
        slot = int32(lane) >> 3
        while slot < chosen:
            choice = int32(token * int32(chosen) + slot)
            if ptx.load_i32(experts + uint64(choice) * uint64(4)) == expert:
                found = choice
            slot += int32(4)
    found = max(found, cuda.shfl_xor_sync(0xFFFFFFFF, found, 8))
    return max(found, cuda.shfl_xor_sync(0xFFFFFFFF, found, 16))


def make_find_columns(columns: int, is_grouped: bool) -> Any:
    """Function that fills the block's list of choices and returns the expert."""

    @device_function
    def find_columns(
        experts: Any, plan: Any, order: Any, num_tokens: Any, chosen: Any, choices: Any
    ) -> Any:
        """Fill ``choices`` (shared) and return the expert, or -1 where there is nothing to do."""
        lane = int32(cuda.threadIdx.x & 31)
        if is_grouped:
            entry = plan + uint64(cuda.blockIdx.y) * uint64(12)
            expert = ptx.load_i32(entry)
            start = ptx.load_i32(entry + uint64(4))
            count = ptx.load_i32(entry + uint64(8))
            i = int32(cuda.threadIdx.x)
            if i < columns:
                choices[i] = int32(-1)
                if i < count:
                    choices[i] = ptx.load_i32(order + uint64(start + i) * uint64(4))
            if count == 0:
                expert = int32(-1)
            return int32(expert)
        first = int32(cuda.blockIdx.z) * int32(GROUP_COLUMNS)
        own = first + int32(cuda.blockIdx.y) // int32(chosen)
        expert = int32(-1)
        if own < num_tokens:
            choice = first * int32(chosen) + int32(cuda.blockIdx.y)
            expert = ptx.load_i32(experts + uint64(choice) * uint64(4))
            found = slot_of(experts, first, num_tokens, chosen, expert, lane)
            is_earlier = found >= 0 and first + (lane & int32(7)) < own
            if cuda.threadIdx.x < GROUP_COLUMNS:
                choices[cuda.threadIdx.x] = found
            if cuda.any_sync(0xFFFFFFFF, is_earlier):
                expert = int32(-1)
        return int32(expert)

    return find_columns


def make_locate(column_tiles: int) -> Any:
    """Function that turns choices into a lane's addresses."""

    @device_function
    def locate(
        choices: Any,
        sharing: Any,
        base: Any,
        sums: Any,
        k_tiles: Any,
        k_first: Any,
        lane: Any,
        x_at: Any,
        sum_at: Any,
    ) -> None:
        """Addresses of the lane's chunk of each tile of columns, and of its two columns' sums."""
        for j in range(column_tiles):
            choice = max(choices[8 * j + (lane >> 2)], int32(0))
            column = uint32(choice // int32(sharing))
            at = uint64(column >> uint32(3)) * uint64(k_tiles) + uint64(k_first)
            inside = (column & uint32(7)) * uint32(64) + (uint32(lane) & uint32(3)) * uint32(16)
            x_at[j] = base + at * uint64(2048) + uint64(inside)
            for i in range(2):
                choice = max(choices[8 * j + 2 * (lane & 3) + i], int32(0))
                column = uint32(choice // int32(sharing))
                at = uint64(column >> uint32(3)) * uint64(k_tiles) + uint64(k_first)
                sum_at[2 * j + i] = (
                    sums + at * uint64(64) + uint64((column & uint32(7)) << uint32(2))
                )

    return locate


def make_write(parts: int, columns: int) -> Any:
    """Function that adds the parts of a block's sums and stores them."""
    part_floats = TILE_ROWS * columns
    elements = WARPS // parts * part_floats

    @device_function
    def write(
        shared: Any, choices: Any, out: Any, first_row: Any, num_rows: Any, tile_row: Any
    ) -> None:
        """Add the parts of the block's sums in order and store those of real rows and choices."""
        i = int32(cuda.threadIdx.x)
        while i < elements:
            row_tile = i // int32(part_floats)
            within = i % int32(part_floats)
            column = within // int32(TILE_ROWS)
            row = tile_row + row_tile * int32(TILE_ROWS) + within % int32(TILE_ROWS) - first_row
            at = shared + uint32(row_tile * parts * part_floats + within) * uint32(4)
            value = ptx.shared_f32(at)
            for part in range(1, parts):
                value += ptx.shared_f32(at + uint32(part * part_floats * 4))
            choice = choices[column]
            if choice >= 0 and row >= 0 and row < num_rows:
                place = uint64(choice) * uint64(num_rows) + uint64(row)
                ptx.store_f32(out + place * uint64(4), value)
            i += int32(WARPS * WARP)

    return write
