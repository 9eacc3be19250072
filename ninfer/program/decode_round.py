"""The decode round: one upload, one graph launch, one read-back, for exactly B rows.

    count the anchors -> embed -> layers (fold, attend, record) -> head -> sample

Everything above is one recorded sequence for each B; what differs from round to round is in the
round's header. The round leaves recurrent state at its entry plus records, and keys and values
behind the frontier, so dropping its result needs no device work. Whose rows these are, and what
becomes of the tokens, is Program's business.
"""

import time
from collections.abc import Sequence
from typing import Final

from ninfer.errors import InvariantError
from ninfer.generation import SamplingParams
from ninfer.models.qwen_hybrid import text
from ninfer.models.qwen_hybrid.activations import TextActivations, carve_activations
from ninfer.models.qwen_hybrid.text import TextModel
from ninfer.ops import sampling
from ninfer.ops.context import OpContext
from ninfer.program.decode_graph import DecodeGraphs
from ninfer.program.round_io import DecodeRow, RoundIo
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
        use_graphs: whether to capture, or to run the same sequence eagerly.

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
        *,
        use_graphs: bool,
    ) -> None:
        self._ctx: Final = ctx
        self._model: Final = model
        self._counts: Final = counts
        self._io: Final = io
        self._addressable: Final = addressable
        self.clock: Final = RoundClock()
        self._activations: Final[tuple[TextActivations, ...]] = tuple(
            carve_activations(ctx, model.geometry, rows, workspace)
            for rows in range(1, max_rows + 1)
        )
        self._warm_up()
        self._graphs: Final = DecodeGraphs(
            ctx.stream, self._enqueue, max_rows, use_graphs=use_graphs
        )

    def _warm_up(self) -> None:
        """Compile and load everything now, and run it once on what belongs to nobody yet."""
        self._ctx.stream.begin_capture()
        self._enqueue(1)
        graph = self._ctx.stream.end_capture()
        graph.prepare()
        graph.close()
        self._io.upload_decode(self._ctx.stream, [_IDLE_ROW])
        self._enqueue(1)
        self._ctx.stream.synchronize()

    def run(self, rows: Sequence[DecodeRow]) -> tuple[int, ...]:
        """Run one round and return the token chosen for each row.

        Raises:
            InvariantError: the device reported a fault, or chose what cannot be chosen.
        """
        self.clock.begin(len(rows))
        self._io.upload_decode(self._ctx.stream, rows)
        self._graphs.launch(len(rows))
        tokens = self._io.download_sampled(self._ctx.stream, len(rows))
        if not all(0 <= token < self._addressable for token in tokens):
            raise InvariantError(f"a round chose {tokens}; ids end at {self._addressable - 1}")
        return tokens

    def replay(self, num_rows: int, count: int) -> float:
        """Run the newest round of that many rows again and again; for measurement.

        What it writes is nobody's, so no sequence may be active.

        Returns:
            Seconds of one round when nothing on the host comes between.
        """
        self._ctx.stream.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            self._graphs.launch(num_rows)
        self._ctx.stream.synchronize()
        return (time.perf_counter() - begin) / count

    def close(self) -> None:
        """Drop the graphs; idempotent."""
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
