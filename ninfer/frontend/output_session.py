"""Output semantics of one request: tokens in, deltas and the reason to end out.

    token -> bytes -> UTF-8 of its channel -> thinking | content -> deltas

A preview copies the small state, reads the tokens into the copy and changes nothing; committing it
adopts the copy. Channels are switched in token space: the closing token itself, never its spelling.
Does not know messages, templates or sampling. Source: the serving contract, sections 4 to 6; the
design page, section 5.
"""

import copy
import enum
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final, Self

from ninfer.errors import IllegalMove, InvariantError
from ninfer.frontend.output_constraint import (
    LAYOUT_BREAKS,
    CompiledGrammar,
    ConstraintPhase,
    ConstraintPlace,
    OutputConstraint,
)
from ninfer.frontend.text_decoder import decode_bytes
from ninfer.frontend.thinking import ThinkingStream
from ninfer.frontend.tokenizer import Tokenizer
from ninfer.frontend.tool_arguments import ToolSignature
from ninfer.frontend.tool_calls import CallIds, ContentStream, ToolDiagnostics
from ninfer.generation import (
    Channel,
    FinishReason,
    OutputDelta,
    OutputPreview,
    OutputSummary,
    TextDelta,
    TokenMask,
    ToolCall,
    ToolCallArguments,
    ToolCallStart,
)

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Everything that decides what tokens of one request mean.

    Attributes:
        start: channel the prompt left open.
        stop_ids: tokens that end the turn.
        think_end: the token that closes the thinking block; None when there is none.
        tools: declared tools by name; empty: no call is parsed.
        stops, reasoning_stops: strings that end the request, by channel.
        ignores_end: end tokens never end the request.
        max_calls: complete calls that end the request; None is any number.
        thinking_budget: sampled tokens the block may have; None is unlimited.
        forced_close: tokens that close the block when the budget is spent, ``think_end`` last.
        grammar: what the content has to be; None is any text.
    """

    start: Channel = Channel.CONTENT
    stop_ids: frozenset[int] = frozenset()
    think_end: int | None = None
    tools: Mapping[str, ToolSignature] = field(default_factory=dict)
    stops: tuple[str, ...] = ()
    reasoning_stops: tuple[str, ...] = ()
    ignores_end: bool = False
    max_calls: int | None = None
    thinking_budget: int | None = None
    forced_close: tuple[int, ...] = ()
    call_ids: CallIds = field(default_factory=lambda: CallIds(b""))
    grammar: CompiledGrammar | None = None


class OutputPhase(enum.Enum):
    """Where the output stands."""

    THINKING = enum.auto()
    CONTENT = enum.auto()
    FINISHED = enum.auto()


_NEXT: Final = {
    OutputPhase.THINKING: {OutputPhase.CONTENT, OutputPhase.FINISHED},
    OutputPhase.CONTENT: {OutputPhase.FINISHED},
    OutputPhase.FINISHED: set(),
}


class _OutputState:
    """The state a commit adopts. `read` and `end` are its only events."""

    def __init__(self, settings: SessionSettings, tokenizer: Tokenizer) -> None:
        starts_thinking = settings.start is Channel.THINKING
        self.phase = OutputPhase.THINKING if starts_thinking else OutputPhase.CONTENT
        self.finish: FinishReason | None = None
        self.reasoning_tokens = 0
        self.sampled_thinking = 0
        self.thinking = ThinkingStream(settings.tools, settings.reasoning_stops)
        self.content = ContentStream(
            settings.tools, settings.stops, settings.call_ids, settings.max_calls
        )
        self.place = ConstraintPlace(
            ConstraintPhase.WAITING if starts_thinking else ConstraintPhase.ACTIVE
        )
        self._settings = settings
        self._tokenizer = tokenizer
        self._held = b""
        self._layout_breaks = 0

    def copy(self) -> Self:
        """Get an independent state."""
        twin = copy.copy(self)
        twin.thinking = self.thinking.copy()
        twin.content = self.content.copy()
        return twin

    @property
    def matched_stop(self) -> str | None:
        """Stop string that ended the output."""
        return self.content.matched_stop or self.thinking.matched_stop

    def read(self, token_id: int, deltas: list[OutputDelta], *, is_forced: bool) -> None:
        """Read one token."""
        settings = self._settings
        if token_id in settings.stop_ids:
            if not settings.ignores_end:
                self.end(FinishReason.STOP, deltas)
            return
        self._follow(token_id)
        if self.phase is OutputPhase.THINKING:
            if token_id == settings.think_end:
                self._close_thinking(deltas)
            else:
                self.reasoning_tokens += 1
                self.sampled_thinking += not is_forced
                self._read_thinking(self._decode(token_id), deltas, is_forced=is_forced)
        else:
            self._read_content(self._decode(token_id), deltas)
        if self.phase is not OutputPhase.FINISHED and self._is_ended_by_text():
            self.end(FinishReason.STOP, deltas)

    def end(self, reason: FinishReason, deltas: list[OutputDelta]) -> None:
        """Nothing follows: release what is held and fix the reason."""
        is_turn_end = reason is FinishReason.STOP
        text, self._held = decode_bytes(self._held, b"", is_end=True)
        if self.phase is OutputPhase.THINKING:
            self._read_thinking(text, deltas, is_forced=False)
            self.thinking.end(deltas, is_turn_end=is_turn_end)
            self._take_claim(deltas)
        else:
            self._read_content(text, deltas)
        if self.phase is OutputPhase.CONTENT:
            self.content.end(deltas, is_turn_end=is_turn_end)
        if self._is_ended_by_text():
            reason = FinishReason.STOP
        if reason is FinishReason.STOP and self.content.num_complete:
            reason = FinishReason.TOOL_CALLS
        self.finish = reason
        self._move(OutputPhase.FINISHED)

    def _follow(self, token_id: int) -> None:
        """Move the place of the constraint, if there is one, before the channel may change."""
        grammar = self._settings.grammar
        if grammar is None:
            return
        if self.phase is OutputPhase.CONTENT:
            self.place = self.place.behind(token_id, grammar.vocabulary.breaks)
        elif token_id == self._settings.think_end:
            self.place = self.place.closed()

    def _is_ended_by_text(self) -> bool:
        return self.content.is_ended or self.thinking.matched_stop is not None

    def _decode(self, token_id: int) -> str:
        if self._tokenizer.is_hidden(token_id):
            return ""
        text, self._held = decode_bytes(self._held, self._tokenizer.piece(token_id))
        return text

    def _read_thinking(self, text: str, deltas: list[OutputDelta], *, is_forced: bool) -> None:
        if is_forced:
            self.thinking.feed_forced(text, deltas)
        else:
            self.thinking.feed(text, deltas)
            self._take_claim(deltas)

    def _take_claim(self, deltas: list[OutputDelta]) -> None:
        claimed = self.thinking.claimed
        if claimed is not None and self.phase is OutputPhase.THINKING:
            self._move(OutputPhase.CONTENT)
            self.content.feed(claimed, deltas)

    def _close_thinking(self, deltas: list[OutputDelta]) -> None:
        text, self._held = decode_bytes(self._held, b"", is_end=True)
        self.thinking.feed(text, deltas)
        self.thinking.close(deltas)
        self._move(OutputPhase.CONTENT)
        self._layout_breaks = LAYOUT_BREAKS

    def _read_content(self, text: str, deltas: list[OutputDelta]) -> None:
        while self._layout_breaks and text:
            self._layout_breaks -= 1
            text = text.removeprefix("\n")
        self.content.feed(text, deltas)

    def _move(self, phase: OutputPhase) -> None:
        if phase not in _NEXT[self.phase]:
            raise IllegalMove(f"an output cannot go from {self.phase} to {phase}")
        self.phase = phase


@dataclass(frozen=True, slots=True)
class _Effect:
    """What adopting a preview means."""

    state: _OutputState
    deltas: tuple[OutputDelta, ...]


class TokenOutputSession:
    """`ninfer.generation.OutputSession` over a tokenizer."""

    def __init__(self, settings: SessionSettings, tokenizer: Tokenizer) -> None:
        self._settings = settings
        self._addressable = tokenizer.addressable
        self._state = _OutputState(settings, tokenizer)
        self._constraint = None if settings.grammar is None else OutputConstraint(settings.grammar)
        self._newest: OutputPreview | None = None
        self._text: dict[Channel, list[str]] = {channel: [] for channel in Channel}
        self._calls: list[tuple[ToolCallStart, list[str]]] = []

    def preview(
        self, token_ids: Sequence[int], *, is_forced: bool, is_budget_end: bool
    ) -> OutputPreview:
        """Say what committing ``token_ids`` would do, without changing anything.

        Args:
            token_ids: produced tokens of one row, at least one.
            is_forced: they come from `forced_suffix`, not from the sampler.
            is_budget_end: nothing can be generated after the last of them.

        Raises:
            InvariantError: the output has ended, there is no token, or an id is out of range.
        """
        if self._state.phase is OutputPhase.FINISHED or not token_ids:
            raise InvariantError("preview of an output that has ended, or of no tokens")
        state = self._state.copy()
        deltas: list[OutputDelta] = []
        boundaries: list[int] = []
        accepted = 0
        for token_id in token_ids:
            if not 0 <= token_id < self._addressable:
                raise InvariantError(f"token {token_id} is outside 0..{self._addressable - 1}")
            accepted += 1
            state.read(token_id, deltas, is_forced=is_forced)
            if state.phase is OutputPhase.FINISHED:
                break
        if is_budget_end and state.phase is not OutputPhase.FINISHED:
            state.end(FinishReason.LENGTH, deltas)
        elif (
            state.phase is OutputPhase.FINISHED
            and token_ids[accepted - 1] in self._settings.stop_ids
        ):
            # The turn is closed as the template closes it: history renders the same tokens.
            boundaries.append(accepted)
        effect = _Effect(state, _merged(deltas))
        self._newest = OutputPreview(accepted, state.finish, tuple(boundaries), effect)
        return self._newest

    def commit(self, preview: OutputPreview) -> tuple[OutputDelta, ...]:
        """Adopt the newest preview and return what became final.

        Raises:
            InvariantError: the preview is not the newest one of the present state.
            NinferError: the constraint broke down; this request cannot go on.
        """
        effect = preview.effect
        if preview is not self._newest or not isinstance(effect, _Effect):
            raise InvariantError("only the newest preview of the present state can be committed")
        self._newest = None
        if self._constraint is not None and preview.finish is None:
            effect.state.place = self._constraint.commit(effect.state.place)
        _log_new(self._state.content.diagnostics, effect.state.content.diagnostics)
        self._state = effect.state
        for delta in effect.deltas:
            match delta:
                case TextDelta():
                    self._text[delta.channel].append(delta.text)
                case ToolCallStart():
                    self._calls.append((delta, []))
                case ToolCallArguments():
                    self._calls[delta.index][1].append(delta.fragment)
        return effect.deltas

    def forced_suffix(self) -> tuple[int, ...]:
        """Tokens the present committed state wants committed next without sampling, or none."""
        budget = self._settings.thinking_budget
        is_spent = budget is not None and self._state.sampled_thinking >= budget
        is_open = self._state.phase is OutputPhase.THINKING
        return self._settings.forced_close if is_open and is_spent else ()

    def token_mask(self) -> TokenMask | None:
        """Tokens the present committed state allows next; None allows all.

        Raises:
            NinferError: the constraint broke down; this request cannot go on.
        """
        return None if self._constraint is None else self._constraint.mask(self._state.place)

    def summary(self) -> OutputSummary:
        """Fold of everything committed so far; a call the output ended in has partial arguments."""
        calls = (
            ToolCall(start.call_id, start.name, "".join(parts)) for start, parts in self._calls
        )
        return OutputSummary(
            content="".join(self._text[Channel.CONTENT]),
            reasoning="".join(self._text[Channel.THINKING]),
            tool_calls=tuple(calls),
            reasoning_tokens=self._state.reasoning_tokens,
            matched_stop=self._state.matched_stop,
            tool_notes={name: n for name, n in asdict(self.diagnostics).items() if n},
        )

    @property
    def diagnostics(self) -> ToolDiagnostics:
        """What the tool-call parser met so far."""
        return self._state.content.diagnostics


def _merged(deltas: Sequence[OutputDelta]) -> tuple[OutputDelta, ...]:
    """Join neighbours of one kind: a round makes one delta where it can."""
    merged: list[OutputDelta] = []
    for delta in deltas:
        last = merged[-1] if merged else None
        match last, delta:
            case TextDelta(), TextDelta() if last.channel is delta.channel:
                merged[-1] = TextDelta(delta.channel, last.text + delta.text)
            case ToolCallArguments(), ToolCallArguments() if last.index == delta.index:
                merged[-1] = ToolCallArguments(delta.index, last.fragment + delta.fragment)
            case _:
                merged.append(delta)
    return tuple(merged)


def _log_new(before: ToolDiagnostics, after: ToolDiagnostics) -> None:
    if before == after:
        return
    counts = asdict(before)
    for reason, count in asdict(after).items():
        if count > counts[reason]:
            _LOG.warning("tool call markup: %s", reason)
