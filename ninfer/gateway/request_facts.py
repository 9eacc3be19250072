"""What is known about one generation request, for metrics and the request log; never its text.

Plain values and the protocol of whoever wants to hear of them. Source: the serving contract,
section 13.
"""

import enum
from dataclasses import dataclass
from typing import Final, Protocol

from ninfer.generation import FinishReason, GenerationResult, SamplingParams, Usage


class Endpoint(enum.Enum):
    """Where a generation request came in; the value is its label in metrics."""

    CHAT = "chat_completions"
    COMPLETIONS = "completions"
    MESSAGES = "messages"

    @property
    def protocol(self) -> str:
        """Whose protocol it speaks."""
        return "anthropic" if self is Endpoint.MESSAGES else "openai"


NO_DRAFTS: Final = 0
"""Proposed tokens of a request, and of the whole engine, while nothing speculates."""

REUSE_PATHS: Final = ("root", "endpoint", "closure", "replay", "anchor", "shared")
"""Ways in which the prefix of a prompt may be found; root is none of it."""

_PATHS: Final = {
    "/v1/chat/completions": Endpoint.CHAT,
    "/v1/completions": Endpoint.COMPLETIONS,
    "/v1/messages": Endpoint.MESSAGES,
}


def endpoint_of(method: str, path: str) -> Endpoint | None:
    """Where a generation request comes in; None for every other request."""
    return _PATHS.get(path) if method == "POST" else None


class RequestOutcome(enum.Enum):
    """How a started request ended; the value is its label in metrics."""

    OK = "ok"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CANCELLED = "cancelled"
    REJECTED = "rejected"  # before the engine accepted it
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What is fixed when the engine accepts a request.

    Attributes:
        max_new_tokens: what was asked for, or what the context leaves of it.
        reasoning_effort, thinking_budget: None when the request named none.
        prepare_s: seconds from the complete body to submission.
    """

    endpoint: Endpoint
    request_id: str
    client_request_id: str | None
    is_stream: bool
    sampling: SamplingParams
    prompt_tokens: int
    max_new_tokens: int
    reasoning_effort: str | None
    thinking_budget: int | None
    prepare_s: float


@dataclass(frozen=True, slots=True)
class RequestEnd:
    """How an accepted request ended.

    Attributes:
        result: set unless the request failed or its client left.
        code: of the error that ended it.
        total_s: seconds from the complete body to the end.
        ttft_s: seconds from the complete body to the first committed output, if there was one.
    """

    outcome: RequestOutcome
    result: GenerationResult | None
    code: str | None
    total_s: float
    ttft_s: float | None


class RequestObserver(Protocol):
    """Hears of every generation request; must be quick and may not raise."""

    def note_started(self, facts: RequestFacts) -> None:
        """The engine accepted a request."""

    def note_ended(self, facts: RequestFacts, end: RequestEnd) -> None:
        """An accepted request ended; once for each."""

    def note_rejected(self, endpoint: Endpoint, request_id: str, code: str) -> None:
        """A request was refused before the engine accepted it."""


def outcome_of(finish: FinishReason) -> RequestOutcome:
    """Outcome of a request that did not fail."""
    match finish:
        case FinishReason.STOP:
            return RequestOutcome.OK
        case FinishReason.LENGTH:
            return RequestOutcome.LENGTH
        case FinishReason.TOOL_CALLS:
            return RequestOutcome.TOOL_CALLS
        case FinishReason.CANCELLED:
            return RequestOutcome.CANCELLED


def reuse_path(usage: Usage) -> str | None:
    """How the prefix of a prompt was found: ``root`` is none, None is not known."""
    return "root" if usage.cached_tokens == 0 else None
