"""Gated causal attention over the paged cache on CUDA: launchers.

Decode takes any columns, as many as are fragments: a fixed grid works on fixed splits of every
column's positions (`attention_decode`, or `attention_page_decode` where a block has little shared
memory; `attention_int8_split` over int8 pages), and partial results lie in the stream's scratch
memory, for as many columns at a time as fit. Prefill takes consecutive positions of one sequence
(`attention_prefill`; for heads of 256 `attention_wide` on warpgroups, `attention_page_prefill`
elsewhere). The two differ in arithmetic; each depends on a column's own position and cache alone.

On warpgroups int8 pages are turned into bf16 pages in the scratch memory first. Where a sequence
could be too long for that, and only the device knows how long it is, a kernel that turns codes
itself is launched behind, and either does the work: they give the same bits.
"""

import math
from collections.abc import Sequence
from typing import Final

from ninfer.cuda.kernel_source import Kernel
from ninfer.cuda.stream import CudaStream
from ninfer.errors import ShapeError
from ninfer.kernels.cuda.attention_decode import make_split, split_stages
from ninfer.kernels.cuda.attention_expand import ScratchPages, make_expand
from ninfer.kernels.cuda.attention_int8_split import int8_stages, make_int8_split
from ninfer.kernels.cuda.attention_merge import block_components, make_merge
from ninfer.kernels.cuda.attention_page_decode import make_page_split
from ninfer.kernels.cuda.attention_page_prefill import WARP_QUERIES, make_page_prefill, page_warps
from ninfer.kernels.cuda.attention_pages import TILE_QUERIES
from ninfer.kernels.cuda.attention_prefill import make_prefill
from ninfer.kernels.cuda.attention_splits import PAGE_TOKENS, num_splits
from ninfer.kernels.cuda.attention_wide import make_wide_prefill
from ninfer.kernels.cuda.attention_wide_int8 import make_wide_int8_prefill
from ninfer.kernels.cuda.attention_wide_parts import HEAD_DIM
from ninfer.kernels.cuda.column_image import expect_fragments, is_image
from ninfer.kernels.cuda.launch import KernelShapes, block_parts, blocks_for, orders
from ninfer.kernels.operand_groups import KvPlanes
from ninfer.tensor import DType, LinearInput, Tensor

# What fits on the 132 multiprocessors of an H200; right on any other device.
_BLOCKS: Final = {DType.BF16: 132, DType.I8: 264}
_HEAD_DIMS: Final = (64, 128, 256)
_EXPAND_BLOCKS: Final = 4 * 132
_ENDLESS: Final = 2**31 - 1  # positions
_LOG2_E: Final = math.log2(math.e)


