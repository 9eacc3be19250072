"""Products of up to eight columns with one weight of very many row tiles: a warp makes whole ones.

Eight warps that share a row tile meet after every few k tiles. Here one warp makes all eight parts
of a row tile, one after another, and adds them in its registers, in the order of `few_product`,
whose bits a row has. Warps share the columns, which a block keeps in shared memory, and wait for
nobody once those have come; a warp's ring goes on from one row tile to the next. With more than
four row tiles for each warp of the card it matters little that the last turn is not full.

Traffic: the matrix once; the columns once for each multiprocessor.
"""

from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.cuda.stream import CudaStream
from ninfer.kernels.cuda.held_columns import bring_columns
from ninfer.kernels.cuda.held_shape import GROUP_SUM_BYTES, K_TILE_BYTES
from ninfer.kernels.cuda.held_walk import make_step
from ninfer.kernels.cuda.launch import WARP, block_parts
from ninfer.kernels.cuda.product_output import store_after, warp_index
from ninfer.kernels.cuda.row_products import MODE_AT, SKIP_AT, RowProduct
from ninfer.kernels.cuda.skinny_shape import PARTS, WAITS
from ninfer.kernels.cuda.weight_layout import TILE_FEATURES, TILE_ROWS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS, make_masks
from ninfer.kernels.cuda.whole_shape import STAGES, WARPS, whole_bytes
from ninfer.tensor import LinearInput, TensorFormat

WHOLE: Final = (TensorFormat.Q6,)
"""Formats that kernels are made for: those of heads."""

_THREADS: Final = WARPS * WARP
_REGISTERS: Final = 65536 // _THREADS // 8 * 8

LEFT, PART, NEXT = range(3)
"""Words of the cursor of copies: steps left in a part, the part, its row tile."""

Address = Any
Array = Any
Index = Any


def launch_whole(stream: CudaStream, x: LinearInput, product: RowProduct) -> None:
    """Make the products of one weight, for which `whole_shape.is_whole`."""
    base, sums, padded = block_parts(x)
    k_tiles = padded // TILE_FEATURES
    stream.launch(
        make_whole(product.format),
        (stream.num_multiprocessors, 1, 1),
        (
            base, sums, k_tiles, x.num_columns,
            product.address, product.target, product.tiles, product.num_rows, product.width,
            product.kind((product.format,)),
        ),
        shared_bytes=whole_bytes(product.format, k_tiles),
    )  # fmt: skip


