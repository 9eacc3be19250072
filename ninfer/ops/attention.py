"""Contract of gated causal attention over the paged cache.

    o = softmax(scale * q K^T over positions 0..p) V ;  out = o * sigmoid(gate)

The keys and values of the attended positions, the column's own included, must have been appended.
The two entries mean the same; they differ in what a device may assume about the columns. Source:
model contract 3.4.
"""

from ninfer.ops.checks import expect, expect_input, require
from ninfer.ops.context import OpContext
from ninfer.ops.kv_cache import PagedKv, check_planes
from ninfer.ops.linear_operands import expect_storage
from ninfer.tensor import DType, LinearInput, Tensor


def paged_decode(
    ctx: OpContext,
    queries: Tensor,
    projected: Tensor,
    kv: PagedKv,
    table_rows: Tensor,
    positions: Tensor,
    scale: float,
    out: LinearInput,
) -> None:
    """Attend any columns of any sequences, each over positions 0..its own.

    Args:
        ctx: where to run.
        queries: [T, num_heads, head_dim] activation type, normalised and rotated.
        projected: [T, 2Q + 2KV] activation type; its gate part ``[Q + KV, 2Q + KV)`` is read.
        kv: the layer's planes; elements behind ``positions`` are never read.
        table_rows: [T] I32, block-table row of each column.
        positions: [T] I32, absolute position of each column.
        scale: factor of the scores.
        out: T columns of Q features, output; heads concatenated.

    Writes: ``out`` only.

    Raises:
        ShapeError: an operand differs from the above.
    """
    _check(queries, projected, kv, table_rows, positions, out, ctx)
    ctx.kernels.attention.paged_decode(
        ctx.stream, queries, projected, kv, table_rows, positions, scale, out
    )


def paged_prefill(
    ctx: OpContext,
    queries: Tensor,
    projected: Tensor,
    kv: PagedKv,
    table_rows: Tensor,
    positions: Tensor,
    scale: float,
    out: LinearInput,
) -> None:
    """Attend one chunk of one sequence: equal table rows, consecutive positions.

    Arguments, result and errors are those of `paged_decode`.
    """
    _check(queries, projected, kv, table_rows, positions, out, ctx)
    ctx.kernels.attention.paged_prefill(
        ctx.stream, queries, projected, kv, table_rows, positions, scale, out
    )


def _check(
    queries: Tensor,
    projected: Tensor,
    kv: PagedKv,
    table_rows: Tensor,
    positions: Tensor,
    out: LinearInput,
    ctx: OpContext,
) -> None:
    """Require the operands to agree with one another."""
    act = ctx.device.activation_dtype
    require(len(queries.shape) == 3, f"queries: shape {queries.shape}, expected three axes")
    num_tokens, num_heads, head_dim = queries.shape
    check_planes(kv)
    require(head_dim == kv.head_dim, f"queries: heads of {head_dim}, cache has {kv.head_dim}")
    require(num_heads % kv.num_kv_heads == 0, "query heads are no multiple of key heads")
    expect("queries", queries, (num_tokens, num_heads, head_dim), act)
    width = 2 * (num_heads + kv.num_kv_heads) * head_dim
    expect("projected", projected, (num_tokens, width), act)
    expect("table_rows", table_rows, (num_tokens,), DType.I32)
    expect("positions", positions, (num_tokens,), DType.I32)
    expect_input("out", out, num_tokens, num_heads * head_dim)
    expect_storage(ctx, "out", out)
