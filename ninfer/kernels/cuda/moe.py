"""Mixture of experts on CUDA: launchers.

    up to 128 tokens   each eight tokens gather their experts; K is shared by warps
    more               choices are sorted by expert on the device, 32 of an expert at a time

Both are: products with gate and up, activation, products with down, sum in ranking order. Results
between the kernels lie in the stream's scratch memory, for as many tokens at a time as fit.
"""

from typing import Final

from ninfer.cuda.kernel_source import Kernel
from ninfer.cuda.stream import CudaStream
from ninfer.errors import ShapeError
from ninfer.kernels.cuda import fragments
from ninfer.kernels.cuda.expert_columns import GROUP_COLUMNS, WARPS
from ninfer.kernels.cuda.expert_output import THREADS, make_active, make_combine, make_rank
from ninfer.kernels.cuda.expert_plan import make_plan, max_entries
from ninfer.kernels.cuda.expert_product import (
    decode_parts,
    make_expert_product,
    row_tiles_of,
)
from ninfer.kernels.cuda.fragments import CHUNK, TILE_COLUMNS
from ninfer.kernels.cuda.launch import BlockParts, KernelShapes, block_parts, blocks_for
from ninfer.kernels.cuda.weight_layout import WeightLayout
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.tensor import DType, LinearInput, Matrix, Tensor

GATHERED_TOKENS: Final = 128
"""Most tokens whose arithmetic is the same as that of one."""

_ALIGNMENT: Final = 256


def route(
    stream: CudaStream, router: Tensor, experts: Tensor, weights: Tensor, shared_gate: Tensor
) -> None:
    """Rank the experts of every token."""
    stream.launch(
        make_rank(router.shape[1] - 1),
        (router.shape[0], 1, 1),
        (
            router.address,
            experts.address,
            weights.address,
            shared_gate.address,
            experts.shape[1],
        ),
    )


def experts(
    stream: CudaStream,
    x: LinearInput,
    gate_up: Matrix,
    down: Matrix,
    experts: Tensor,
    weights: Tensor,
    shared: Tensor,
    shared_gate: Tensor,
    residual: Tensor,
) -> None:
    """Add routed and shared experts to the residual stream.

    Raises:
        ShapeError: eight tokens need more scratch memory than there is.
    """
    num_tokens, chosen = experts.shape
    hidden, width = gate_up.num_columns, down.num_columns
    num_experts = down.num_rows // hidden
    piece = _fitting_tokens(stream.scratch.nbytes, chosen, hidden, width, num_experts)
    for first in range(0, num_tokens, piece):
        count = min(piece, num_tokens - first)
        choices = experts.rows(first, count)
        parts = _carve(stream.scratch.address, count * chosen, hidden, width, num_experts)
        products, active, plan, order = parts
        is_grouped = num_tokens > GATHERED_TOKENS
        if is_grouped:
            entries = max_entries(count * chosen, num_experts)
            stream.launch(
                make_plan(num_experts),
                (1, 1, 1),
                (choices.address, plan, order, count * chosen, entries),
            )
        lists = (choices, plan, order)
        _multiply(
            stream, _tokens(x, first), gate_up, 2 * width, lists, chosen, products, is_grouped
        )
        block = LinearInput(
            Tensor(active, DType.U8, (fragments.input_bytes(count * chosen, width),)),
            count * chosen,
            width,
        )
        base, sums, padded = block_parts(block)
        stream.launch(
            make_active(),
            (count * chosen, blocks_for(padded // CHUNK, THREADS), 1),
            (products, base, sums, width, padded),
        )
        _multiply(stream, block_parts(block), down, hidden, lists, 1, products, is_grouped)
        stream.launch(
            make_combine(),
            (count, blocks_for(hidden, THREADS), 1),
            (
                products,
                weights.rows(first, count).address,
                shared.rows(first, count).address,
                shared_gate.rows(first, count).address,
                residual.rows(first, count).address,
                hidden,
                chosen,
            ),
        )


def declared(shapes: KernelShapes) -> tuple[Kernel, ...]:
    """Kernels a model needs: experts may come in any format."""
    if shapes.num_experts == 0:
        return ()
    widths = (shapes.hidden, shapes.expert_width)
    parts = sorted({decode_parts(fragments.padded_width(width) // 128) for width in widths})
    made = [make_rank(shapes.num_experts), make_plan(shapes.num_experts)]
    made += [make_active(), make_combine()]
    for format in PAIR_FORMATS:
        made += [make_expert_product(format, number, False) for number in parts]
        made.append(make_expert_product(format, 1, True))
    return tuple(made)


def _multiply(
    stream: CudaStream,
    x: BlockParts,
    weight: Matrix,
    num_rows: int,
    lists: tuple[Tensor, int, int],
    sharing: int,
    products: int,
    is_grouped: bool,
) -> None:
    """Multiply the chosen experts' ``num_rows`` rows with column ``choice // sharing``."""
    choices, plan, order = lists
    num_tokens, chosen = choices.shape
    layout = WeightLayout(weight.format, weight.parent_rows, weight.num_columns)
    if weight.first_row:
        raise ShapeError("experts: a view that does not begin with the first expert")
    parts = 1 if is_grouped else decode_parts(layout.k_tiles)
    if is_grouped:
        groups = (max_entries(choices.size, weight.num_rows // num_rows), 1)
    else:
        groups = (min(num_tokens, GROUP_COLUMNS) * chosen, blocks_for(num_tokens, GROUP_COLUMNS))
    at = weight.storage.address
    stream.launch(
        make_expert_product(weight.format, parts, is_grouped),
        (blocks_for(row_tiles_of(num_rows), WARPS // parts), *groups),
        (
            at,
            at + layout.high_offset,
            at + layout.scale_offset,
            x.base,
            x.sums,
            choices.address,
            plan,
            order,
            products,
            layout.k_tiles,
            layout.row_tiles,
            num_rows,
            num_tokens,
            chosen,
            sharing,
        ),
    )


def _tokens(x: LinearInput, first: int) -> BlockParts:
    """A linear input from column ``first`` on, a multiple of eight."""
    base, sums, padded = block_parts(x)
    tiles = first // TILE_COLUMNS
    return BlockParts(base + tiles * padded * 16, sums + tiles * (padded // 2), padded)


def _carve(
    start: int, num_choices: int, hidden: int, width: int, num_experts: int
) -> tuple[int, int, int, int]:
    """Addresses of products, active columns, plan and order."""
    found = [start]
    for size in _sizes(num_choices, hidden, width, num_experts)[:-1]:
        found.append(found[-1] + -(-size // _ALIGNMENT) * _ALIGNMENT)
    return found[0], found[1], found[2], found[3]


def _sizes(num_choices: int, hidden: int, width: int, num_experts: int) -> tuple[int, ...]:
    return (
        4 * num_choices * max(hidden, 2 * width),
        fragments.input_bytes(num_choices, width),
        12 * max_entries(num_choices, num_experts),
        4 * num_choices,
    )


def _fitting_tokens(
    scratch_bytes: int, chosen: int, hidden: int, width: int, num_experts: int
) -> int:
    """Tokens of one piece, a multiple of eight."""
    each = sum(_sizes(TILE_COLUMNS * chosen, hidden, width, num_experts))
    fitting = (scratch_bytes - 4 * _ALIGNMENT - 12 * num_experts) // each
    if fitting < 1:
        raise ShapeError(f"scratch: {each} bytes for eight tokens, {scratch_bytes} there")
    return fitting * TILE_COLUMNS
