"""Products of up to eight columns with up to four short weights: everything is asked for at once.

A block makes one row tile, a warp one of the eight parts of K. Where a part is a few k tiles, the
warp asks for all of them before it waits for its predecessor, and right after that for all columns,
which it keeps in registers, and for what its products are added to. Formats are those without sums
of columns. A row's bits are those of `few_product`; `narrow_shape` says where this way is better.

Traffic: every matrix once; the columns once for each block.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.cuda.stream import CudaStream
from ninfer.kernels.cuda.few_shape import SLOTS
from ninfer.kernels.cuda.few_walk import make_ask, part_stride
from ninfer.kernels.cuda.group_products import make_begin, make_end, make_put_sums, slab_product
from ninfer.kernels.cuda.launch import RESERVED_SHARED, block_parts, closing_bytes
from ninfer.kernels.cuda.narrow_shape import NARROW, STEPS, has_room, warp_bytes
from ninfer.kernels.cuda.product_output import load_before, store_after, warp_index
from ninfer.kernels.cuda.row_products import MODE_AT, SKIP_AT, Formats, RowProduct
from ninfer.kernels.cuda.skinny_shape import CHUNK_BYTES, PARTS, THREADS
from ninfer.kernels.cuda.weight_layout import TILE_FEATURES, TILE_ROWS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS, make_masks
from ninfer.kernels.cuda.weight_tiles import tile_functions
from ninfer.tensor import LinearInput, TensorFormat

Address = Any
Array = Any
Index = Any


def launch_narrow(
    stream: CudaStream,
    x: LinearInput,
    formats: Formats,
    products: Sequence[RowProduct],
    places: int,
) -> None:
    """Make products of one launch, of which ``narrow_places`` blocks share a multiprocessor."""
    base, _, padded = block_parts(x)
    k_tiles = padded // TILE_FEATURES
    steps = k_tiles // PARTS
    args = [base, k_tiles, x.num_columns]
    end = 0
    for product in products:
        end += product.tiles
        args += [product.address, product.target, end]
        args += [product.num_rows, product.width, product.kind(formats)]
    args += args[-6:] * (SLOTS - len(products))
    closing = closing_bytes(stream.shared_bytes + RESERVED_SHARED, places)
    stream.launch(
        make_narrow(formats, steps, places),
        (end, 1, 1),
        args,
        shared_bytes=max(PARTS * warp_bytes(formats, steps), closing),
    )


def declared(block_shared_bytes: int) -> tuple[Kernel, ...]:
    """Kernels that a device may have room for."""
    return tuple(
        make_narrow(formats, steps, places)
        for formats in NARROW
        for places, every in STEPS.items()
        for steps in every
        if has_room(formats, steps * PARTS, places, block_shared_bytes)
    )


@cache
def make_narrow(formats: Formats, steps: int, places: int) -> Kernel:
    """One block for each row tile of every weight; block (256,).

    Args:
        formats: of the weights.
        steps: k tiles of a part.
        places: blocks of a multiprocessor.
    """
    own_bytes = warp_bytes(formats, steps)
    stride = part_stride(1)
    put_sums = make_put_sums(1, 1, stride)
    run = _choice(tuple(_make_run(format, steps, put_sums) for format in formats))

    def narrow(
        base: int,
        k_tiles: int,
        num_columns: int,
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
        block = int32(cuda.blockIdx.x)
        first = int32(0)
        codes, kind, out, rows, width = codes_0, kind_0, out_0, rows_0, width_0
        if block >= end_0:
            first, codes, kind, out, rows, width = end_0, codes_1, kind_1, out_1, rows_1, width_1
        if block >= end_1:
            first, codes, kind, out, rows, width = end_1, codes_2, kind_2, out_2, rows_2, width_2
        if block >= end_2:
            first, codes, kind, out, rows, width = end_2, codes_3, kind_3, out_3, rows_3, width_3
        own = ptx.shared_address(shared)
        warp, lane = uint32(warp_index()), uint32(cuda.threadIdx.x) & uint32(31)
        part = uint32(warp & uint32(PARTS - 1))
        ring = uint32(own + part * uint32(own_bytes))
        element = uint32(cuda.threadIdx.x)
        own_row = uint32(element & uint32(TILE_ROWS - 1))
        column = int32(element >> uint32(4))
        skip = (kind >> int32(SKIP_AT)) & int32(15)
        row = int32(int32(block - first) * int32(TILE_ROWS) + int32(own_row) - skip)
        mode = (kind >> int32(MODE_AT)) & int32(15)
        is_inside = uint32(row >= int32(0)) & uint32(row < rows) & uint32(column < num_columns)
        place = uint64(column) * uint64(width) + uint64(row)
        total = cuda.local.array(4, float32)
        tile = uint32(uint32(block - first) * uint32(k_tiles) + part)
        before = run(
            kind & int32(15), ring, codes, tile, base, warp, num_columns, lane, total,
            (out, place, is_inside, mode),
        )  # fmt: skip
        cuda.syncthreads()
        at = uint32(own + (uint32(column) * uint32(stride) + own_row) * uint32(4))
        if warp < uint32(TILE_ROWS * 8 // 32):
            value = ptx.shared_f32(at)
            for other in range(1, PARTS):
                value += ptx.shared_f32(at + uint32(other * own_bytes))
            store_after(out, place, is_inside, mode, value, before)

    name = "_".join(format.name.lower() for format in formats)
    slot = (Param.ADDRESS,) * 2 + (Param.I32,) * 4
    return Kernel(
        f"narrow_{name}_{steps}_{places}",
        narrow,
        (Param.ADDRESS,) + (Param.I32,) * 2 + slot * SLOTS,
        threads=THREADS,
        max_registers=min(248, 65536 // (THREADS * places) // 8 * 8),
        dynamic_shared_bytes=PARTS * own_bytes,
        min_blocks=places,
    )


def _make_run(format: TensorFormat, steps: int, put_sums: Any) -> Any:
    """A warp's part: (ring, codes, tile, base, part, num_columns, lane, total, target)."""
    tile_bytes, num_words = PAIR_FORMATS[format].tile_bytes, 16 * steps
    ask, multiply = make_ask(format, 1), _make_multiply(format)
    make_own_masks = make_masks(format, keeps=True)

    @device_function
    def run(
        ring: Address,
        codes: Address,
        tile: Index,
        base: Address,
        part: Index,
        num_columns: Index,
        lane: Index,
        total: Array,
        target: Any,
    ) -> Any:
        source = cuda.local.array(1, uint64)
        source[0] = codes + uint64(tile) * uint64(tile_bytes) + uint64(lane * uint32(16))
        for step in range(steps):
            to = uint32(ring + lane * uint32(16) + uint32(step * tile_bytes))
            ask(to, source, lane, uint32(1))
            ptx.close_copies()
        masks = make_own_masks()
        own = ptx.smaller_u32(lane >> uint32(2), uint32(num_columns - 1))
        at = uint32(own * uint32(64) + (lane & uint32(3)) * uint32(16))
        chunk = base + uint64(part) * uint64(CHUNK_BYTES) + uint64(at)
        out, place, is_inside, mode = target
        ptx.wait_for_predecessor()
        x = cuda.local.array(num_words, uint32)
        for step in range(steps):
            for slab in range(4):
                i = step * 16 + slab * 4
                x[i], x[i + 1], x[i + 2], x[i + 3] = ptx.load_u32x4(
                    chunk + uint64(step * PARTS * CHUNK_BYTES + slab * 512)
                )
        before = load_before(out, place, is_inside, mode)
        for i in range(4):
            total[i] = float32(0.0)
        for step in range(steps):
            _wait(int32(steps - 1 - step))
            ptx.sync_warp()
            multiply(uint32(ring + uint32(step * tile_bytes)), lane, x, step * 16, total, masks)
        ptx.sync_warp()
        put_sums(ring, lane, total)
        return before

    return run


