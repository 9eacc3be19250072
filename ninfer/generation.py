"""Values that cross layers: what a request is made of and what comes back.

Plain frozen values, no device; their only behaviour is to refuse what is out of range.
`OutputSession` is declared here because the engine has to ask the frontend, which is above it, for
a preview of each row; the frontend implements it and hands an instance in with the request.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ninfer.errors import RequestError

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy (serving contract, section 3.3)."""

_INT32_MAX = (1 << 31) - 1
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_SAMPLING_RANGES = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}


def checked_number(field_name: str, value: object, low: float, high: float) -> float:
    """Return ``value`` as a float if it is a number in ``[low, high]``; a boolean is not a number.

    Raises:
        RequestError: ``invalid_type`` or ``invalid_value``, naming field, value and range.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(
            f"{field_name} must be a number, not {shown(value)}",
            code="invalid_type",
            field=field_name,
        )
    if not low <= value <= high:  # also refuses NaN
        raise RequestError(
            f"{field_name} is {shown(value)}; allowed is {number_text(low)}..{number_text(high)}",
            field=field_name,
        )
    return float(value)


def checked_integer(field_name: str, value: object, low: int, high: int) -> int:
    """Return ``value`` if it is an integer in ``[low, high]``; ``1.0`` and ``True`` are not.

    Raises:
        RequestError: ``invalid_type`` or ``invalid_value``, naming field, value and range.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(
            f"{field_name} must be an integer, not {shown(value)}",
            code="invalid_type",
            field=field_name,
        )
    if not low <= value <= high:
        raise RequestError(
            f"{field_name} is {shown(value)}; allowed is {low}..{high}", field=field_name
        )
    return value


def shown(value: object) -> str:
    """Spell a value for an error message: at most 64 characters, control characters escaped."""
    text = ascii(value)
    return text if len(text) <= 64 else text[:61] + "..."


def number_text(value: float) -> str:
    """Spell a number for people: every digit, no exponent and no ``.0`` for a whole one."""
    return str(int(value)) if value % 1 == 0 and abs(value) < 1e16 else repr(value)


class FinishReason(enum.Enum):
    """Why a request ended; the value is the protocols' spelling."""

    STOP = "stop"  # end token or stop string
    LENGTH = "length"  # budget or context
    TOOL_CALLS = "tool_calls"  # ended normally with at least one call
    CANCELLED = "cancelled"  # by its owner; never sent over a protocol


class Channel(enum.Enum):
    """Where a piece of text belongs."""

    THINKING = "thinking"
    CONTENT = "content"


class CacheMode(enum.Enum):
    """Whether a request joins the context cache."""

    READ_WRITE = enum.auto()
    DISABLED = enum.auto()  # root only, everything released at the end


class TokenType(enum.IntEnum):
    """What a prompt token stands for."""

    TEXT = 0
    IMAGE = 1
    VIDEO = 2


class BoundaryKind(enum.Enum):
    """Meaning of a place in a prompt at which a later request may resume."""

    TURN_CLOSURE = enum.auto()  # before the replaceable assistant suffix
    RESPONSE_REPLAY = enum.auto()  # before the generation opener
    SHARED_STABLE = enum.auto()  # after all tools, or after the leading system messages
    EXPLICIT = enum.auto()  # marked by the client


@dataclass(frozen=True, slots=True)
class Boundary:
    """A reconstruction boundary: ``frontier`` tokens stand before it."""

    kind: BoundaryKind
    frontier: int


@dataclass(frozen=True, slots=True)
class RopePositions:
    """Three-axis positions of a prompt with media; text-only prompts have none.

    Attributes:
        axes: time, height and width position of each prompt token.
        delta: added to the sequence index of every later token.
    """

    axes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    delta: int


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """An owned prompt with its complete identity.

    Attributes:
        token_ids: at least one token.
        token_types: one `TokenType` byte per token.
        rope: positions when they differ from ``0, 1, 2, ...``.
        identity: digest of everything that decides the state behind this prompt: ids, types,
            positions, media and template mode.
        boundaries: ascending by frontier.
    """

    token_ids: tuple[int, ...]
    token_types: bytes
    rope: RopePositions | None
    identity: bytes
    boundaries: tuple[Boundary, ...] = ()


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is chosen. The one validator of these values, whoever asks for them.

    Ranges are those of the serving contract, section 4: temperature 0..2, top_p and min_p 0..1,
    penalties -2..2. ``top_k`` 0 and -1 mean no limit and are both kept as 0. ``seed`` is an int64
    whose two's-complement bits key the draws.

    Raises:
        RequestError: a value has the wrong type (``invalid_type``) or range (``invalid_value``).
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, (low, high) in _SAMPLING_RANGES.items():
            object.__setattr__(self, name, checked_number(name, getattr(self, name), low, high))
        top_k = checked_integer("top_k", self.top_k, -1, _INT32_MAX)
        object.__setattr__(self, "top_k", max(top_k, 0))
        checked_integer("seed", self.seed, _INT64_MIN, _INT64_MAX)

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < GREEDY_BELOW


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that became final on a channel; never empty, never half a character."""

    channel: Channel
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call whose name is complete and declared."""

    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """The next fragment of a call's JSON arguments; fragments concatenate to the whole object."""

    index: int
    fragment: str


