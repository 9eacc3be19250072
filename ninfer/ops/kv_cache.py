"""Contract of the paged key/value cache: where keys and values lie, and how they get there.

A page holds 64 consecutive positions of one sequence; a row of the block table lists the pages of a
sequence in order. Which row and page belong to whom is the caller's knowledge. Stale elements
behind a sequence's frontier are legal and never read. Sources: model contract 3.3 (rotary), 3.4
(cache content); artifact contract 6 (encoder of the int8 groups).
"""

from dataclasses import dataclass

from ninfer.ops.checks import expect, require
from ninfer.ops.context import OpContext
from ninfer.tensor import DType, Tensor

PAGE_TOKENS = 64
"""Positions of one page."""

GROUP_DIMS = 64
"""Components of a head that share one int8 scale; the last group may be short."""


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Partial rotary embedding with interleaved axes.

    Attributes:
        theta: base of the frequencies.
        rotary_dim: rotated components of each head, even.
        section: frequencies of the time, height and width axes.
    """

    theta: float
    rotary_dim: int
    section: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class PagedKv:
    """The planes of one full-attention layer and the table that maps sequences to pages.

    Attributes:
        keys, values: [pages, kv_heads, 64, head_dim] F32, BF16 or I8, page-major.
        key_scales, value_scales: [pages, kv_heads, 64, groups] F16 with I8 planes, else None;
            groups = ceil(head_dim / 64).
        block_table: [table_rows, L] I32; entry ``[row, p]`` is the page of positions 64p..64p+63.
    """

    keys: Tensor
    values: Tensor
    key_scales: Tensor | None
    value_scales: Tensor | None
    block_table: Tensor

    @property
    def num_kv_heads(self) -> int:
        """Key/value heads of the layer."""
        return self.keys.shape[1]

    @property
    def head_dim(self) -> int:
        """Components of each head."""
        return self.keys.shape[3]


def append(
    ctx: OpContext,
    projected: Tensor,
    query_norm: Tensor,
    key_norm: Tensor,
    eps: float,
    rope: RopeSpec,
    rope_positions: Tensor,
    positions: Tensor,
    table_rows: Tensor,
    kv: PagedKv,
    queries: Tensor,
) -> None:
    """Normalise and rotate queries and keys, and store keys and values in their pages.

    Every column is independent of all others. Keys are stored normalised and rotated, values raw:
    F32 as they are, BF16 rounded to nearest even, I8 by the artifact encoder's rules, except that a
    scale beyond binary16 becomes the largest finite one instead of an error.

    Args:
        ctx: where to run.
        projected: [T, 2Q + 2KV] activation type; columns ``[q | k | gate | v]``.
        query_norm: [head_dim] BF16, zero-centred weight.
        key_norm: [head_dim] BF16, zero-centred weight.
        eps: norm epsilon.
        rope: rotary embedding.
        rope_positions: [3, T] I32, rotary position of each column on each axis.
        positions: [T] I32, absolute position of each column in its sequence.
        table_rows: [T] I32, block-table row of each column; its page is mapped.
        kv: the layer's planes; distinct columns name distinct places.
        queries: [T, num_heads, head_dim] activation type, output.

    Writes: ``queries``, and ``kv`` at ``positions`` of ``table_rows`` only.

    Raises:
        ShapeError: an operand differs from the above.
    """
    act = ctx.device.activation_dtype
    require(len(queries.shape) == 3, f"queries: shape {queries.shape}, expected three axes")
    num_tokens, num_heads, head_dim = queries.shape
    check_planes(kv)
    require(head_dim == kv.head_dim, f"queries: heads of {head_dim}, cache has {kv.head_dim}")
    require(num_heads % kv.num_kv_heads == 0, "query heads are no multiple of key heads")
    require(
        0 < rope.rotary_dim <= head_dim and rope.rotary_dim % 2 == 0,
        f"rope: {rope.rotary_dim} rotated components of {head_dim}",
    )
    width = 2 * (num_heads + kv.num_kv_heads) * head_dim
    expect("projected", projected, (num_tokens, width), act)
    expect("query_norm", query_norm, (head_dim,), DType.BF16)
    expect("key_norm", key_norm, (head_dim,), DType.BF16)
    expect("rope_positions", rope_positions, (3, num_tokens), DType.I32)
    expect("positions", positions, (num_tokens,), DType.I32)
    expect("table_rows", table_rows, (num_tokens,), DType.I32)
    expect("queries", queries, (num_tokens, num_heads, head_dim), act)
    ctx.kernels.kv_cache.append(
        ctx.stream,
        projected,
        query_norm,
        key_norm,
        eps,
        rope,
        rope_positions,
        positions,
        table_rows,
        kv,
        queries,
    )


def scale_groups(head_dim: int) -> int:
    """Int8 scale groups of one head."""
    return -(-head_dim // GROUP_DIMS)


def check_planes(kv: PagedKv) -> None:
    """Require that the planes of a cache agree with one another.

    Raises:
        ShapeError: they do not.
    """
    require(len(kv.keys.shape) == 4, f"keys: shape {kv.keys.shape}, expected four axes")
    pages, num_kv_heads, page_tokens, head_dim = kv.keys.shape
    require(page_tokens == PAGE_TOKENS, f"keys: pages of {page_tokens} positions")
    expect("keys", kv.keys, kv.keys.shape, DType.F32, DType.BF16, DType.I8)
    expect("values", kv.values, kv.keys.shape, kv.keys.dtype)
    require(len(kv.block_table.shape) == 2, "block_table: expected two axes")
    expect("block_table", kv.block_table, kv.block_table.shape, DType.I32)
    scales = (pages, num_kv_heads, page_tokens, scale_groups(head_dim))
    for name, plane in (("key_scales", kv.key_scales), ("value_scales", kv.value_scales)):
        require(
            (plane is not None) == (kv.keys.dtype is DType.I8),
            f"{name}: given exactly for I8 planes",
        )
        if plane is not None:
            expect(name, plane, scales, DType.F16)
