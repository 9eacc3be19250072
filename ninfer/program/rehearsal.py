"""Chunks that stand for all others when a start rehearses.

A device may have a kernel of its own for each of a few columns, and further ones from step to step
of more. Which kernels run depends on how many columns there are and on the kind of a layer, not on
what the columns hold: so chunks of some lengths, with one layer of each kind, launch every kernel
that any chunk does. Nothing of them runs (`Stream.rehearse`).
"""

from typing import Final

from ninfer.models.qwen_hybrid import text
from ninfer.models.qwen_hybrid.activations import carve_activations
from ninfer.models.qwen_hybrid.text import TextModel
from ninfer.models.qwen_hybrid.weights import kinds_of_layers
from ninfer.ops.context import OpContext
from ninfer.program.round_io import RoundIo
from ninfer.tensor import Tensor

_FEW: Final = (*range(1, 9), 16, 32)
_STEP: Final = 64


def chunk_lengths(max_columns: int) -> tuple[int, ...]:
    """Lengths that stand for all up to ``max_columns``, in order."""
    lengths = {*_FEW, *range(_STEP, max_columns, _STEP), max_columns}
    return tuple(sorted(length for length in lengths if length <= max_columns))


def enqueue_chunks(
    ctx: OpContext, model: TextModel, io: RoundIo, workspace: Tensor, max_columns: int
) -> None:
    """Enqueue chunks that launch what any chunk of up to ``max_columns`` columns does.

    Args:
        ctx: the stream that rehearses.
        model: weights and caches.
        io: the chunks' inputs.
        workspace: flat U8, enough activations for the largest chunk.
        max_columns: size of a full chunk.
    """
    kinds = kinds_of_layers(model.weights)
    for length in chunk_lengths(max_columns):
        columns = io.prefill_inputs(length).columns
        activations = carve_activations(ctx, model.geometry, model.weights, length, workspace)
        for layer in kinds:
            text.prefill_columns(ctx, model, columns, activations, range(layer, layer + 1))