@cache
def make_whole(  # noqa: PLR0915 - one loop, whose state is a lane's registers
    format: TensorFormat,
) -> Kernel:
    """Kernel for one weight of this format; one block (768,) a multiprocessor."""
    tile_bytes = PAIR_FORMATS[format].tile_bytes
    ring_bytes = STAGES * tile_bytes
    columns_at = WARPS * ring_bytes
    ask = _make_ask(format)
    multiply, make_own_masks = make_step(format), make_masks(format, keeps=True)
    wait_copies = WAITS[STAGES]

    def whole(  # noqa: PLR0915 - as above
        base: int,
        group_sums: int,
        k_tiles: int,
        num_columns: int,
        codes: int,
        out: int,
        tiles: int,
        rows: int,
        width: int,
        kind: int,
    ) -> None:
        shared = cuda.shared.array(0, uint64)
        ptx.release_successor()
        own = ptx.shared_address(shared)
        warp, lane = uint32(warp_index()), uint32(cuda.threadIdx.x) & uint32(31)
        turn = int32(int32(cuda.gridDim.x) * int32(WARPS))
        tile = int32(uint32(cuda.blockIdx.x) + warp * uint32(cuda.gridDim.x))
        count = int32(uint32(k_tiles) // uint32(PARTS))
        ring = uint32(own + warp * uint32(ring_bytes))
        end = uint32(ring + uint32(ring_bytes))
        row_bytes = uint64(k_tiles) * uint64(tile_bytes)
        walk = (lane, count, int32(tiles), turn, row_bytes, codes + uint64(lane * uint32(16)))
        cursor = cuda.local.array(3, int32)
        source = cuda.local.array(1, uint64)
        cursor[LEFT], cursor[PART], cursor[NEXT] = count, int32(0), tile
        source[0] = walk[5] + uint64(tile) * row_bytes
        for stage in range(STAGES - 1):
            ask(uint32(ring + uint32(stage * tile_bytes)), cursor, source, walk)
        ptx.wait_for_predecessor()
        columns = uint32(own + uint32(columns_at))
        sums = uint32(columns + uint32(k_tiles) * uint32(K_TILE_BYTES))
        k_tile = warp
        while k_tile < uint32(k_tiles):
            bring_columns(k_tile, lane, columns, base, sums, group_sums, num_columns)
            k_tile = uint32(k_tile + uint32(WARPS))
        ptx.close_copies()
        ptx.wait_copies_0()
        cuda.syncthreads()
        masks = make_own_masks()
        first_x = uint32(columns + lane * uint32(16))
        first_s = uint32(sums + (lane & uint32(3)) * uint32(8))
        slot, last = ring, uint32(end - uint32(tile_bytes))
        total = cuda.local.array(4, float32)
        value = cuda.local.array(4, float32)
        while tile < int32(tiles):
            for i in range(4):
                value[i] = float32(-0.0)  # to which adding anything gives that
            part = uint32(0)
            while part < uint32(PARTS):
                for i in range(4):
                    total[i] = float32(0.0)
                x = uint32(first_x + part * uint32(K_TILE_BYTES))
                s = uint32(first_s + part * uint32(GROUP_SUM_BYTES))
                n = count
                while n > int32(0):
                    wait_copies()
                    ptx.sync_warp()
                    ask(last, cursor, source, walk)
                    multiply(slot, lane, x, s, total, masks)
                    last = slot
                    slot = uint32(slot + uint32(tile_bytes))
                    if slot == end:
                        slot = ring
                    x = uint32(x + uint32(PARTS * K_TILE_BYTES))
                    s = uint32(s + uint32(PARTS * GROUP_SUM_BYTES))
                    n = int32(n - int32(1))
                for i in range(4):
                    value[i] += total[i]
                part = uint32(part + uint32(1))
            _write(tile, lane, out, rows, width, num_columns, kind, value)
            tile = int32(tile + turn)

    return Kernel(
        f"whole_{format.name.lower()}",
        whole,
        (Param.ADDRESS,) * 2 + (Param.I32,) * 2 + (Param.ADDRESS,) * 2 + (Param.I32,) * 4,
        threads=_THREADS,
        max_registers=_REGISTERS,
        dynamic_shared_bytes=whole_bytes(format, PARTS),
        min_blocks=1,
    )


def _make_ask(format: TensorFormat) -> Any:
    """Ask for a warp's next k tile, if there is one: (to, cursor, source, walk).

    ``walk`` is (lane, steps of a part, row tiles, row tiles of all warps, bytes of a row tile,
    where this lane's first one lies).
    """
    tile_bytes = PAIR_FORMATS[format].tile_bytes
    steps, rest = tile_bytes // 512, tile_bytes % 512 // 16

    @device_function
    def ask(to: Address, cursor: Array, source: Array, walk: Any) -> None:
        lane, count, tiles, turn, row_bytes, first = walk
        is_inside = uint32(cursor[NEXT] < tiles)
        at = to + lane * uint32(16)
        for step in range(steps):
            ptx.copy_weights_16_if(
                at + uint32(step * 512), source[0] + uint64(step * 512), is_inside
            )
        if rest > 0:
            is_rest = is_inside & uint32(lane < uint32(rest))
            ptx.copy_weights_16_if(
                at + uint32(steps * 512), source[0] + uint64(steps * 512), is_rest
            )
        ptx.close_copies()
        cursor[LEFT] = int32(cursor[LEFT] - int32(1))
        source[0] += uint64(PARTS * tile_bytes)
        if cursor[LEFT] == int32(0):
            cursor[LEFT] = count
            cursor[PART] = int32(cursor[PART] + int32(1))
            source[0] = source[0] + uint64(tile_bytes) - row_bytes
            if cursor[PART] == int32(PARTS):
                cursor[PART] = int32(0)
                cursor[NEXT] = int32(cursor[NEXT] + turn)
                source[0] = first + uint64(cursor[NEXT]) * row_bytes

    return ask


@device_function
def _write(
    tile: Index,
    lane: Index,
    out: Address,
    rows: Index,
    width: Index,
    num_columns: Index,
    kind: Index,
    value: Array,
) -> None:
    """Write a row tile; a lane has two columns of two rows."""
    mode, skip = (kind >> int32(MODE_AT)) & int32(15), (kind >> int32(SKIP_AT)) & int32(15)
    first = int32(tile * int32(TILE_ROWS) + int32(lane >> uint32(2)) - skip)
    for i in range(4):
        row = int32(first + int32(i // 2 * 8))
        column = int32(int32((lane & uint32(3)) * uint32(2)) + int32(i % 2))
        is_inside = uint32(row >= int32(0)) & uint32(row < rows) & uint32(column < num_columns)
        place = uint64(column) * uint64(width) + uint64(row)
        store_after(out, place, is_inside, mode, value[i], uint32(0))