OutputDelta = TextDelta | ToolCallStart | ToolCallArguments


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A finished call; ``arguments`` is JSON object text."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class OutputSummary:
    """The fold of all committed deltas.

    Attributes:
        matched_stop: the stop string that ended the output, if one did.
        tool_notes: what was odd about tool-call markup, by reason; only counts that are not 0.
    """

    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    reasoning_tokens: int
    matched_stop: str | None = None
    tool_notes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OutputPreview:
    """What committing a row's tokens would do. Making one changes nothing.

    Attributes:
        accepted: tokens to commit; fewer than offered only when ``finish`` is set.
        finish: set when these tokens end the request.
        boundaries: reconstruction boundaries, in tokens of the accepted span (1..accepted).
        effect: the session's own next state; opaque to everyone else.
    """

    accepted: int
    finish: FinishReason | None
    boundaries: tuple[int, ...]
    effect: object


TokenMask = bytes
"""Allowed tokens of one decision: bit ``i % 32`` of little-endian word ``i // 32`` is token i. A
token beyond the last word is not allowed."""


class GrammarMatcher(Protocol):
    """A grammar and how much of it one output has used up. Every call may raise a `NinferError`."""

    @property
    def may_stop(self) -> bool:
        """Whether the output is complete as it stands."""

    def mask(self) -> TokenMask:
        """Tokens the output may go on with; end tokens are not its subject."""

    def accept(self, token_id: int) -> None:
        """Follow a committed token."""


class OutputSession(Protocol):
    """Output semantics of one request: a state machine with preview and commit."""

    def preview(
        self, token_ids: Sequence[int], *, is_forced: bool, is_budget_end: bool
    ) -> OutputPreview:
        """Say what committing ``token_ids`` would do, without changing anything.

        Args:
            token_ids: produced tokens of one row, at least one.
            is_forced: they come from `forced_suffix`, not from the sampler.
            is_budget_end: nothing can be generated after the last of them.
        """

    def commit(self, preview: OutputPreview) -> tuple[OutputDelta, ...]:
        """Adopt the newest preview and return what became final.

        Raises:
            InvariantError: the preview is not the newest one of the present state.
        """

    def forced_suffix(self) -> tuple[int, ...]:
        """Tokens the present committed state wants committed next without sampling, or none."""

    def token_mask(self) -> TokenMask | None:
        """Tokens the present committed state allows next; None allows all.

        It holds for the very next token only: a round that decides several tokens of a row at once
        cannot honour it for the later ones.

        Raises:
            NinferError: the constraint broke down; this request cannot go on.
        """

    def summary(self) -> OutputSummary:
        """Fold of everything committed so far."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request, complete and validated.

    Attributes:
        max_new_tokens: output budget in tokens, already clamped to the context; 0 is legal.
        queue_timeout_s: longest wait for admission; None waits for ever.
        request_timeout_s: longest life of the whole request; None is unlimited.
        session_key: hint that requests belong together.
    """

    prompt: PreparedPrompt
    output: OutputSession
    sampling: SamplingParams
    max_new_tokens: int
    cache: CacheMode = CacheMode.READ_WRITE
    queue_timeout_s: float | None = None
    request_timeout_s: float | None = None
    session_key: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request (serving contract, section 4.5)."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds of a request's phases, each from the end of the one before.

    The queue ends with admission, prefill with the first committed token, decode with the last one.
    """

    queue_s: float
    prefill_s: float
    decode_s: float


@dataclass(frozen=True, slots=True)
class GenerationStart:
    """Admission is committed; the first event of every request that gets that far."""

    prompt_tokens: int
    reused_tokens: int


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """Prompt tokens whose state exists; never goes back."""

    processed_tokens: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class OutputCommitted:
    """Tokens of one round, committed by Program and by the output session."""

    token_ids: tuple[int, ...]
    deltas: tuple[OutputDelta, ...]


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """The last event of a request that did not fail."""

    finish: FinishReason
    usage: Usage
    timings: Timings
    token_ids: tuple[int, ...] = field(repr=False)
    summary: OutputSummary


GenerationEvent = GenerationStart | PrefillProgress | OutputCommitted | GenerationResult
