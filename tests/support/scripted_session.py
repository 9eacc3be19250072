"""An output session that follows a script and watches the order in which it is called.

Each token becomes one piece of text. It ends after a given number of tokens, may want a forced
suffix at given counts, and can be made to fail at any numbered call. `commit` checks that Program
has committed the tokens already, and that resources are settled if they end the request.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ninfer.errors import InvariantError
from ninfer.generation import (
    Channel,
    FinishReason,
    GenerationRequest,
    OutputDelta,
    OutputPreview,
    OutputSummary,
    PreparedPrompt,
    SamplingParams,
    TextDelta,
    TokenMask,
)
from tests.support.scripted_program import ScriptedProgram

SESSION_CALLS = ("preview", "commit", "forced_suffix", "token_mask", "summary")


class SessionFaultError(Exception):
    """A fault of the session that the test asked for."""


@dataclass(frozen=True, slots=True)
class _Effect:
    base: int
    tokens: tuple[int, ...]
    is_forced: bool


class ScriptedSession:
    """See the module.

    Args:
        stop_after: tokens after which the request ends with STOP; None never stops.
        forced: suffix wanted once at least so many tokens are committed.
        masks: allowed tokens once exactly so many tokens are committed.
        fault_at: call name to number of the call that fails.
        error: what a failing call raises.
    """

    def __init__(
        self,
        program: ScriptedProgram,
        prompt: PreparedPrompt,
        *,
        stop_after: int | None = None,
        forced: Mapping[int, tuple[int, ...]] | None = None,
        masks: Mapping[int, TokenMask] | None = None,
        fault_at: Mapping[str, int] | None = None,
        error: Callable[[str], Exception] = SessionFaultError,
    ) -> None:
        self._program = program
        self._prompt = prompt
        self._stop_after = stop_after
        self._forced = dict(forced or {})
        self._masks = dict(masks or {})
        self._fault_at = dict(fault_at or {})
        self._error = error
        self._newest: OutputPreview | None = None
        self.calls: Counter[str] = Counter()
        self.committed: list[int] = []

    def preview(
        self, token_ids: Sequence[int], *, is_forced: bool, is_budget_end: bool
    ) -> OutputPreview:
        self._enter("preview")
        assert token_ids
        accepted, finish = len(token_ids), None
        if self._stop_after is not None and not is_forced:
            left = max(1, self._stop_after - len(self.committed))
            if left <= len(token_ids):
                accepted, finish = left, FinishReason.STOP
        if finish is None and is_budget_end:
            finish = FinishReason.LENGTH
        effect = _Effect(len(self.committed), tuple(token_ids[:accepted]), is_forced)
        self._newest = OutputPreview(accepted, finish, (accepted,), effect)
        return self._newest

    def commit(self, preview: OutputPreview) -> tuple[OutputDelta, ...]:
        self._enter("commit")
        if preview is not self._newest:
            raise InvariantError("not the newest preview")
        self._newest = None
        effect = preview.effect
        assert isinstance(effect, _Effect)
        assert effect.base == len(self.committed)
        if effect.is_forced:
            self._forced = {n: t for n, t in self._forced.items() if n != self._due()}
        self.committed.extend(effect.tokens)
        assert self._program.committed[self._prompt.identity] == self.committed
        if preview.finish is not None:
            assert not self._program.is_owning(self._prompt)
        return tuple(TextDelta(Channel.CONTENT, f"{token} ") for token in effect.tokens)

    def forced_suffix(self) -> tuple[int, ...]:
        self._enter("forced_suffix")
        due = self._due()
        return () if due is None else self._forced[due]

    def token_mask(self) -> TokenMask | None:
        self._enter("token_mask")
        return self._masks.get(len(self.committed))

    def summary(self) -> OutputSummary:
        self._enter("summary")
        return OutputSummary("".join(f"{token} " for token in self.committed), "", (), 0)

    def _due(self) -> int | None:
        return min((n for n in self._forced if n <= len(self.committed)), default=None)

    def _enter(self, call: str) -> None:
        number = self.calls[call]
        self.calls[call] += 1
        if self._fault_at.get(call) == number:
            raise self._error(f"{call} {number}")


def make_prompt(first: int, length: int) -> PreparedPrompt:
    """A text prompt whose script is keyed by ``first``."""
    ids = (first, *range(1, length))
    return PreparedPrompt(ids, bytes(length), None, f"prompt {first}".encode())


def make_request(
    program: ScriptedProgram,
    first: int = 1,
    *,
    prompt_tokens: int = 6,
    max_new_tokens: int = 4,
    stop_after: int | None = None,
    forced: Mapping[int, tuple[int, ...]] | None = None,
    masks: Mapping[int, TokenMask] | None = None,
    fault_at: Mapping[str, int] | None = None,
    error: Callable[[str], Exception] = SessionFaultError,
    queue_timeout_s: float | None = None,
    request_timeout_s: float | None = None,
    session_key: str | None = None,
) -> GenerationRequest:
    """A request with a scripted session; ``first`` names it in `ScriptedProgram.rounds`."""
    prompt = make_prompt(first, prompt_tokens)
    session = ScriptedSession(
        program,
        prompt,
        stop_after=stop_after,
        forced=forced,
        masks=masks,
        fault_at=fault_at,
        error=error,
    )
    return GenerationRequest(
        prompt=prompt,
        output=session,
        sampling=SamplingParams(),
        max_new_tokens=max_new_tokens,
        queue_timeout_s=queue_timeout_s,
        request_timeout_s=request_timeout_s,
        session_key=session_key,
    )
