"""Mixture of experts on CUDA: launchers.

    up to 3            `expert_mix`: a whole mixture in two kernels, where formats allow
    4 to 8             `expert_join`: the same in two others
    up to 8            gate and up, each block finding its tokens itself ; down and the whole sum
    up to 128          the same with a plan of which tokens go with which expert
    more               `expert_many`, prefill; the same as before where there are no warpgroups, or
                       where shapes do not suit them

Up to 128 tokens have one arithmetic. What the first kernel leaves for the second lies in the
stream's scratch memory, for as many tokens at a time as fit. Experts start at whole tiles of 16
rows: hidden and expert width are multiples of 16.
"""

from typing import Final

from ninfer.cuda.kernel_source import Kernel
from ninfer.cuda.stream import CudaStream
from ninfer.errors import ShapeError
from ninfer.kernels.cuda import expert_join, expert_many, expert_mix, fragments, linear, pointwise
from ninfer.kernels.cuda.column_fragments import fragments_grid, make_fragments
from ninfer.kernels.cuda.column_image import FRAGMENT_COLUMNS, is_image
from ninfer.kernels.cuda.expert_columns import slot_steps
from ninfer.kernels.cuda.expert_down import down_kernel, launch_down, slots_each
from ninfer.kernels.cuda.expert_gate import gate_stages, make_gate, tiles_of_block
from ninfer.kernels.cuda.expert_plan import (
    ENTRY_BYTES,
    MAX_EXPERTS,
    make_plan,
    max_entries,
    plan_grid,
)
from ninfer.kernels.cuda.expert_rank import MAX_CHOSEN, make_rank, make_rank_and_gate
from ninfer.kernels.cuda.fragments import CHUNK, TILE_COLUMNS, padded_width
from ninfer.kernels.cuda.launch import WARP, BlockParts, KernelShapes, block_parts, blocks_for
from ninfer.kernels.cuda.weight_layout import TILE_FEATURES, TILE_ROWS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.kernels.operand_groups import MixtureTensors, MixtureWeights
from ninfer.tensor import LinearInput, Matrix, Tensor

FEW_TOKENS: Final = FRAGMENT_COLUMNS
"""Most tokens whose arithmetic is the same as that of one."""

_ENTRY_COLUMNS: Final = 128
_ALIGNMENT: Final = 256


def route(
    stream: CudaStream, router: Tensor, experts: Tensor, weights: Tensor, shared_gate: Tensor
) -> None:
    """Rank the experts of every token.

    Raises:
        ShapeError: more experts are chosen than a warp has lanes.
    """
    chosen = experts.shape[1]
    _expect_rankable(chosen)
    stream.launch(
        make_rank(router.shape[1] - 1),
        (router.shape[0], 1, 1),
        (router.address, experts.address, weights.address, shared_gate.address, chosen),
    )


