"""Launcher of a whole mixture for four to eight tokens: two kernels.

    `expert_gate_joined`   ranking, gate and up of the chosen experts, the shared expert
    `expert_down`          down of the chosen experts, and the sum

What is launched for other operands (`moe.mix`) has the same bits in more launches. Formats are what
the published profile gives the weights; down may have any.
"""

from typing import Final

from ninfer.cuda.kernel_source import Kernel
from ninfer.cuda.stream import CudaStream
from ninfer.kernels.cuda.expert_down import launch_down
from ninfer.kernels.cuda.expert_found import FOUND_TOKENS
from ninfer.kernels.cuda.expert_gate_joined import (
    BLOCKS,
    WARPS,
    joined_bytes,
    make_gate_joined,
    rows_beyond,
)
from ninfer.kernels.cuda.expert_rank import MAX_CHOSEN
from ninfer.kernels.cuda.fragments import CHUNK, padded_width
from ninfer.kernels.cuda.launch import (
    MULTIPROCESSOR_SHARED,
    RESERVED_SHARED,
    KernelShapes,
    block_parts,
    blocks_for,
)
from ninfer.kernels.cuda.skinny_shape import PARTS
from ninfer.kernels.cuda.weight_layout import TILE_FEATURES, TILE_ROWS
from ninfer.kernels.operand_groups import MixtureTensors, MixtureWeights
from ninfer.tensor import LinearInput, Matrix, Tensor, TensorFormat

GATE_FORMAT: Final = TensorFormat.Q4
SHARED_FORMAT: Final = TensorFormat.W8

MIN_TOKENS: Final = 4
"""Fewest tokens whose experts keep all warps busy with tiles of their own."""


def is_joined(
    stream: CudaStream,
    num_tokens: int,
    chosen: int,
    gate_up: Matrix,
    down: Matrix,
    shared_down: Matrix,
) -> bool:
    """Whether the two kernels take so many tokens of these operands."""
    hidden, width, shared_width = gate_up.num_columns, down.num_columns, shared_down.num_columns
    return (
        MIN_TOKENS <= num_tokens <= FOUND_TOKENS
        and (gate_up.format, shared_down.format) == (GATE_FORMAT, SHARED_FORMAT)
        and not any((gate_up.first_row, down.first_row, shared_down.first_row))
        and 2 * num_tokens * chosen * padded_width(width) <= stream.scratch.nbytes
        and _suits(hidden, width, shared_width, chosen, stream.shared_bytes)
    )


def join(
    stream: CudaStream,
    x: LinearInput,
    router: Tensor,
    shared_gate_up: Tensor,
    weights: MixtureWeights,
    between: MixtureTensors,
    residual: Tensor,
) -> None:
    """Add the experts of some tokens; operands are those that `is_joined` lets through."""
    gate_up, down, shared_down = weights.gate_up, weights.down, weights.shared_down
    num_tokens, chosen = between.experts.shape
    hidden, width, shared_width = gate_up.num_columns, down.num_columns, shared_down.num_columns
    base, sums, _ = block_parts(x)
    active = stream.scratch.address
    groups = blocks_for(width // TILE_ROWS, WARPS)
    ranked = (between.experts, between.weights)
    stream.launch(
        _kernel(hidden, shared_width, router.shape[1] - 1),
        (groups, num_tokens * chosen + rows_beyond(hidden // TILE_ROWS, groups), 1),
        (
            gate_up.storage.address,
            base,
            sums,
            router.address,
            shared_gate_up.address,
            shared_down.storage.address,
            *(tensor.address for tensor in (*ranked, between.shared_gate, between.shared)),
            active,
            width,
            num_tokens,
            chosen,
            padded_width(width),
            hidden,
            shared_width,
        ),
    )
    launch_down(stream, down, active, *ranked, between.shared, between.shared_gate, residual)


def declared(shapes: KernelShapes) -> tuple[Kernel, ...]:
    """Kernels a model needs, beside `expert_down`."""
    hidden, width, shared_width = shapes.hidden, shapes.expert_width, shapes.shared_width
    chosen = shapes.experts_per_token
    if not _suits(hidden, width, shared_width, chosen, shapes.block_shared_bytes):
        return ()
    return (_kernel(hidden, shared_width, shapes.num_experts),)


def _suits(hidden: int, width: int, shared_width: int, chosen: int, most: int) -> bool:
    """Whether rows come in whole tiles, and two blocks have room on a multiprocessor."""
    k_tiles, shared_tiles = _k_tiles(hidden), _k_tiles(shared_width)
    nbytes = joined_bytes(GATE_FORMAT, k_tiles, SHARED_FORMAT, shared_tiles)
    return (
        hidden % TILE_ROWS == width % TILE_ROWS == shared_width % CHUNK == 0
        and width // TILE_ROWS >= WARPS
        and BLOCKS * (nbytes + RESERVED_SHARED) <= MULTIPROCESSOR_SHARED
        and nbytes <= most
        and shared_tiles <= PARTS
        and chosen <= MAX_CHOSEN
    )


def _kernel(hidden: int, shared_width: int, num_experts: int) -> Kernel:
    shared = (SHARED_FORMAT, _k_tiles(shared_width))
    return make_gate_joined(GATE_FORMAT, _k_tiles(hidden), num_experts, *shared)


def _k_tiles(width: int) -> int:
    return padded_width(width) // TILE_FEATURES
