"""Prefill: a sequence's known tokens in chunks, without logits.

Where chunks end depends on absolute positions alone: at every multiple of the chunk size, and where
the known tokens end. So the split of a prefix is the same whoever else is running and wherever the
prefill started. A chunk may run in parts (`prefill_parts`), which changes no bit of it. Forced
tokens take the same path and are counted for penalties on the way. Commit and rollback are
Program's business.
"""

from typing import Final

from ninfer.device import Graph
from ninfer.models.qwen_hybrid import text
from ninfer.models.qwen_hybrid.activations import carve_activations
from ninfer.models.qwen_hybrid.text import TextModel
from ninfer.ops import sampling
from ninfer.ops.context import OpContext
from ninfer.program.prefill_parts import part_layers
from ninfer.program.rehearsal import enqueue_chunks
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
    """Runs chunks; owner of the graphs of a full one until `close`.

    Args:
        ctx: where chunks run.
        model: weights and caches.
        counts: i32 [slots, vocab_rows], output tokens of each slot's sequence.
        io: the chunk's inputs.
        workspace: flat U8, enough activations for the largest chunk; nobody else's between parts.

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
        self._graphs: Final[dict[int, list[Graph]]] = {}

    def num_parts(self, num_columns: int) -> int:
        """Parts that a chunk of so many columns has; one that is imagined is not cut."""
        return 1 if self.is_imagined else len(self._parts(num_columns))

    def run(self, chunk: PrefillChunk, parts: range | None = None) -> None:
        """Process a chunk or consecutive parts of one, and wait for their end.

        Args:
            chunk: the inputs.
            parts: all when None. Those before have run, and only decode rounds since.

        Writes: keys and values at the chunk's positions, the slot's state in place, both of the
        parts' layers; with the first part the slot's counts for the counted tokens.

        Raises:
            InvariantError: the device reported a fault.
        """
        if self.is_imagined:
            return
        ctx, count = self._ctx, len(chunk.tokens)
        parts = range(self.num_parts(count)) if parts is None else parts
        inputs = self._io.upload_prefill(ctx.stream, chunk)
        if chunk.num_counted and parts.start == 0:
            sampling.count_tokens(
                ctx, self._counts, inputs.count_slots, inputs.columns.tokens, inputs.count_flags
            )
        graphs = self._graphs.get(count)
        for part in parts:
            if graphs is None:
                self._enqueue(count, self._parts(count)[part])
            else:
                graphs[part].launch(ctx.stream)
        ctx.stream.synchronize()

    def enqueue_every(self, max_columns: int) -> None:
        """Enqueue what any chunk of up to ``max_columns`` columns does, for a rehearsal."""
        enqueue_chunks(self._ctx, self._model, self._io, self._workspace, max_columns)

    def capture(self, num_columns: int) -> None:
        """Let chunks of so many columns be replayed; all others are enqueued op by op."""
        kept = self._graphs.setdefault(num_columns, [])
        for layers in self._parts(num_columns):
            kept.append(self._captured(num_columns, layers))

    def close(self) -> None:
        """Drop the graphs; idempotent."""
        while self._graphs:
            graphs = self._graphs.popitem()[1]
            while graphs:
                graphs.pop().close()

    def _captured(self, count: int, layers: range) -> Graph:
        stream = self._ctx.stream
        stream.begin_capture()
        self._enqueue(count, layers)
        return stream.end_capture()

    def _enqueue(self, count: int, layers: range) -> None:
        ctx, model, columns = self._ctx, self._model, self._io.prefill_inputs(count).columns
        activations = carve_activations(ctx, model.geometry, model.weights, count, self._workspace)
        text.prefill_columns(ctx, model, columns, activations, layers)

    def _parts(self, num_columns: int) -> tuple[range, ...]:
        return part_layers(len(self._model.weights.layers), num_columns)
