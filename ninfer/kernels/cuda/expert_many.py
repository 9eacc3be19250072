"""Launcher of experts in prefill, where warpgroups are: choices sorted by expert.

    plan           which columns go with which expert
    gate, down     `expert_wide`, 256 rows and the columns of an entry at a time
    combine        products in ranking order, shared expert, residual

What a kernel leaves for the next lies in the stream's scratch memory, for as many tokens at a time
as fit. How the tokens are cut, and how many columns an entry has, changes no bit.
"""

from typing import Final, NamedTuple

from ninfer.cuda.kernel_source import Kernel
from ninfer.cuda.stream import CudaStream
from ninfer.kernels.cuda.expert_plan import ENTRY_BYTES, make_plan, max_entries, plan_grid
from ninfer.kernels.cuda.expert_sum import THREADS, make_combine
from ninfer.kernels.cuda.expert_wide import make_expert_wide
from ninfer.kernels.cuda.expert_wide_shape import BLOCK_ROWS, COLUMNS, ExpertWide
from ninfer.kernels.cuda.fragments import CHUNK, TILE_COLUMNS
from ninfer.kernels.cuda.launch import BlockParts, KernelShapes, blocks_for
from ninfer.kernels.cuda.weight_layout import TILE_FEATURES
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.tensor import Matrix, Tensor

_MOST_RUN: Final = 4
_ALIGNMENT: Final = 256


class Parts(NamedTuple):
    """Addresses in scratch memory."""

    active: int
    products: int
    plan: int
    order: int
    places: int


def suits(hidden: int, width: int) -> bool:
    """Whether rows and features come in whole blocks."""
    return hidden % BLOCK_ROWS == 0 and width % TILE_FEATURES == 0


def largest_run(row_blocks: int) -> int:
    """Row blocks of an entry that one block takes: a power of two that divides them."""
    return min(_MOST_RUN, row_blocks & -row_blocks)


def fitting_tokens(
    scratch_bytes: int, chosen: int, hidden: int, width: int, num_experts: int
) -> int:
    """Tokens of one piece, a multiple of eight; 0 where not even eight fit."""
    each = chosen * (2 * width + 2 * hidden + 8)
    each += -(-chosen * ENTRY_BYTES // COLUMNS)
    fixed = ENTRY_BYTES * num_experts + len(Parts._fields) * _ALIGNMENT
    return max(0, (scratch_bytes - fixed) // (TILE_COLUMNS * each)) * TILE_COLUMNS


def many(
    stream: CudaStream,
    x: BlockParts,
    first: int,
    gate_up: Matrix,
    down: Matrix,
    experts: Tensor,
    weights: Tensor,
    shared: Tensor,
    shared_gate: Tensor,
    residual: Tensor,
) -> None:
    """Add the experts of as many tokens as fit, from column ``first`` of an image on."""
    num_tokens, chosen = experts.shape
    hidden, width = gate_up.num_columns, down.num_columns
    num_experts = down.num_rows // hidden
    gate, last = ExpertWide(gate_up.format, True), ExpertWide(down.format, False)
    entries = max_entries(experts.size, num_experts, COLUMNS)
    parts = _carve(stream.scratch.address, num_tokens, chosen, hidden, width, entries)
    stream.launch(
        make_plan(num_experts),
        plan_grid(experts.size, num_experts),
        (
            experts.address,
            parts.plan,
            parts.order,
            parts.places,
            experts.size,
            entries,
            COLUMNS,
        ),
    )
    gated = x.base, first, parts.active
    _multiply(stream, gate, gate_up, 2 * width, parts, *gated, chosen, entries)
    products = parts.active, 0, parts.products
    _multiply(stream, last, down, hidden, parts, *products, chosen, entries)
    stream.launch(
        make_combine(),
        (blocks_for(hidden // CHUNK, THREADS), num_tokens, 1),
        (
            parts.products,
            parts.places,
            weights.address,
            shared.address,
            shared_gate.address,
            residual.address,
            hidden,
            chosen,
        ),
    )


def declared(shapes: KernelShapes) -> tuple[Kernel, ...]:
    """Kernels a model needs: experts may come in any format."""
    if not suits(shapes.hidden, shapes.expert_width):
        return ()
    made = [make_combine()]
    for format in PAIR_FORMATS:
        made += [make_expert_wide(ExpertWide(format, is_gate)) for is_gate in (True, False)]
    return tuple(made)


def _multiply(
    stream: CudaStream,
    shape: ExpertWide,
    weight: Matrix,
    num_rows: int,
    parts: Parts,
    x: int,
    first: int,
    out: int,
    chosen: int,
    entries: int,
) -> None:
    """Every expert's ``num_rows`` rows with its columns."""
    row_blocks = num_rows // BLOCK_ROWS
    items = entries * row_blocks
    is_kept = weight.num_columns // TILE_FEATURES == shape.stages
    run = largest_run(row_blocks) if is_kept else 1
    stream.launch(
        make_expert_wide(shape),
        (min(items // run, stream.num_multiprocessors), 1, 1),
        (
            weight.storage.address,
            x,
            parts.plan,
            parts.order,
            out,
            weight.num_columns // TILE_FEATURES,
            num_rows,
            chosen,
            first,
            row_blocks,
            items,
            run,
        ),
    )


def _carve(
    start: int, num_tokens: int, chosen: int, hidden: int, width: int, entries: int
) -> Parts:
    choices = num_tokens * chosen
    sizes = (2 * choices * width, 2 * choices * hidden)
    found = [start]
    for size in (*sizes, ENTRY_BYTES * entries, 4 * choices):
        found.append(found[-1] + -(-size // _ALIGNMENT) * _ALIGNMENT)
    return Parts(*found)
