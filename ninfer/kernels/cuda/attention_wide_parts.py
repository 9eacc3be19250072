"""What the two kernels of prefill attention on Hopper share.

A block is two warpgroups of 64 queries of one head. Queries, keys and values lie in shared memory
as blocks of 64 components, rows of 128 bytes in the swizzle of the tensor cores: the queries first,
then four slots, for keys and values of two pages. When the pages have been used, results take
the place of the slots, as rows of f32. Which barriers guard the slots, and how a page comes into
them, is a kernel's own business.
"""

from typing import Any, Final

from numba import cuda, int32, uint32, uint64

from ninfer.cuda import ptx, warpgroup
from ninfer.cuda.device_code import device_function
from ninfer.cuda.warpgroup_turned import turned_descriptor
from ninfer.kernels.cuda.attention_output import make_put_rows, multiplied, output_line_bytes
from ninfer.kernels.cuda.attention_softmax import make_weigh

HEAD_DIM: Final = 256
"""Components of a head."""

QUERIES: Final = 128
"""Of a block."""

TILE: Final = 64
"""Positions of a page."""

THREADS: Final = 256
"""Two warpgroups."""

WARPS: Final = THREADS // 32

BLOCKS: Final = HEAD_DIM // 64
"""Of 64 components."""

QUERY_BLOCK: Final = QUERIES * 128
"""Bytes of 64 components of the queries."""

PAGE_BLOCK: Final = TILE * 128
"""Bytes of 64 components of a page."""

SLOT: Final = BLOCKS * PAGE_BLOCK
"""Bytes of a page's keys, or values."""

SLOTS: Final = 4
"""Keys, values, keys, values."""

SLOTS_AT: Final = BLOCKS * QUERY_BLOCK
"""Offset of the slots in shared memory."""

LINE_BYTES: Final = output_line_bytes(HEAD_DIM)
"""A query's results on their way out."""

LINES_END: Final = SLOTS_AT + QUERIES * LINE_BYTES
"""Offset behind the results."""

NUM_SUMS: Final = HEAD_DIM // 2
"""Components of a lane's two queries."""

TURNED: Final = turned_descriptor(PAGE_BLOCK)
"""Descriptor of a page's values, less their address."""

multiply_keys = warpgroup.multiply_block(TILE)
finish_keys = warpgroup.finish_products(TILE)
weigh, put_rows = make_weigh(HEAD_DIM), make_put_rows(HEAD_DIM, multiplied)


@device_function
def block_place(num_heads: Any, num_kv_heads: Any) -> Any:
    """First query of a block, late ones first, its head, and the key head of that."""
    first = int32(cuda.gridDim.x - 1 - cuda.blockIdx.x) * int32(QUERIES)
    head = int32(cuda.blockIdx.y)
    sharing = ptx.divide_u32(uint32(num_heads), uint32(num_kv_heads))
    return first, head, uint64(ptx.divide_u32(uint32(head), sharing))


@device_function
def page_row(block_row: Any, tile: Any, num_kv_heads: Any, kv_head: Any) -> Any:
    """Plane row of the first position of a page."""
    page = ptx.load_i32(block_row + uint64(tile) * uint64(4))
    return (uint64(page) * uint64(num_kv_heads) + kv_head) * uint64(TILE)


@device_function
def fetch_queries(
    shared: Any, queries: Any, first: Any, num_columns: Any, head: Any, num_heads: Any
) -> None:
    """Start the copies of a block's queries; those behind the last column are zeros."""
    thread = uint32(cuda.threadIdx.x)
    piece = thread & uint32(31)
    block = shared + (piece >> uint32(3)) * uint32(QUERY_BLOCK)
    for i in range(QUERIES * 32 // THREADS):
        place = uint32(i * (THREADS // 32)) + (thread >> uint32(5))
        column = int32(first) + int32(place)
        size = uint32(column < int32(num_columns)) << uint32(4)
        column = min(column, int32(num_columns) - int32(1))
        at = uint64(column) * uint64(num_heads) + uint64(head)
        target = block + (place << uint32(7))
        target += ((piece & uint32(7)) ^ (place & uint32(7))) << uint32(4)
        ptx.copy_async_16(target, queries + at * uint64(2 * HEAD_DIM) + uint64(piece << 4), size)


@device_function
def round_weights(s: Any, words: Any) -> None:
    """Weights as the left operand of the products with values."""
    for i in range(16):
        words[i] = ptx.bf16x2_of_f32(s[2 * i], s[2 * i + 1])