@device_function
def _wait(later: Index) -> None:
    """Wait for all copies but those of so many later tiles."""
    if later == int32(0):
        ptx.wait_copies_0()
    if later == int32(1):
        ptx.wait_copies_1()
    if later == int32(2):
        ptx.wait_copies_2()
    if later == int32(3):
        ptx.wait_copies_3()


def _make_multiply(format: TensorFormat) -> Any:
    """Products of a k tile with columns in registers: (stored, lane, x, first, total, masks)."""
    functions = tile_functions(format)
    load_codes, load_high = functions.load_codes, functions.load_high
    load_scales, pairs = functions.load_scales, functions.pairs
    word_slabs = PAIR_FORMATS[format].unit_slabs
    chain_slabs = PAIR_FORMATS[format].group_slabs or 4
    begin, end = make_begin(format, 1, 4 // chain_slabs), make_end(format, 1)

    @device_function
    def multiply(
        stored: Address, lane: Index, x: Array, first: int, total: Array, masks: Any
    ) -> None:
        words = cuda.local.array(8, uint32)
        extra = cuda.local.array(8, uint32)
        a = cuda.local.array(8, uint32)
        s = cuda.local.array(4, float32)
        chain = cuda.local.array(4, float32)
        load_high(stored, lane, extra)
        load_scales(stored, lane, extra)
        for slab in range(4):
            group = slab // chain_slabs
            if slab % chain_slabs == 0:
                begin(chain, 0, group, s, total)
            if slab % word_slabs == 0:
                load_codes(stored, lane, slab, words)
            pairs(words, extra, slab, a, masks)
            slab_product(a, x, first + slab * 4, chain, 0)
            if (slab + 1) % chain_slabs == 0:
                end(chain, 0, group, extra, total)

    return multiply


def _choice(runs: tuple[Callable[..., Any], ...]) -> Any:
    """The function of the block's format, by its number."""
    head = runs[0]
    if len(runs) == 1:

        @device_function
        def only(
            kind: Index, ring: Address, codes: Address, tile: Index, base: Address, part: Index,
            num_columns: Index, lane: Index, total: Array, target: Any,
        ) -> Any:  # fmt: skip
            return head(ring, codes, tile, base, part, num_columns, lane, total, target)

        return only
    others = _choice(runs[1:])

    @device_function
    def either(
        kind: Index, ring: Address, codes: Address, tile: Index, base: Address, part: Index,
        num_columns: Index, lane: Index, total: Array, target: Any,
    ) -> Any:  # fmt: skip
        if kind == int32(0):
            before = head(ring, codes, tile, base, part, num_columns, lane, total, target)
        else:
            before = others(
                int32(kind - int32(1)), ring, codes, tile, base, part, num_columns, lane, total,
                target,
            )  # fmt: skip
        return before

    return either
