"""The end of a product of coded weights: sums in registers to rows of the output.

A warp has 16 weight rows x 64, 128 or 256 columns; lane ``4 r + t`` holds, of each eight columns
``8 j ..``, columns ``2 t`` and ``2 t + 1`` of rows r and r + 8. The four warps of a group turn
their 64 rows over in 16 KiB of shared memory, so that a column's 64 rows are written together.
Pieces of 16 bytes are swizzled by the column so that neither side meets a bank twice.

    BF16   rounded and stored in pieces of eight; everything is a multiple of eight
    ADD    added in f32 to the bf16 that is there, rounded, stored likewise
    ANY    every mode of `product_output`, element by element
    GATED  SwiGLU of gate and up rows, written as an image: `coded_gate`
"""

import enum
from typing import Any, Final

from numba import cuda, int32, uint32, uint64

from ninfer.cuda import ptx, warpgroup
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.coded_gate import make_gated_ending
from ninfer.kernels.cuda.device_functions import lower_bf16, upper_bf16
from ninfer.kernels.cuda.product_output import store_product

_GROUP_BYTES: Final = 16384
_ADDED_COLUMNS: Final = 64  # whose f32 fill a group's staging
STAGING_BYTES: Final = 2 * _GROUP_BYTES
"""Of both consumer groups."""

Address = Any
Array = Any
Index = Any


class Ending(enum.Enum):
    """How results are written."""

    BF16 = enum.auto()
    ADD = enum.auto()
    ANY = enum.auto()
    GATED = enum.auto()


