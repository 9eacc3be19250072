"""The decode round: one upload, one graph launch, one read-back, for exactly B rows.

    count the anchors -> embed -> layers (fold, attend, record) -> head -> sample

Everything above is one recorded sequence for each B; what differs from round to round is in the
round's header. The round leaves recurrent state at its entry plus records, and keys and values
behind the frontier, so dropping its result needs no device work. Whose rows these are, and what
becomes of the tokens, is Program's business.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from ninfer.errors import InvariantError
from ninfer.generation import SamplingParams
from ninfer.models.qwen_hybrid import text
from ninfer.models.qwen_hybrid.activations import TextActivations, carve_activations
from ninfer.models.qwen_hybrid.text import TextModel
from ninfer.ops import sampling
from ninfer.ops.context import OpContext
from ninfer.program.decode_graph import DecodeGraphs
from ninfer.program.decode_header import DecodeRow
from ninfer.program.round_io import RoundIo
from ninfer.program.round_staging import ChosenTokens
from ninfer.program.round_times import RoundClock
from ninfer.tensor import Tensor

_IDLE_ROW: Final = DecodeRow(0, 0, (0, 0, 0), 0, 0, 0, False, SamplingParams())


class DecodeRound:
    """Owner of the decode graphs until `close`.

    Args:
        ctx: where rounds run.
        model: weights and caches.
        counts: i32 [slots, vocab_rows], output tokens of each slot's sequence.
        io: the round's inputs and outputs.
        workspace: flat U8, enough activations for ``max_rows`` columns.
        addressable: ids below this may be chosen.
        max_rows: largest B.

    Attributes:
        clock: takes the times of rounds.
    """

    def __init__(
        self,
        ctx: OpContext,
        model: TextModel,
        counts: Tensor,
        io: RoundIo,
        workspace: Tensor,
        addressable: int,
        max_rows: int,
    ) -> None:
        self._ctx: Final = ctx
        self._model: Final = model
        self._counts: Final = counts
        self._io: Final = io
        self._addressable: Final = addressable
        self.clock: Final = RoundClock()
        self._newest: ChosenTokens | None = None
        self._activations: Final[tuple[TextActivations, ...]] = tuple(
            carve_activations(ctx, model.geometry, model.weights, rows, workspace)
            for rows in range(1, max_rows + 1)
        )
        self._graphs = DecodeGraphs(ctx.stream, self._enqueue, 0, use_graphs=False)

    def enqueue_every(self) -> None:
        """Enqueue a round of every number of rows, for a rehearsal."""
        for index in range(len(self._activations)):
            self._enqueue(index + 1)

    def warm_up(self) -> None:
        """Run a round once, on what belongs to nobody yet."""
        self._io.upload_decode(self._ctx.stream, [_IDLE_ROW])
        self._enqueue(1)
        self._ctx.stream.synchronize()

    def capture(self) -> None:
        """Let rounds be replayed from now on, instead of being enqueued op by op."""
        self._graphs = DecodeGraphs(
            self._ctx.stream, self._enqueue, len(self._activations), use_graphs=True
        )

    def launch(self, rows: Sequence[DecodeRow], sources: Sequence[int] = ()) -> ChosenTokens:
        """Enqueue one round, and the way back of the tokens it will choose.

        Args:
            rows: what each row brings.
            sources: when given, the anchors are the tokens that the newest round chooses for these
                rows of its own, whatever the rows say.
        """
        stream = self._ctx.stream
        self._io.upload_decode(stream, rows, sources)
        begun = stream.record() if self.clock.is_running else None
        self._graphs.launch(len(rows))
        self._newest = self._io.download_sampled(stream, len(rows), begun)
        return self._newest

    def collect(self, chosen: ChosenTokens) -> tuple[int, ...]:
        """Wait for the tokens of a round.

        Raises:
            InvariantError: the device reported a fault, or chose what cannot be chosen.
        """
        tokens = chosen.wait()
        if chosen.begun is not None:
            self.clock.arrive(chosen.begun, chosen.arrival)
        if not all(0 <= token < self._addressable for token in tokens):
            raise InvariantError(f"a round chose {tokens}; ids end at {self._addressable - 1}")
        return tokens

    def close(self) -> None:
        """Drop the graphs once no round runs any more; idempotent."""
        if self._newest is not None:
            with suppress(InvariantError):  # nothing runs on a stream that has failed
                self._newest.wait()
            self._newest = None
        self._graphs.close()

    def _enqueue(self, num_rows: int) -> None:
        """Enqueue the round of exactly ``num_rows`` rows on fixed addresses."""
        ctx = self._ctx
        inputs = self._io.decode_inputs(num_rows)
        activations = self._activations[num_rows - 1]
        logits = self._io.logits.rows(0, num_rows)
        slots = inputs.columns.slots
        sampling.count_tokens(ctx, self._counts, slots, inputs.columns.tokens, inputs.count_flags)
        text.decode_columns(ctx, self._model, inputs.columns, activations)
        text.output_logits(ctx, self._model, activations, logits)
        sampling.sample(
            ctx,
            logits,
            inputs.sampler,
            self._counts,
            slots,
            inputs.mask,
            self._addressable,
            self._io.sampled.rows(0, num_rows),
        )