def paged_decode(
    stream: CudaStream,
    queries: Tensor,
    projected: Tensor,
    kv: KvPlanes,
    table_rows: Tensor,
    positions: Tensor,
    scale: float,
    out: LinearInput,
) -> None:
    """Attend any columns, each over positions 0..its own.

    Raises:
        ShapeError: no kernel for these heads or planes, a column does not fit the scratch, or
            there are too many columns.
    """
    num_columns, num_heads, head_dim = queries.shape
    expect_fragments(num_columns, stream.has_warpgroups)
    _expect_heads(head_dim, kv)
    num_kv_heads, table_width = kv.keys.shape[1], kv.block_table.shape[1]
    max_splits = num_splits(table_width * PAGE_TOKENS)
    places = num_heads * max_splits
    fitting = stream.scratch.nbytes // (4 * places * (head_dim + 2))
    if fitting == 0:
        raise ShapeError(f"scratch: {table_width} pages a row need more than there is")
    is_int8 = kv.keys.dtype is DType.I8
    split = _split(head_dim, is_int8, stream.shared_bytes)
    tickets = (stream.counters.address,) if is_int8 else ()
    base, sums, padded = block_parts(out)
    for first in range(0, num_columns, fitting):
        count = min(fitting, num_columns - first)
        partial = stream.scratch.address
        stats = partial + 4 * count * places * head_dim
        stream.launch(
            split,
            (_BLOCKS[kv.keys.dtype], 1, 1),
            (
                queries.rows(first, count).address,
                *_plane_addresses(kv),
                kv.block_table.address,
                table_rows.rows(first, count).address,
                positions.rows(first, count).address,
                partial,
                stats,
                *tickets,
                count,
                num_kv_heads,
                num_heads // num_kv_heads,
                table_width,
                max_splits,
                scale * _LOG2_E,
            ),
        )
        stream.launch(
            make_merge(head_dim),
            (count, num_heads, head_dim // block_components(head_dim)),
            (
                partial,
                stats,
                positions.address,
                projected.address,
                base,
                sums,
                num_heads,
                num_kv_heads,
                max_splits,
                padded,
                first,
            ),
        )


def paged_prefill(
    stream: CudaStream,
    queries: Tensor,
    projected: Tensor,
    kv: KvPlanes,
    table_rows: Tensor,
    positions: Tensor,
    scale: float,
    out: LinearInput,
) -> None:
    """Attend one chunk of one sequence.

    Raises:
        ShapeError: no kernel for these heads or planes.
    """
    num_columns, num_heads, head_dim = queries.shape
    _expect_heads(head_dim, kv)
    is_int8 = kv.keys.dtype is DType.I8
    num_kv_heads, table_width = kv.keys.shape[1], kv.block_table.shape[1]
    base, sums, padded = block_parts(out)
    rows, starts = table_rows.address, positions.address

    def attend(
        kernel: Kernel,
        planes: Sequence[int],
        table: int,
        width: int,
        *limit: int,
        tile_queries: int = TILE_QUERIES,
    ) -> None:
        grid = blocks_for(num_columns, tile_queries), num_heads, 1
        places = table, rows, starts, base, sums
        extents = num_columns, num_heads, num_kv_heads, width, padded, *limit
        given = queries.address, projected.address, *planes, *places, *extents
        stream.launch(kernel, grid, (*given, scale * _LOG2_E))

    planes, table = _plane_addresses(kv), kv.block_table.address
    to_image = is_image(num_columns, stream.has_warpgroups)
    if not (stream.has_warpgroups and head_dim == HEAD_DIM):
        prefill, tile_queries = _prefill(head_dim, is_int8, to_image, stream.shared_bytes)
        attend(prefill, planes, table, table_width, tile_queries=tile_queries)
    elif not is_int8:
        attend(make_wide_prefill(to_image), planes[:2], table, table_width, _ENDLESS)
    else:
        pages = ScratchPages(stream.scratch, num_kv_heads, table_width)
        wide = pages.keys, pages.values, pages.table
        extents = num_columns, num_kv_heads, table_width, pages.limit
        given = *planes, table, rows, starts, *wide, *extents
        stream.launch(make_expand(), (_EXPAND_BLOCKS, 1, 1), given)
        # The rows of its table are no bytes apart: whichever is asked for, it is the written one.
        attend(make_wide_prefill(to_image), wide[:2], pages.table, 0, pages.limit)
        if table_width * PAGE_TOKENS > pages.limit:
            attend(make_wide_int8_prefill(to_image), planes, table, table_width, pages.limit)


def declared(shapes: KernelShapes) -> tuple[Kernel, ...]:
    """Kernels a model needs: both cache types."""
    head_dim, most = shapes.head_dim, shapes.block_shared_bytes
    is_wide = shapes.has_warpgroups and head_dim == HEAD_DIM
    made = [make_merge(head_dim)]
    if is_wide:
        for to_image in orders(shapes):
            made += [make_wide_prefill(to_image), make_wide_int8_prefill(to_image)]
        made.append(make_expand())
    for is_int8 in (False, True):
        made.append(_split(head_dim, is_int8, most))
        if not is_wide:
            for to_image in orders(shapes):
                made.append(_prefill(head_dim, is_int8, to_image, most)[0])
    return tuple(made)


def _split(head_dim: int, is_int8: bool, block_shared_bytes: int) -> Kernel:
    """Kernel of decode: with two pages at least, or with one; the same bits."""
    if is_int8:
        return make_int8_split(head_dim, int8_stages(head_dim, block_shared_bytes))
    stages = split_stages(head_dim, block_shared_bytes)
    if stages == 1:
        return make_page_split(head_dim)
    return make_split(head_dim, stages)


def _prefill(
    head_dim: int, is_int8: bool, to_image: bool, block_shared_bytes: int
) -> tuple[Kernel, int]:
    """Kernel of prefill without warpgroup instructions, and the queries of its blocks."""
    if head_dim == HEAD_DIM:
        warps = page_warps(head_dim, block_shared_bytes)
        return make_page_prefill(head_dim, is_int8, warps), WARP_QUERIES * warps
    return make_prefill(head_dim, is_int8, to_image), TILE_QUERIES


def _expect_heads(head_dim: int, kv: KvPlanes) -> None:
    if head_dim not in _HEAD_DIMS:
        raise ShapeError(f"queries: heads of {head_dim}, CUDA attention has {_HEAD_DIMS}")
    if kv.keys.dtype is DType.F32:
        raise ShapeError("keys: a CUDA cache holds BF16 or I8")


def _plane_addresses(kv: KvPlanes) -> tuple[int, int, int, int]:
    scales = [0 if plane is None else plane.address for plane in (kv.key_scales, kv.value_scales)]
    return kv.keys.address, kv.values.address, scales[0], scales[1]
