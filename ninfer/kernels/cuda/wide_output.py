"""The end of a wide product: sums in registers to rows of the output, through shared memory.

A warp has 16 columns x 128 or 256 weight rows of a tile; lane ``4 r + t`` holds, of each eight
rows ``8 j ..``, products ``2 t`` and ``2 t + 1`` of columns r and r + 8. Each warp turns its part
over in 4 KiB of its own, so that sixteen lanes write 256 consecutive bytes of a column. Pieces of
16 bytes are swizzled by the column so that neither side meets a bank twice.

    BF16   rounded and stored in pieces of eight; everything is a multiple of eight
    ADD    added in f32 to the bf16 that is there, rounded, stored likewise
    ANY    every mode of `product_output`, element by element
"""

import enum
from typing import Any, Final

from numba import cuda, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.device_functions import lower_bf16, upper_bf16
from ninfer.kernels.cuda.product_output import store_product

STAGING_BYTES: Final = 8 * 4096
"""Of all consumer warps."""

Address = Any
Array = Any
Index = Any


class Ending(enum.Enum):
    """How results are written."""

    BF16 = enum.auto()
    ADD = enum.auto()
    ANY = enum.auto()


def make_ending(ending: Ending, row_blocks: int) -> Any:
    """Make the function that writes a warp's part of a tile.

    It takes (staging, out, sums, first column, first row, number of rows, of columns, width of the
    output, column of the output where row 0 goes, mode); rows count from the view's first.
    """
    make_part = {Ending.BF16: _make_rounded, Ending.ADD: _make_added, Ending.ANY: _make_any}[ending]
    per_block = 1 if ending is Ending.BF16 else 2
    num_parts = row_blocks * per_block
    first, second = make_part(0), make_part(1)
    third, fourth = make_part(2), make_part(3)

    @device_function
    def write(
        staging: Address,
        out: Address,
        total: Array,
        token: Index,
        row: Index,
        num_rows: Index,
        num_columns: Index,
        out_width: Index,
        first_column: Index,
        mode: Index,
    ) -> None:
        first(staging, out, total, token, row, num_rows, num_columns, out_width, first_column, mode)
        if num_parts > 1:
            second(
                staging, out, total, token, row, num_rows, num_columns, out_width, first_column,
                mode,
            )  # fmt: skip
        if num_parts > 2:
            third(
                staging, out, total, token, row, num_rows, num_columns, out_width, first_column,
                mode,
            )  # fmt: skip
            fourth(
                staging, out, total, token, row, num_rows, num_columns, out_width, first_column,
                mode,
            )  # fmt: skip

    return write


def _make_rounded(part: int) -> Any:
    """128 rows: bf16 pairs into the staging, eight of them to a lane, 16 bytes to memory."""
    offset = part * 64

    @device_function
    def write(
        staging: Address,
        out: Address,
        total: Array,
        token: Index,
        row: Index,
        num_rows: Index,
        num_columns: Index,
        out_width: Index,
        first_column: Index,
        mode: Index,
    ) -> None:
        lane = uint32(cuda.threadIdx.x) & uint32(31)
        r, t = lane >> uint32(2), lane & uint32(3)
        at = staging + r * uint32(256) + t * uint32(4)
        for j in range(16):
            i = offset + 4 * j
            piece = (uint32(j) ^ r) << uint32(4)
            ptx.put_shared_u32(at + piece, ptx.bf16x2_of_f32(total[i], total[i + 1]))
            ptx.put_shared_u32(
                at + uint32(2048) + piece, ptx.bf16x2_of_f32(total[i + 2], total[i + 3])
            )
        cuda.syncwarp()
        piece = lane & uint32(15)
        inside = row + int32(part * 128) + int32(piece) * int32(8)
        place = uint64(first_column + inside)
        for step in range(8):
            line = uint32(2 * step) + (lane >> uint32(4))
            from_ = staging + line * uint32(256)
            a, b, c, d = ptx.shared_u32x4(from_ + ((piece ^ (line & uint32(7))) << uint32(4)))
            column = token + int32(line)
            if column < num_columns and inside < num_rows:
                to = out + (uint64(column) * uint64(out_width) + place) * uint64(2)
                ptx.store_u32x4(to, a, b, c, d)
        cuda.syncwarp()

    return write


