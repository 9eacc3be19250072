"""Prefill: a sequence's known tokens in chunks, without logits.

Where chunks end depends on absolute positions alone: at every multiple of the chunk size, and where
the known tokens end. So the split of a prefix is the same whoever else is running and wherever the
prefill started. Forced tokens take the same path and are counted for penalties on the way. Commit
and rollback are Program's business.
"""

from typing import Final

from ninfer.models.qwen_hybrid import text
from ninfer.models.qwen_hybrid.activations import carve_activations
from ninfer.models.qwen_hybrid.text import TextModel
from ninfer.ops import sampling
from ninfer.ops.context import OpContext
from ninfer.program.round_io import PrefillChunk, RoundIo
from ninfer.tensor import Tensor


def chunk_stop(frontier: int, known_tokens: int, chunk_tokens: int) -> int:
    """Position at which the chunk that starts at ``frontier`` ends.

    Args:
        frontier: processed tokens, less than ``known_tokens``.
        known_tokens: tokens to process in all.
        chunk_tokens: size of a full chunk.
    """
    return min(known_tokens, (frontier // chunk_tokens + 1) * chunk_tokens)


class Prefill:
    """Runs chunks; owns nothing.

    Args:
        ctx: where chunks run.
        model: weights and caches.
        counts: i32 [slots, vocab_rows], output tokens of each slot's sequence.
        io: the chunk's inputs.
        workspace: flat U8, enough activations for the largest chunk.

    Attributes:
        is_imagined: chunks are taken as processed without processing them; for measurement.
    """

    def __init__(
        self, ctx: OpContext, model: TextModel, counts: Tensor, io: RoundIo, workspace: Tensor
    ) -> None:
        self._ctx: Final = ctx
        self._model: Final = model
        self._counts: Final = counts
        self._io: Final = io
        self._workspace: Final = workspace
        self.is_imagined = False

    def run(self, chunk: PrefillChunk) -> None:
        """Process a chunk and wait for its end.

        Writes: keys and values at the chunk's positions, the slot's state in place, the slot's
        counts for the counted tokens.

        Raises:
            InvariantError: the device reported a fault.
        """
        if self.is_imagined:
            return
        ctx = self._ctx
        inputs = self._io.upload_prefill(ctx.stream, chunk)
        if chunk.num_counted:
            sampling.count_tokens(
                ctx, self._counts, inputs.count_slots, inputs.columns.tokens, inputs.count_flags
            )
        activations = carve_activations(
            ctx, self._model.geometry, len(chunk.tokens), self._workspace
        )
        text.prefill_columns(ctx, self._model, inputs.columns, activations)
        ctx.stream.synchronize()