def route_and_gate(
    stream: CudaStream,
    router: Tensor,
    gate_up: Tensor,
    experts: Tensor,
    weights: Tensor,
    shared_gate: Tensor,
    hidden: LinearInput,
) -> None:
    """Rank the experts of every token and gate the shared expert's projections.

    Raises:
        ShapeError: more experts are chosen than a warp has lanes.
    """
    num_tokens, chosen = experts.shape
    if num_tokens > FEW_TOKENS:
        route(stream, router, experts, weights, shared_gate)
        pointwise.swiglu(stream, gate_up, hidden)
        return
    _expect_rankable(chosen)
    base, sums, padded = block_parts(hidden)
    stream.launch(
        make_rank_and_gate(router.shape[1] - 1, hidden.width % CHUNK == 0),
        (num_tokens, 1 + blocks_for(padded // CHUNK, WARP), 1),
        (
            router.address,
            experts.address,
            weights.address,
            shared_gate.address,
            gate_up.address,
            base,
            sums,
            chosen,
            hidden.width,
            padded,
        ),
    )


def mix(
    stream: CudaStream,
    x: LinearInput,
    router: Tensor,
    shared_gate_up: Tensor,
    weights: MixtureWeights,
    between: MixtureTensors,
    residual: Tensor,
) -> None:
    """Rank, and add routed and shared experts to the residual stream.

    Raises:
        ShapeError: as of `route` and `experts`.
    """
    gate_up, down, shared_down = weights.gate_up, weights.down, weights.shared_down
    chosen = between.experts.shape[1]
    three = (gate_up, down, shared_down)
    if expert_mix.is_mixed(stream, x.num_columns, chosen, *three):
        expert_mix.mix(stream, x, router, shared_gate_up, *three, chosen, residual)
        return
    if expert_join.is_joined(stream, x.num_columns, chosen, *three):
        expert_join.join(stream, x, router, shared_gate_up, weights, between, residual)
        return
    ranked = (between.experts, between.weights, between.shared_gate)
    route_and_gate(stream, router, shared_gate_up, *ranked, between.hidden)
    linear.project(stream, between.hidden, shared_down, between.shared, 0)
    chosen_by, shares, shared_gate = ranked
    experts(stream, x, gate_up, down, chosen_by, shares, between.shared, shared_gate, residual)


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
        ShapeError: experts do not start at whole tiles, or scratch memory is too small for eight
            tokens, or for the columns where those have to be brought into another order.
    """
    num_tokens, chosen = experts.shape
    hidden, width = gate_up.num_columns, down.num_columns
    num_experts = down.num_rows // hidden
    if hidden % TILE_ROWS or width % TILE_ROWS or gate_up.first_row or down.first_row:
        raise ShapeError(f"experts of {width} over {hidden}: rows that are not whole tiles")
    if num_experts > MAX_EXPERTS:
        raise ShapeError(f"{num_experts} experts, the CUDA plan takes up to {MAX_EXPERTS}")
    parts, room, add = block_parts(x), stream.scratch.nbytes, _few
    if is_image(num_tokens, stream.has_warpgroups):
        if expert_many.suits(hidden, width):
            add = expert_many.many
        else:
            parts = _as_fragments(stream, x)
            room = parts.base - stream.scratch.address
    if add is _few:
        piece = _fitting_tokens(room, chosen, width, num_experts)
    else:
        piece = expert_many.fitting_tokens(room, chosen, hidden, width, num_experts)
    if piece < 1:
        raise ShapeError(f"scratch: {stream.scratch.nbytes} bytes are too few for eight tokens")
    pieces = blocks_for(num_tokens, piece)
    piece = blocks_for(num_tokens, TILE_COLUMNS * pieces) * TILE_COLUMNS
    for first in range(0, num_tokens, piece):
        count = min(piece, num_tokens - first)
        add(
            stream,
            parts,
            first,
            gate_up,
            down,
            experts.rows(first, count),
            weights.rows(first, count),
            shared.rows(first, count),
            shared_gate.rows(first, count),
            residual.rows(first, count),
        )


def declared(shapes: KernelShapes) -> tuple[Kernel, ...]:
    """Kernels a model needs: experts may come in any format."""
    if shapes.num_experts == 0:
        return ()
    hidden_tiles, width_tiles = _k_tiles(shapes.hidden), _k_tiles(shapes.expert_width)
    steps, each = slot_steps(shapes.experts_per_token), slots_each(shapes.experts_per_token)
    made = [make_rank(shapes.num_experts), make_plan(shapes.num_experts)]
    made.append(make_rank_and_gate(shapes.num_experts, shapes.shared_width % CHUNK == 0))
    if shapes.has_warpgroups and not expert_many.suits(shapes.hidden, shapes.expert_width):
        made.append(make_fragments())
    for format in PAIR_FORMATS:
        most = shapes.block_shared_bytes
        one, many = (gate_stages(format, hidden_tiles, tiles, most) for tiles in (1, 2))
        kinds = dict.fromkeys(((False, one), (False, many), (True, many)))
        made += [make_gate(format, hidden_tiles, steps, *kind) for kind in kinds]
        made.append(down_kernel(format, width_tiles, each, most))
    made += (*expert_mix.declared(shapes), *expert_join.declared(shapes))
    return (*made, *(expert_many.declared(shapes) if shapes.has_warpgroups else ()))


def _expect_rankable(chosen: int) -> None:
    if chosen > MAX_CHOSEN:
        raise ShapeError(f"{chosen} experts a token, the CUDA ranking takes up to {MAX_CHOSEN}")


def _few(
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
    """Two kernels of weights, and a plan before them for more than eight tokens."""
    num_tokens, chosen = experts.shape
    x = _tokens(x, first)
    hidden, width = gate_up.num_columns, down.num_columns
    num_experts = down.num_rows // hidden
    active, plan, order = _carve(stream.scratch.address, experts.size, width, num_experts)
    is_listed = num_tokens > TILE_COLUMNS
    blocks = experts.size
    if is_listed:
        blocks = max_entries(experts.size, num_experts, _ENTRY_COLUMNS)
        args = (experts.address, plan, order, 0, experts.size, blocks, _ENTRY_COLUMNS)
        stream.launch(make_plan(num_experts), plan_grid(experts.size, num_experts), args)
    most = tiles_of_block(num_tokens)
    stages = gate_stages(gate_up.format, _k_tiles(hidden), most, stream.shared_bytes)
    stream.launch(
        make_gate(gate_up.format, _k_tiles(hidden), slot_steps(chosen), is_listed, stages),
        (blocks_for(width // TILE_ROWS, most), blocks, 1),
        (
            gate_up.storage.address,
            x.base,
            x.sums,
            experts.address,
            plan,
            order,
            active,
            width,
            num_tokens,
            chosen,
            padded_width(width),
            most,
        ),
    )
    launch_down(stream, down, active, experts, weights, shared, shared_gate, residual)


def _k_tiles(width: int) -> int:
    """Tiles along K of a matrix of so many columns."""
    return padded_width(width) // TILE_FEATURES


def _tokens(x: BlockParts, first: int) -> BlockParts:
    """Fragments from column ``first`` on, a multiple of eight."""
    tiles, padded = first // TILE_COLUMNS, x.padded
    return BlockParts(x.base + tiles * padded * 16, x.sums + tiles * (padded // 2), padded)


def _as_fragments(stream: CudaStream, x: LinearInput) -> BlockParts:
    """Bring an image into the order of fragments, at the end of scratch memory.

    Raises:
        ShapeError: it is too small.
    """
    nbytes = fragments.input_bytes(x.num_columns, x.width)
    at = (stream.scratch.nbytes - nbytes) // _ALIGNMENT * _ALIGNMENT
    if at < 0:
        raise ShapeError(f"scratch: {stream.scratch.nbytes} bytes are too few for {nbytes}")
    base, padded = stream.scratch.address + at, padded_width(x.width)
    parts = BlockParts(base, base + fragments.fragment_bytes(x.num_columns, x.width), padded)
    args = (x.storage.address, *parts)
    stream.launch(make_fragments(), fragments_grid(x.num_columns, padded), args)
    return parts


def _carve(start: int, num_choices: int, width: int, num_experts: int) -> tuple[int, int, int]:
    """Addresses of active columns, plan and order."""
    found = [start]
    for size in _sizes(num_choices, width, num_experts)[:-1]:
        found.append(found[-1] + -(-size // _ALIGNMENT) * _ALIGNMENT)
    return found[0], found[1], found[2]


def _sizes(num_choices: int, width: int, num_experts: int) -> tuple[int, ...]:
    return (
        2 * num_choices * padded_width(width),
        ENTRY_BYTES * max_entries(num_choices, num_experts, _ENTRY_COLUMNS),
        4 * num_choices,
    )


def _fitting_tokens(scratch_bytes: int, chosen: int, width: int, num_experts: int) -> int:
    """Tokens of one piece, a multiple of eight; 0 where not even eight fit."""
    each = 2 * TILE_COLUMNS * chosen * (padded_width(width) + 4)
    fixed = ENTRY_BYTES * num_experts + 3 * _ALIGNMENT
    return max(0, (scratch_bytes - fixed) // each) * TILE_COLUMNS
