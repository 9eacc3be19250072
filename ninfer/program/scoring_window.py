"""Offline scoring of one window of tokens: log-probabilities of what stands there.

A window starts from an empty state and an empty cache, runs the prefill path chunk by chunk, and
applies the head to blocks of columns, so that only one block of logits exists at a time. Nothing
is kept for the next window: no sequence, checkpoint or replica is made. The staging is allocated
for this purpose only. Where windows start and how far they overlap is the caller's choice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from ninfer.device import ALIGNMENT, Arena, host_array
from ninfer.errors import RequestError
from ninfer.models.qwen_hybrid import text
from ninfer.models.qwen_hybrid.activations import TextActivations, carve_activations
from ninfer.models.qwen_hybrid.text import TextModel
from ninfer.ops import sampling
from ninfer.ops.context import OpContext
from ninfer.program.prefill import chunk_stop
from ninfer.program.rehearsal import enqueue_chunks
from ninfer.program.round_io import PrefillChunk, RoundIo
from ninfer.program.state_planes import StatePlanes
from ninfer.tensor import DType, Tensor

HEAD_ROWS: Final = 64
"""Columns the head is applied to at a time: enough to read its weights rarely."""

_SLOT: Final = 0
_ROW: Final = 0


class WindowScores(NamedTuple):
    """Scores of a window of n tokens.

    Attributes:
        logprobs: n - 1 natural logarithms; entry i is that of token i + 1 given those before it.
        argmax: n ids; entry i is the most likely token at position i + 1.
    """

    logprobs: tuple[float, ...]
    argmax: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ScoringStaging:
    """Device results of a window, and their pinned twins.

    Attributes:
        logits: f32 [HEAD_ROWS, vocab_rows].
        targets, argmax: i32 [max_context].
        logprobs: f32 [max_context].
    """

    logits: Tensor
    targets: Tensor
    argmax: Tensor
    logprobs: Tensor
    targets_pinned: Tensor
    argmax_pinned: Tensor
    logprobs_pinned: Tensor

    @classmethod
    def take(
        cls, arena: Arena, pinned: Arena, max_context: int, vocab_rows: int
    ) -> "ScoringStaging":
        """Take everything from two arenas of the planned sizes."""
        per_token: tuple[int, ...] = (max_context,)
        return cls(
            arena.take((HEAD_ROWS, vocab_rows), DType.F32),
            arena.take(per_token, DType.I32),
            arena.take(per_token, DType.I32),
            arena.take(per_token, DType.F32),
            pinned.take(per_token, DType.I32),
            pinned.take(per_token, DType.I32),
            pinned.take(per_token, DType.F32),
        )

    @staticmethod
    def device_bytes(max_context: int, vocab_rows: int) -> int:
        """Bytes to plan for the device arena."""
        logits = 4 * HEAD_ROWS * vocab_rows
        return logits + ALIGNMENT + ScoringStaging.pinned_bytes(max_context)

    @staticmethod
    def pinned_bytes(max_context: int) -> int:
        """Bytes to plan for the pinned arena."""
        return 3 * (4 * max_context + ALIGNMENT)


class ScoringWindow:
    """Scores windows one after another; owns nothing.

    Args:
        ctx: where windows run.
        model: weights and caches; slot 0 and block-table row 0 are the window's.
        state: planes of the one state slot.
        io: inputs of the chunks.
        workspace: flat U8, enough activations for the largest chunk.
        staging: device results.
        addressable: ids below this take part in the distribution.
        max_context: longest window in tokens.
        chunk_tokens: size of a full chunk.
    """

    def __init__(
        self,
        ctx: OpContext,
        model: TextModel,
        state: StatePlanes,
        io: RoundIo,
        workspace: Tensor,
        staging: ScoringStaging,
        *,
        addressable: int,
        max_context: int,
        chunk_tokens: int,
    ) -> None:
        self._ctx: Final = ctx
        self._model: Final = model
        self._state: Final = state
        self._io: Final = io
        self._workspace: Final = workspace
        self._staging: Final = staging
        self._addressable: Final = addressable
        self._max_context: Final = max_context
        self._chunk_tokens: Final = chunk_tokens
        # Every window may use every page, in order.
        io.table_mirror[_ROW] = np.arange(io.table_mirror.shape[1])
        io.note_new_tables()

    def enqueue_every(self) -> None:
        """Enqueue what any window does, for a rehearsal."""
        ctx, model, workspace = self._ctx, self._model, self._workspace
        longest = min(self._chunk_tokens, self._max_context)
        enqueue_chunks(ctx, model, self._io, workspace, longest)
        activations = carve_activations(ctx, model.geometry, model.weights, longest, workspace)
        for count in range(1, min(HEAD_ROWS, longest) + 1):
            self._enqueue_head(activations, 0, 0, count)

    def score(self, tokens: Sequence[int]) -> WindowScores:
        """Score one window.

        Args:
            tokens: 1..max_context ids, each addressable.

        Raises:
            RequestError: the window is empty or too long, or an id is out of range.
        """
        self._check(tokens)
        stream, staging, count = self._ctx.stream, self._staging, len(tokens)
        self._state.clear(stream, _SLOT)
        # Nothing stands behind the last token; its score against id 0 is dropped.
        host_array(staging.targets_pinned)[:count] = (*tokens[1:], 0)
        stream.upload(staging.targets.rows(0, count), staging.targets_pinned.rows(0, count))
        first = 0
        while first < count:
            stop = chunk_stop(first, count, self._chunk_tokens)
            self._run_chunk(tokens, first, stop)
            first = stop
        argmax = staging.argmax_pinned.rows(0, count)
        logprobs = staging.logprobs_pinned.rows(0, count)
        stream.download(argmax, staging.argmax.rows(0, count))
        stream.download(logprobs, staging.logprobs.rows(0, count))
        stream.synchronize()
        return WindowScores(
            tuple(float(value) for value in host_array(logprobs)[:-1]),
            tuple(int(token) for token in host_array(argmax)),
        )

    def _run_chunk(self, tokens: Sequence[int], first: int, stop: int) -> None:
        ctx = self._ctx
        plain = range(first, stop)
        inputs = self._io.upload_prefill(
            ctx.stream,
            PrefillChunk(tokens[first:stop], first, (plain, plain, plain), _ROW, _SLOT, fold=0),
        )
        model = self._model
        activations = carve_activations(
            ctx, model.geometry, model.weights, stop - first, self._workspace
        )
        text.prefill_columns(ctx, model, inputs.columns, activations)
        for block in range(first, stop, HEAD_ROWS):
            self._enqueue_head(activations, block - first, block, min(HEAD_ROWS, stop - block))
        # The pinned header is written again by the next chunk.
        ctx.stream.synchronize()

    def _enqueue_head(
        self, activations: TextActivations, column: int, position: int, count: int
    ) -> None:
        """Score ``count`` columns of a chunk from one on, which stand at a position on."""
        ctx, staging = self._ctx, self._staging
        logits = staging.logits.rows(0, count)
        text.output_logits(ctx, self._model, activations, logits, column)
        sampling.score(
            ctx,
            logits,
            staging.targets.rows(position, count),
            self._addressable,
            staging.logprobs.rows(position, count),
            staging.argmax.rows(position, count),
        )

    def _check(self, tokens: Sequence[int]) -> None:
        if not 1 <= len(tokens) <= self._max_context:
            raise RequestError(
                f"a window of {len(tokens)} tokens; allowed is 1..{self._max_context}",
                field="tokens",
            )
        for index, token in enumerate(tokens):
            if not 0 <= token < self._addressable:
                raise RequestError(
                    f"token {token} at {index}; allowed is 0..{self._addressable - 1}",
                    field="tokens",
                )