@device_function
def _stage_f32(staging: Address, total: Array, offset: int) -> None:
    """64 rows as f32: 256 bytes for each column."""
    lane = uint32(cuda.threadIdx.x) & uint32(31)
    r, t = lane >> uint32(2), lane & uint32(3)
    at = staging + r * uint32(256) + (t & uint32(1)) * uint32(8)
    for j in range(8):
        i = offset + 4 * j
        piece = (uint32(2 * j) + (t >> uint32(1))) ^ (r << uint32(1))
        ptx.put_shared_f32x2(at + (piece << uint32(4)), total[i], total[i + 1])
        ptx.put_shared_f32x2(at + uint32(2048) + (piece << uint32(4)), total[i + 2], total[i + 3])


def _make_added(part: int) -> Any:
    """64 rows: eight f32 to a lane, added to 16 bytes of memory."""
    offset = part * 32

    @device_function
    def write(
        staging: Address,
        out: Address,
        total: Array,
        token: Index,
        row: Index,
        num_rows: Index,
        num_columns: Index,
        out_width: Index,
        first_column: Index,
        mode: Index,
    ) -> None:
        lane = uint32(cuda.threadIdx.x) & uint32(31)
        _stage_f32(staging, total, offset)
        cuda.syncwarp()
        piece = lane & uint32(7)
        inside = row + int32(part * 64) + int32(piece) * int32(8)
        place = uint64(first_column + inside)
        for step in range(4):
            line = uint32(4 * step) + (lane >> uint32(3))
            turn = (line & uint32(7)) << uint32(1)
            from_ = staging + line * uint32(256)
            even = ((piece << uint32(1)) ^ turn) << uint32(4)
            v0, v1, v2, v3 = ptx.shared_f32x4(from_ + even)
            v4, v5, v6, v7 = ptx.shared_f32x4(from_ + (even ^ uint32(16)))
            column = token + int32(line)
            if column < num_columns and inside < num_rows:
                to = out + (uint64(column) * uint64(out_width) + place) * uint64(2)
                a, b, c, d = ptx.load_u32x4(to)
                ptx.store_u32x4(
                    to,
                    ptx.bf16x2_of_f32(v0 + lower_bf16(a), v1 + upper_bf16(a)),
                    ptx.bf16x2_of_f32(v2 + lower_bf16(b), v3 + upper_bf16(b)),
                    ptx.bf16x2_of_f32(v4 + lower_bf16(c), v5 + upper_bf16(c)),
                    ptx.bf16x2_of_f32(v6 + lower_bf16(d), v7 + upper_bf16(d)),
                )
        cuda.syncwarp()

    return write


def _make_any(part: int) -> Any:
    """64 rows: one product of neighbouring rows to each lane."""
    offset = part * 32

    @device_function
    def write(
        staging: Address,
        out: Address,
        total: Array,
        token: Index,
        row: Index,
        num_rows: Index,
        num_columns: Index,
        out_width: Index,
        first_column: Index,
        mode: Index,
    ) -> None:
        lane = uint32(cuda.threadIdx.x) & uint32(31)
        _stage_f32(staging, total, offset)
        cuda.syncwarp()
        for step in range(32):
            line = uint32(step >> 1)
            within = lane + uint32(step % 2 * 32)
            piece = (within >> uint32(2)) ^ ((line & uint32(7)) << uint32(1))
            at = staging + line * uint32(256) + (piece << uint32(4))
            value = ptx.shared_f32(at + ((within & uint32(3)) << uint32(2)))
            column = token + int32(line)
            inside = row + int32(part * 64) + int32(within)
            is_inside = uint32(inside < num_rows) & uint32(column < num_columns)
            place = uint64(column) * uint64(out_width) + uint64(first_column + inside)
            store_product(out, place, is_inside, mode, value)
        cuda.syncwarp()

    return write
