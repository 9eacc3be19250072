"""Gated causal attention over the paged cache on CUDA: launchers.

Decode takes any columns: a fixed grid works on fixed splits of every column's positions
(`attention_decode`; `attention_page_decode` where a block has little shared memory), and partial
results lie in the stream's scratch memory, for as many columns at a time as fit. Prefill takes
consecutive positions of one sequence (`attention_prefill`; for heads of 256 `attention_wide` and
`attention_wide_int8` on warpgroups, `attention_page_prefill` elsewhere). The two differ in
arithmetic; each depends on a column's own position and cache alone.
"""

import math
from typing import Final

from ninfer.cuda.kernel_source import Kernel
from ninfer.cuda.stream import CudaStream
from ninfer.errors import ShapeError
from ninfer.kernels.cuda.attention_decode import make_split, split_stages
from ninfer.kernels.cuda.attention_merge import block_components, make_merge
from ninfer.kernels.cuda.attention_page_decode import make_page_split
from ninfer.kernels.cuda.attention_page_prefill import WARP_QUERIES, make_page_prefill, page_warps
from ninfer.kernels.cuda.attention_pages import TILE_QUERIES
from ninfer.kernels.cuda.attention_prefill import make_prefill
from ninfer.kernels.cuda.attention_splits import PAGE_TOKENS, num_splits
from ninfer.kernels.cuda.attention_wide import make_wide_prefill
from ninfer.kernels.cuda.attention_wide_int8 import make_wide_int8_prefill
from ninfer.kernels.cuda.attention_wide_parts import HEAD_DIM
from ninfer.kernels.cuda.launch import KernelShapes, block_parts, blocks_for
from ninfer.kernels.operand_groups import KvPlanes
from ninfer.tensor import DType, LinearInput, Tensor

# What fits on the 132 multiprocessors of an H200; right on any other device.
_BLOCKS: Final = {DType.BF16: 132, DType.I8: 264}
_HEAD_DIMS: Final = (64, 128, 256)
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
        ShapeError: no kernel for these heads or planes, or a column does not fit the scratch.
    """
    num_columns, num_heads, head_dim = queries.shape
    _expect_heads(head_dim, kv)
    num_kv_heads, table_width = kv.keys.shape[1], kv.block_table.shape[1]
    max_splits = num_splits(table_width * PAGE_TOKENS)
    places = num_heads * max_splits
    fitting = stream.scratch.nbytes // (4 * places * (head_dim + 2))
    if fitting == 0:
        raise ShapeError(f"scratch: {table_width} pages a row need more than there is")
    is_int8 = kv.keys.dtype is DType.I8
    split = _split(head_dim, is_int8, stream.shared_bytes)
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
    is_wide = stream.has_warpgroups and head_dim == HEAD_DIM
    prefill, tile_queries = _prefill(head_dim, is_int8, is_wide, stream.shared_bytes)
    planes = _plane_addresses(kv)
    stream.launch(
        prefill,
        (blocks_for(num_columns, tile_queries), num_heads, 1),
        (
            queries.address,
            projected.address,
            *(planes[:2] if is_wide and not is_int8 else planes),
            kv.block_table.address,
            table_rows.address,
            positions.address,
            *block_parts(out)[:2],
            num_columns,
            num_heads,
            kv.keys.shape[1],
            kv.block_table.shape[1],
            block_parts(out).padded,
            scale * _LOG2_E,
        ),
    )


def declared(shapes: KernelShapes) -> tuple[Kernel, ...]:
    """Kernels a model needs: both cache types."""
    head_dim, most = shapes.head_dim, shapes.block_shared_bytes
    is_wide = shapes.has_warpgroups and head_dim == HEAD_DIM
    made = [make_merge(head_dim)]
    for is_int8 in (False, True):
        made.append(_split(head_dim, is_int8, most))
        made.append(_prefill(head_dim, is_int8, is_wide, most)[0])
    return tuple(made)


def _split(head_dim: int, is_int8: bool, block_shared_bytes: int) -> Kernel:
    """Kernel of decode: with two pages at least, or with one; the same bits."""
    stages = split_stages(head_dim, is_int8, block_shared_bytes)
    if stages == 1:
        return make_page_split(head_dim)
    return make_split(head_dim, is_int8, stages)


def _prefill(
    head_dim: int, is_int8: bool, is_wide: bool, block_shared_bytes: int
) -> tuple[Kernel, int]:
    """Kernel of prefill, and the queries of its blocks."""
    if is_wide:
        return make_wide_int8_prefill() if is_int8 else make_wide_prefill(), TILE_QUERIES
    if head_dim == HEAD_DIM:
        warps = page_warps(head_dim, block_shared_bytes)
        return make_page_prefill(head_dim, is_int8, warps), WARP_QUERIES * warps
    return make_prefill(head_dim, is_int8), TILE_QUERIES


def _expect_heads(head_dim: int, kv: KvPlanes) -> None:
    if head_dim not in _HEAD_DIMS:
        raise ShapeError(f"queries: heads of {head_dim}, CUDA attention has {_HEAD_DIMS}")
    if kv.keys.dtype is DType.F32:
        raise ShapeError("keys: a CUDA cache holds BF16 or I8")


def _plane_addresses(kv: KvPlanes) -> tuple[int, int, int, int]:
    scales = [0 if plane is None else plane.address for plane in (kv.key_scales, kv.value_scales)]
    return kv.keys.address, kv.values.address, scales[0], scales[1]
