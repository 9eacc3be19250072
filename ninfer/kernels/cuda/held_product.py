"""Products of up to eight columns that stay in shared memory, with up to four weights.

`held_shape` says how blocks fill the card, `held_walk` how a warp walks. A row's bits are those of
`few_product` and `skinny_product`.

Traffic: every matrix once; the columns once for each multiprocessor.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.cuda.stream import CudaStream
from ninfer.kernels.cuda.few_shape import SLOTS
from ninfer.kernels.cuda.held_columns import bring_columns
from ninfer.kernels.cuda.held_shape import (
    GROUP_SUM_BYTES,
    HELD_THREADS,
    K_TILE_BYTES,
    PART_BYTES,
    TEAM_BYTES,
    TEAMS,
    held_bytes,
    num_stages,
    ring_bytes,
    stage_bytes,
)
from ninfer.kernels.cuda.held_walk import (
    CURSOR_WORDS,
    LAST,
    NEXT,
    SLOT,
    find_rows,
    find_target,
    make_ask,
    make_walk,
    next_tile,
)
from ninfer.kernels.cuda.launch import WARP, block_parts
from ninfer.kernels.cuda.product_output import load_before, store_after, warp_index
from ninfer.kernels.cuda.row_products import MODE_AT, SKIP_AT, Formats, RowProduct
from ninfer.kernels.cuda.skinny_shape import PARTS, THREADS
from ninfer.kernels.cuda.weight_layout import TILE_FEATURES, TILE_ROWS
from ninfer.tensor import LinearInput, TensorFormat

HELD: Final[tuple[Formats, ...]] = (
    (TensorFormat.Q4,),
    (TensorFormat.Q5,),
    (TensorFormat.Q6,),
    (TensorFormat.Q4, TensorFormat.Q5),
    (TensorFormat.Q4, TensorFormat.Q5, TensorFormat.BF16),
)
"""Formats of a launch that kernels are made for."""

_REGISTERS: Final = 65536 // HELD_THREADS // 8 * 8
_ADDING_WARPS: Final = TILE_ROWS * 8 // 32  # of a team: an element for each thread

Address = Any
Array = Any
Index = Any


def launch_held(
    stream: CudaStream, x: LinearInput, formats: Formats, products: Sequence[RowProduct]
) -> None:
    """Make products of one launch, whose formats are in `HELD`, and `has_room` for them."""
    base, sums, padded = block_parts(x)
    k_tiles = padded // TILE_FEATURES
    rows: list[int] = []
    end = 0
    for product in reversed(products):  # formats of more bytes come first
        end += product.tiles
        rows += [product.address, product.target, end]
        rows += [product.num_rows, product.width, product.kind(formats)]
    rows += rows[-6:] * (SLOTS - len(products))
    stream.launch(
        make_held(formats),
        (min(stream.num_multiprocessors, end), 1, 1),
        (base, sums, k_tiles, x.num_columns, end, *rows),
        shared_bytes=held_bytes(formats, k_tiles),
    )


@cache
def make_held(  # noqa: PLR0915 - one loop, whose state is a lane's registers
    formats: Formats,
) -> Kernel:
    """Kernel for up to four weights of these formats; one block (768,) a multiprocessor."""
    warp_bytes, stages = ring_bytes(formats), num_stages(formats)
    step = stage_bytes(formats)
    sums_at = TEAMS * PARTS * warp_bytes
    columns_at = sums_at + TEAMS * TEAM_BYTES
    ask = make_ask(formats)
    walk_rows = _choice(tuple(make_walk(format, formats, ask) for format in formats))

    def held(  # noqa: PLR0915 - as above
        base: int,
        group_sums: int,
        k_tiles: int,
        num_columns: int,
        total_tiles: int,
        codes_0: int,
        out_0: int,
        end_0: int,
        rows_0: int,
        width_0: int,
        kind_0: int,
        codes_1: int,
        out_1: int,
        end_1: int,
        rows_1: int,
        width_1: int,
        kind_1: int,
        codes_2: int,
        out_2: int,
        end_2: int,
        rows_2: int,
        width_2: int,
        kind_2: int,
        codes_3: int,
        out_3: int,
        end_3: int,
        rows_3: int,
        width_3: int,
        kind_3: int,
    ) -> None:
        shared = cuda.shared.array(0, uint64)
        ptx.release_successor()
        own = ptx.shared_address(shared)
        warp, lane = uint32(warp_index()), uint32(cuda.threadIdx.x) & uint32(31)
        team, part = uint32(warp // uint32(PARTS)), uint32(warp % uint32(PARTS))
        count = int32((uint32(k_tiles) + uint32(PARTS - 1) - part) // uint32(PARTS))
        turn = int32(int32(cuda.gridDim.x) * int32(TEAMS))
        tile = int32(uint32(cuda.blockIdx.x) + team * uint32(cuda.gridDim.x))
        ends = (end_0, end_1, end_2)
        rows = ((codes_0, codes_1, codes_2, codes_3), ends, (kind_0, kind_1, kind_2, kind_3))
        targets = (
            (out_0, out_1, out_2, out_3),
            ends,
            (rows_0, rows_1, rows_2, rows_3),
            (width_0, width_1, width_2, width_3),
        )
        walk = (int32(k_tiles), part, lane, count, int32(total_tiles), turn)
        ring = uint32(own + warp * uint32(warp_bytes))
        cursor = cuda.local.array(CURSOR_WORDS, int32)
        source = cuda.local.array(1, uint64)
        for i in range(CURSOR_WORDS):
            cursor[i] = int32(0)
        source[0] = uint64(codes_0)
        cursor[NEXT] = tile
        cursor[SLOT] = int32(ring)
        cursor[LAST] = int32(ring + uint32((stages - 1) * step))
        for stage in range(stages - 1):
            ask(uint32(ring + uint32(stage * step)), cursor, source, walk, rows)
        ptx.wait_for_predecessor()
        columns = uint32(own + uint32(columns_at))
        sums = uint32(columns + uint32(k_tiles) * uint32(K_TILE_BYTES))
        # Warps of the same part share its columns, and wait for nobody else.
        k_tile = uint32(part + team * uint32(PARTS))
        while k_tile < uint32(k_tiles):
            bring_columns(k_tile, lane, columns, base, sums, group_sums, num_columns)
            k_tile = uint32(k_tile + uint32(TEAMS * PARTS))
        ptx.close_copies()
        ptx.wait_copies_0()
        ptx.sync_threads(uint32(part + uint32(1 + TEAMS)), uint32(TEAMS * WARP))
        x = uint32(columns + part * uint32(K_TILE_BYTES) + lane * uint32(16))
        s = uint32(sums + part * uint32(GROUP_SUM_BYTES) + (lane & uint32(3)) * uint32(8))
        made = uint32(own + uint32(sums_at) + team * uint32(TEAM_BYTES))
        other = uint32(made + uint32(PARTS * PART_BYTES))
        element = uint32(cuda.threadIdx.x) % uint32(THREADS)
        own_row = int32(element & uint32(TILE_ROWS - 1))
        column = int32((element // uint32(TILE_ROWS)) & uint32(7))
        is_adding = part < uint32(_ADDING_WARPS)
        total = cuda.local.array(4, float32)
        while tile < total_tiles:
            _, row_tile, kind = find_rows(tile, rows)
            out, num_rows, width = find_target(tile, targets)
            row = int32(row_tile * int32(TILE_ROWS) + own_row)
            row = int32(row - ((kind >> int32(SKIP_AT)) & int32(15)))
            mode = (kind >> int32(MODE_AT)) & int32(15)
            is_inside = (
                uint32(is_adding)
                & uint32(row >= int32(0))
                & uint32(row < num_rows)
                & uint32(column < num_columns)
            )
            place = uint64(column) * uint64(width) + uint64(row)
            before = load_before(out, place, is_inside, mode)
            for i in range(4):
                total[i] = float32(0.0)
            walk_rows(kind & int32(15), ring, cursor, source, walk, rows, x, s, total)
            at = made + part * uint32(PART_BYTES) + lane * uint32(8)
            ptx.put_shared_f32x2(at, total[0], total[1])
            ptx.put_shared_f32x2(at + uint32(PART_BYTES // 2), total[2], total[3])
            ptx.sync_threads(team + uint32(1), uint32(THREADS))
            # These sums are written again only after the barrier of the next row tile.
            if is_adding:
                at = made + uint32(own_row * int32(32) + column * int32(4))
                value = ptx.shared_f32(at)
                for p in range(1, PARTS):
                    value += ptx.shared_f32(at + uint32(p * PART_BYTES))
                store_after(out, place, is_inside, mode, value, before)
            made, other = other, made
            tile = next_tile(tile, turn)

    name = "_".join(format.name.lower() for format in formats)
    weight = (Param.ADDRESS,) * 2 + (Param.I32,) * 4
    return Kernel(
        f"held_{name}",
        held,
        (Param.ADDRESS,) * 2 + (Param.I32,) * 3 + weight * SLOTS,
        threads=HELD_THREADS,
        max_registers=_REGISTERS,
        dynamic_shared_bytes=held_bytes(formats, 1),
        min_blocks=1,
    )


def _choice(walks: tuple[Callable[..., Any], ...]) -> Any:
    """The walk over a row tile, by the number of its format."""
    head = walks[0]
    if len(walks) == 1:

        @device_function
        def only(
            format: Index, ring: Address, cursor: Array, source: Array, walk: Any, rows: Any,
            x: Address, s: Address, total: Array,
        ) -> None:  # fmt: skip
            head(ring, cursor, source, walk, rows, x, s, total)

        return only
    others = _choice(walks[1:])

    @device_function
    def either(
        format: Index, ring: Address, cursor: Array, source: Array, walk: Any, rows: Any,
        x: Address, s: Address, total: Array,
    ) -> None:  # fmt: skip
        if format == int32(0):
            head(ring, cursor, source, walk, rows, x, s, total)
        else:
            others(int32(format - int32(1)), ring, cursor, source, walk, rows, x, s, total)

    return either