def make_ending(ending: Ending, tile_columns: int) -> Any:
    """Make the function that writes a warp's part of a tile.

    It takes (staging, out, sums, warp, first column, first row, number of rows, of columns, width
    of the output, column of the output where row 0 goes, mode); rows count from the view's first,
    which may lie behind the tile's.
    """
    if ending is Ending.GATED:
        return make_gated_ending(tile_columns, _GROUP_BYTES)
    if ending is Ending.ADD:
        return _make_added(tile_columns // _ADDED_COLUMNS)
    make_part, part_columns = (_make_any, 64)
    if ending is Ending.BF16:
        make_part, part_columns = _make_rounded, min(tile_columns, 128)
    num_parts = tile_columns // part_columns
    first, second = make_part(0, part_columns), make_part(1, part_columns)
    third, fourth = make_part(2, part_columns), make_part(3, part_columns)

    @device_function
    def write(
        staging: Address,
        out: Address,
        total: Array,
        warp: Index,
        column: Index,
        first_row: Index,
        num_rows: Index,
        num_columns: Index,
        out_width: Index,
        first_column: Index,
        mode: Index,
    ) -> None:
        group = warp >> int32(2)
        at = staging + uint32(group) * uint32(_GROUP_BYTES)
        row = first_row + group * int32(64)
        to = out + uint64(first_column) * uint64(4 if mode == 1 else 2)
        first(at, to, total, warp, column, row, num_rows, num_columns, out_width, mode)
        if num_parts > 1:
            second(at, to, total, warp, column, row, num_rows, num_columns, out_width, mode)
        if num_parts > 2:
            third(at, to, total, warp, column, row, num_rows, num_columns, out_width, mode)
            fourth(at, to, total, warp, column, row, num_rows, num_columns, out_width, mode)

    return write


@device_function
def _meet(warp: Index) -> None:
    """Wait for the other warps of the group."""
    warpgroup.meet(uint32(1) + (uint32(warp) >> uint32(2)), uint32(128))


def _make_rounded(part: int, columns: int) -> Any:
    """64 or 128 columns: rounded pairs are transposed between lanes, then staged."""
    offset, num_eights, num_steps = part * columns // 2, columns // 8, columns // 16

    @device_function
    def write(
        staging: Address,
        out: Address,
        total: Array,
        warp: Index,
        column: Index,
        row: Index,
        num_rows: Index,
        num_columns: Index,
        out_width: Index,
        mode: Index,
    ) -> None:
        thread = uint32(cuda.threadIdx.x) & uint32(127)
        lane = thread & uint32(31)
        r, t = lane >> uint32(2), lane & uint32(3)
        piece = (uint32(warp) & uint32(3)) << uint32(1)
        at = staging + r * uint32(128) + t * uint32(4)
        upper = at + ((piece ^ r) << uint32(4))
        lower = at + (((piece | uint32(1)) ^ r) << uint32(4))
        for j in range(num_eights):
            i = offset + 4 * j
            pair = ptx.transpose_matrix(ptx.bf16x2_of_f32(total[i], total[i + 1]))
            ptx.put_shared_u32(upper + uint32(1024 * j), pair)
            pair = ptx.transpose_matrix(ptx.bf16x2_of_f32(total[i + 2], total[i + 3]))
            ptx.put_shared_u32(lower + uint32(1024 * j), pair)
        _meet(warp)
        piece = thread & uint32(7)
        inside = row + int32(piece) * int32(8)
        first = column + int32(part * columns)
        for step in range(num_steps):
            line = uint32(16 * step) + (thread >> uint32(3))
            at = staging + line * uint32(128) + ((piece ^ (line & uint32(7))) << uint32(4))
            a, b, c, d = ptx.shared_u32x4(at)
            which = first + int32(line)
            if which < num_columns and inside < num_rows:
                place = uint64(which) * uint64(out_width) + uint64(inside)
                ptx.store_u32x4(out + place * uint64(2), a, b, c, d)
        _meet(warp)

    return write


@device_function
def _stage_f32(staging: Address, total: Array, warp: Index, offset: int) -> None:
    """64 columns as f32: 256 bytes for each."""
    lane = uint32(cuda.threadIdx.x) & uint32(31)
    r, t = lane >> uint32(2), lane & uint32(3)
    piece = ((uint32(warp) & uint32(3)) << uint32(2)) | (r >> uint32(2))
    at = staging + t * uint32(512) + ((r & uint32(3)) << uint32(2))
    upper = at + ((piece ^ (t << uint32(1))) << uint32(4))
    lower = at + (((piece | uint32(2)) ^ (t << uint32(1))) << uint32(4))
    for j in range(8):
        i = offset + 4 * j
        ptx.put_shared_f32(upper + uint32(2048 * j), total[i])
        ptx.put_shared_f32(upper + uint32(2048 * j + 256), total[i + 1])
        ptx.put_shared_f32(lower + uint32(2048 * j), total[i + 2])
        ptx.put_shared_f32(lower + uint32(2048 * j + 256), total[i + 3])


@device_function
def _ask(
    out: Address,
    column: Index,
    row: Index,
    num_rows: Index,
    num_columns: Index,
    out_width: Index,
    before: Array,
) -> None:
    """What 64 columns are added to, 16 bytes of four of them; lanes outside read the last one."""
    thread = int32(cuda.threadIdx.x) & int32(127)
    inside = min(row + (thread & int32(7)) * int32(8), num_rows - int32(8))
    first = column + (thread >> int32(3))
    for step in range(4):
        which = min(first + int32(16 * step), num_columns - int32(1))
        at = out + (uint64(which) * uint64(out_width) + uint64(inside)) * uint64(2)
        i = 4 * step
        before[i], before[i + 1], before[i + 2], before[i + 3] = ptx.fresh_u32x4(at)


@device_function
def _add(
    staging: Address,
    out: Address,
    column: Index,
    row: Index,
    num_rows: Index,
    num_columns: Index,
    out_width: Index,
    before: Array,
) -> None:
    """64 columns: eight f32 to a lane, added to what was there."""
    thread = uint32(cuda.threadIdx.x) & uint32(127)
    piece = thread & uint32(7)
    inside = row + int32(piece) * int32(8)
    for step in range(4):
        line = uint32(16 * step) + (thread >> uint32(3))
        turn = (line & uint32(6)) ^ (piece << uint32(1))
        at = staging + line * uint32(256) + (turn << uint32(4))
        v0, v1, v2, v3 = ptx.shared_f32x4(at)
        v4, v5, v6, v7 = ptx.shared_f32x4(at ^ uint32(16))
        a, b = before[4 * step], before[4 * step + 1]
        c, d = before[4 * step + 2], before[4 * step + 3]
        which = column + int32(line)
        if which < num_columns and inside < num_rows:
            place = uint64(which) * uint64(out_width) + uint64(inside)
            ptx.store_u32x4(
                out + place * uint64(2),
                ptx.bf16x2_of_f32(v0 + lower_bf16(a), v1 + upper_bf16(a)),
                ptx.bf16x2_of_f32(v2 + lower_bf16(b), v3 + upper_bf16(b)),
                ptx.bf16x2_of_f32(v4 + lower_bf16(c), v5 + upper_bf16(c)),
                ptx.bf16x2_of_f32(v6 + lower_bf16(d), v7 + upper_bf16(d)),
            )


def _make_added(num_parts: int) -> Any:
    """64 columns after 64; what the next ones are added to is asked for a part ahead."""

    @device_function
    def part(
        staging: Address,
        out: Address,
        total: Array,
        number: int,
        warp: Index,
        column: Index,
        row: Index,
        num_rows: Index,
        num_columns: Index,
        out_width: Index,
        before: Array,
        then: Array,
    ) -> None:
        at = column + int32(_ADDED_COLUMNS * number)
        _stage_f32(staging, total, warp, number * _ADDED_COLUMNS // 2)
        _meet(warp)
        # Not before: sums that are staged leave their registers to what is asked for.
        if number == 0:
            _ask(out, at, row, num_rows, num_columns, out_width, before)
        if number + 1 < num_parts:
            behind = at + int32(_ADDED_COLUMNS)
            _ask(out, behind, row, num_rows, num_columns, out_width, then)
        _add(staging, out, at, row, num_rows, num_columns, out_width, before)
        _meet(warp)

    @device_function
    def write(
        staging: Address,
        out: Address,
        total: Array,
        warp: Index,
        column: Index,
        first_row: Index,
        num_rows: Index,
        num_columns: Index,
        out_width: Index,
        first_column: Index,
        mode: Index,
    ) -> None:
        even, odd = cuda.local.array(16, uint32), cuda.local.array(16, uint32)
        group = warp >> int32(2)
        at = staging + uint32(group) * uint32(_GROUP_BYTES)
        row = first_row + group * int32(64)
        to = out + uint64(first_column) * uint64(2)
        size = num_rows, num_columns, out_width
        part(at, to, total, 0, warp, column, row, *size, even, odd)
        if num_parts > 1:
            part(at, to, total, 1, warp, column, row, *size, odd, even)
        if num_parts > 2:
            part(at, to, total, 2, warp, column, row, *size, even, odd)
            part(at, to, total, 3, warp, column, row, *size, odd, even)

    return write


def _make_any(part: int, columns: int) -> Any:
    """64 columns: one product to each lane, neighbours have neighbouring rows."""
    offset = part * columns // 2

    @device_function
    def write(
        staging: Address,
        out: Address,
        total: Array,
        warp: Index,
        column: Index,
        row: Index,
        num_rows: Index,
        num_columns: Index,
        out_width: Index,
        mode: Index,
    ) -> None:
        thread = uint32(cuda.threadIdx.x) & uint32(127)
        _stage_f32(staging, total, warp, offset)
        _meet(warp)
        within = thread & uint32(63)
        inside = row + int32(within)
        first = column + int32(part * columns)
        for step in range(32):
            line = uint32(2 * step) + (thread >> uint32(6))
            piece = (within >> uint32(2)) ^ (line & uint32(6))
            at = staging + line * uint32(256) + (piece << uint32(4))
            value = ptx.shared_f32(at + ((within & uint32(3)) << uint32(2)))
            which = first + int32(line)
            is_inside = uint32(inside >= 0) & uint32(inside < num_rows)
            is_inside &= uint32(which < num_columns)
            place = uint64(which) * uint64(out_width) + uint64(inside)
            store_product(out, place, is_inside, mode, value)
        _meet(warp)

    return write
