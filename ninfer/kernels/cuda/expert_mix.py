"""Launcher of a whole mixture for up to three tokens: two kernels that rank the experts themselves.

    `expert_gate_ranked`   ranking, gate and up of the chosen experts
    `expert_down_ranked`   ranking, down of the chosen experts, the shared expert, the sum

What is launched for more tokens (`moe.mix`) has the same bits in more launches. Each token's
experts are read for it, so that more would read what they share more than once. Formats are what
the published profile gives the three weights.
"""

from typing import Final

from ninfer.cuda.kernel_source import Kernel
from ninfer.cuda.stream import CudaStream
from ninfer.kernels.cuda.expert_down_ranked import SHARED_WARPS, make_down_ranked
from ninfer.kernels.cuda.expert_down_ranked import THREADS as DOWN_THREADS
from ninfer.kernels.cuda.expert_gate_ranked import MOST_TILES, make_gate_ranked
from ninfer.kernels.cuda.expert_rank_block import MOST_EXPERTS, MOST_RANKED
from ninfer.kernels.cuda.fragments import CHUNK, padded_width
from ninfer.kernels.cuda.launch import (
    RESERVED_SHARED,
    KernelShapes,
    block_parts,
    blocks_for,
    closing_bytes,
)
from ninfer.kernels.cuda.weight_layout import TILE_FEATURES, TILE_ROWS
from ninfer.tensor import LinearInput, Matrix, Tensor, TensorFormat

MIXED_FORMATS: Final = (
    (TensorFormat.Q4, TensorFormat.Q5, TensorFormat.W8),
    (TensorFormat.Q4, TensorFormat.Q6, TensorFormat.W8),
)
"""Formats of gate and up, of down, and of the shared expert's down."""


MOST_TOKENS: Final = 3
"""Most tokens of a mixture in two launches."""


def is_mixed(
    stream: CudaStream,
    num_tokens: int,
    chosen: int,
    gate_up: Matrix,
    down: Matrix,
    shared_down: Matrix,
) -> bool:
    """Whether the two kernels take so many tokens of these operands."""
    formats = (gate_up.format, down.format, shared_down.format)
    hidden, width, shared_width = gate_up.num_columns, down.num_columns, shared_down.num_columns
    views = (gate_up.first_row, down.first_row, shared_down.first_row)
    num_experts = down.num_rows // hidden
    return (
        num_tokens <= MOST_TOKENS
        and formats in MIXED_FORMATS
        and _suits(hidden, width, shared_width, num_experts, chosen)
        and not any(views)
        and 2 * num_tokens * chosen * padded_width(width) <= stream.scratch.nbytes
        and _fits(
            _kernels(formats, hidden, width, shared_width, num_experts, num_tokens),
            stream.shared_bytes,
        )
    )


def mix(
    stream: CudaStream,
    x: LinearInput,
    router: Tensor,
    shared_gate_up: Tensor,
    gate_up: Matrix,
    down: Matrix,
    shared_down: Matrix,
    chosen: int,
    residual: Tensor,
) -> None:
    """Add the experts of a few tokens; operands are those that `is_mixed` lets through."""
    num_tokens, num_experts = x.num_columns, router.shape[1] - 1
    hidden, width, shared_width = gate_up.num_columns, down.num_columns, shared_down.num_columns
    active, (base, sums, _) = stream.scratch.address, block_parts(x)
    formats = (gate_up.format, down.format, shared_down.format)
    extents = (hidden, width, shared_width)
    gate, down_and_shared = _kernels(formats, *extents, num_experts, num_tokens)
    groups = blocks_for(width // TILE_ROWS, _tiles_of_block(num_tokens))
    places = blocks_for(groups * chosen * num_tokens, stream.num_multiprocessors)
    closing = closing_bytes(stream.shared_bytes + RESERVED_SHARED, places)
    stream.launch(
        gate,
        (groups, chosen, num_tokens),
        (
            gate_up.storage.address,
            base,
            sums,
            router.address,
            active,
            width,
            chosen,
            padded_width(width),
        ),
        shared_bytes=max(gate.dynamic_shared_bytes, closing),
    )
    stream.launch(
        down_and_shared,
        (hidden // TILE_ROWS, num_tokens, 1),
        (
            down.storage.address,
            shared_down.storage.address,
            active,
            router.address,
            shared_gate_up.address,
            residual.address,
            hidden,
            width,
            shared_width,
            chosen,
        ),
        threads=DOWN_THREADS,
    )


def declared(shapes: KernelShapes) -> tuple[Kernel, ...]:
    """Kernels a model needs."""
    hidden, width, shared_width = shapes.hidden, shapes.expert_width, shapes.shared_width
    num_experts = shapes.num_experts
    if not _suits(hidden, width, shared_width, num_experts, shapes.experts_per_token):
        return ()
    pairs = [
        _kernels(formats, hidden, width, shared_width, num_experts, tokens)
        for formats in MIXED_FORMATS
        for tokens in range(1, MOST_TOKENS + 1)
    ]
    fitting = [pair for pair in pairs if _fits(pair, shapes.block_shared_bytes)]
    return tuple(dict.fromkeys(kernel for pair in fitting for kernel in pair))


def _suits(hidden: int, width: int, shared_width: int, num_experts: int, chosen: int) -> bool:
    """Whether rows come in whole tiles, and warps are enough for experts, slots and parts of K."""
    return (
        hidden % TILE_ROWS == width % TILE_ROWS == shared_width % CHUNK == 0
        and padded_width(hidden) <= MOST_TILES * TILE_FEATURES
        and padded_width(shared_width) <= SHARED_WARPS * TILE_FEATURES
        and num_experts <= MOST_EXPERTS
        and chosen <= MOST_RANKED
    )


def _kernels(
    formats: tuple[TensorFormat, ...],
    hidden: int,
    width: int,
    shared_width: int,
    num_experts: int,
    num_tokens: int,
) -> tuple[Kernel, Kernel]:
    """The kernels for formats of `MIXED_FORMATS`."""
    gate, down, shared = formats
    hidden_tiles, width_tiles, shared_tiles = (
        padded_width(extent) // TILE_FEATURES for extent in (hidden, width, shared_width)
    )
    return (
        make_gate_ranked(gate, hidden_tiles, num_experts, _tiles_of_block(num_tokens)),
        make_down_ranked(down, width_tiles, shared, shared_tiles, num_experts),
    )


def _tiles_of_block(num_tokens: int) -> int:
    """Tiles of sixteen features: blocks of two tokens find room as those of one do."""
    return min(2, num_tokens)


def _fits(kernels: tuple[Kernel, Kernel], block_shared_bytes: int) -> bool:
    """Whether a device can hold a block of either: the second has all of K in shared memory."""
    return all(one.dynamic_shared_bytes <= block_shared_bytes for one in kernels)
