"""Random lives of an engine: submissions, cancellations, drops, timeouts, faults, slow readers.

One seed is one sequence, the same for ever. Invariants are checked after every boundary and once
more at the end, when everything must have ended exactly once and every ledger must balance.
"""

import random
from dataclasses import dataclass, field

from ninfer.engine.engine_core import Boundary
from ninfer.engine.intake import EngineState
from ninfer.engine.response_channel import GenerationHandle
from ninfer.errors import (
    CapacityError,
    EngineFailed,
    InvariantError,
    NinferError,
    RequestCancelled,
)
from ninfer.generation import (
    CacheMode,
    GenerationEvent,
    GenerationRequest,
    GenerationResult,
    GenerationStart,
    OutputCommitted,
    PrefillProgress,
    PreparedPrompt,
    SamplingParams,
    TextDelta,
)
from tests.support.engine_harness import EngineHarness, read_available
from tests.support.retaining_planner import RetainingPlanner
from tests.support.scripted_books import Faults, InjectedFaultError
from tests.support.scripted_program import CALLS, ScriptedProgram
from tests.support.scripted_session import SESSION_CALLS, ScriptedSession, SessionFaultError

SESSION_KEYS = (None, "a", "a", "b")


@dataclass(slots=True)
class Client:
    """A consumer, and all it has seen."""

    handle: GenerationHandle
    request: GenerationRequest
    is_slow: bool
    events: list[GenerationEvent] = field(default_factory=list)
    error: NinferError | None = None
    is_closed: bool = False

    @property
    def is_answered(self) -> bool:
        return self.error is not None or (
            bool(self.events) and isinstance(self.events[-1], GenerationResult)
        )

    def read(self) -> None:
        if not self.is_answered:
            events, self.error = read_available(self.handle)
            self.events.extend(events)


class Simulation:
    """One random life; `run` raises `AssertionError` when an invariant breaks."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.is_reusing = self.random.random() < 0.5
        self.has_program_fault = self.random.random() < 0.3
        self.has_session_faults = self.random.random() < 0.3
        num_lanes = self.random.randint(1, 4)
        self.program = ScriptedProgram(
            max_concurrency=num_lanes,
            max_context=40,
            num_pages=self.random.choice((6, 8, 10, 12, 24)),
            num_state_slots=num_lanes + (2 if self.is_reusing else 0),
            chunk=self.random.randint(1, 6),
            num_parts=self.random.randint(1, 3),
            width=self.random.randint(1, 3),
            num_stages=self.random.choice((0, 0, 1, 2)),
            faults=self._faults(),
        )
        max_pending = self.random.randint(0, 6)
        planner = RetainingPlanner(is_moving=self.random.random() < 0.5)
        self.engine = EngineHarness(
            self.program,
            max_pending=max_pending,
            planner=planner if self.is_reusing else None,
            num_checkpoint_slots=2 if self.is_reusing else 0,
        )
        self.limit = num_lanes + max_pending
        self.clients: list[Client] = []
        self.histories: dict[str, tuple[int, ...]] = {}
        self.num_prompts = 0
        self.program.books.observe = self._act_in_between

    def run(self) -> None:
        """Live, end, and check."""
        for _ in range(self.random.randint(5, 40)):
            self._act()
        if self.random.random() < 0.5:
            self.engine.step_until_idle()
        self.engine.core.drain(self.random.choice((0.0, 5.0)))
        for _ in range(2000):
            if self.engine.step() is Boundary.OVER:
                break
            self.engine.clock.advance(0.01)
        else:
            raise AssertionError("the drained engine never stops")
        self._check_end()

    def _act(self) -> None:
        if self.random.random() < 0.52:
            self._act_as_client(self.random.random())
        else:
            self.engine.step(self.random.randint(1, 4))
            self._check_boundary()

    def _act_in_between(self, call: str) -> None:
        """What other threads do while the worker is in the middle of a boundary."""
        if self.random.random() < 0.02:
            self._act_as_client(self.random.random())

    def _act_as_client(self, action: float) -> None:
        if action < 0.67:
            self._submit()
        elif action < 0.79 and self.clients:
            self.random.choice(self.clients).handle.cancel()
        elif action < 0.89 and self.clients:
            client = self.random.choice(self.clients)
            client.handle.close()
            client.is_closed = True
        elif action < 0.995:
            self.engine.clock.advance(self.random.choice((0.1, 0.4, 1.0, 3.0)))
        else:
            self.engine.core.drain(self.random.choice((0.0, 1.0, 5.0)))

    def _submit(self) -> None:
        session_key = self.random.choice(SESSION_KEYS)
        prompt = self._prompt(session_key)
        room = 40 - len(prompt.token_ids)
        is_fault = self.has_session_faults and self.random.random() < 0.4
        session = ScriptedSession(
            self.program,
            prompt,
            stop_after=self.random.choice((None, None, 1, 2, 5)),
            forced=self.random.choice(({}, {}, {0: (5,)}, {2: (6, 7)}, {1: (8,), 4: (9, 9, 9)})),
            fault_at={self.random.choice(SESSION_CALLS): self.random.randint(0, 3)}
            if is_fault
            else {},
            error=self.random.choice((SessionFaultError, SessionFaultError, InvariantError)),
        )
        request = GenerationRequest(
            prompt=prompt,
            output=session,
            sampling=SamplingParams(),
            max_new_tokens=min(room, self.random.choice((0, 1, 3, 8, 20))),
            cache=self.random.choice((CacheMode.READ_WRITE,) * 3 + (CacheMode.DISABLED,)),
            queue_timeout_s=self.random.choice((None, None, None, 0.5, 3.0)),
            request_timeout_s=self.random.choice((None, None, None, 2.0)),
            session_key=session_key,
        )
        before = self.engine.core.status().outstanding
        state = self.engine.core.status().state
        try:
            handle = self.engine.submit(request)
        except CapacityError:
            assert before == self.limit or state is not EngineState.READY
            return
        except EngineFailed:
            assert state is EngineState.FAILED
            return
        self.clients.append(Client(handle, request, is_slow=self.random.random() < 0.4))

    def _prompt(self, session_key: str | None) -> PreparedPrompt:
        self.num_prompts += 1
        ids: tuple[int, ...] = (self.num_prompts, *range(self.random.randint(0, 11)))
        history = self.histories.get(session_key or "")
        if history is not None and self.random.random() < 0.8:
            ids = (*history, *range(self.random.randint(1, 4)))[:38]
        return PreparedPrompt(ids, bytes(len(ids)), None, f"{self.num_prompts}".encode())

    def _faults(self) -> Faults:
        stale = frozenset(self.random.sample(range(12), self.random.choice((0, 0, 3))))
        if not self.has_program_fault:
            return Faults(stale=stale)
        at = {self.random.choice(CALLS): self.random.randint(0, 8)}
        if self.random.random() < 0.2:
            at["abandon"] = 0
        return Faults(at, stale, self.random.choice((InjectedFaultError, InvariantError)))

    def _check_boundary(self) -> None:
        status = self.engine.core.status()
        if status.state is not EngineState.FAILED:
            self.program.books.check()
            assert status.active <= self.program.capacity.max_concurrency
            assert status.prefilling <= 1
            assert self.program.pending is None
        assert status.outstanding <= self.limit
        for client in self.clients:
            if not client.is_slow and not client.is_closed:
                client.read()
                self._note_history(client)

    def _note_history(self, client: Client) -> None:
        key, last = client.request.session_key, client.events[-1] if client.events else None
        if key is not None and isinstance(last, GenerationResult):
            self.histories[key] = (*client.request.prompt.token_ids, *last.token_ids)

    def _check_end(self) -> None:
        status = self.engine.core.status()
        for client in self.clients:
            client.read()
            _check_client(client, self.program, has_failed=status.state is EngineState.FAILED)
        status = self.engine.core.status()
        assert status.outstanding == 0
        assert (status.active, status.waiting) == (0, 0)
        assert sum(status.counters.ended.values()) == len(self.clients)
        assert status.counters.accepted == len(self.clients)
        assert self.engine.step() is Boundary.OVER
        if status.state is EngineState.FAILED:
            assert self.program.is_abandoned
            assert self.has_program_fault or self.has_session_faults
        else:
            assert status.state is EngineState.STOPPED
            self.program.check_idle()
            self.engine.check_resources_idle()
            assert status.checkpoints == len(self.program.books.checkpoints)
            assert self.is_reusing or status.free == status.total


def _check_client(client: Client, program: ScriptedProgram, *, has_failed: bool) -> None:
    """Events in order, every token committed, text equal to the result's, one end."""
    assert client.is_answered
    events = client.events
    if isinstance(client.error, EngineFailed):
        assert has_failed
    kinds = [type(event) for event in events]
    order = [GenerationStart, PrefillProgress, OutputCommitted, GenerationResult]
    ranks = [order.index(kind) for kind in kinds]
    assert ranks == sorted(ranks)
    assert kinds.count(GenerationStart) <= 1
    progress = [event for event in events if isinstance(event, PrefillProgress)]
    processed = [event.processed_tokens for event in progress]
    assert processed == sorted(set(processed))
    outputs = [event for event in events if isinstance(event, OutputCommitted)]
    tokens = tuple(token for output in outputs for token in output.token_ids)
    text = "".join(
        delta.text for o in outputs for delta in o.deltas if isinstance(delta, TextDelta)
    )
    committed = program.committed.get(client.request.prompt.identity, [])
    assert tokens == tuple(committed[: len(tokens)])
    last = events[-1] if events else None
    if isinstance(last, GenerationResult):
        assert client.error is None
        assert last.usage.completion_tokens == len(last.token_ids)
        assert len(last.token_ids) <= client.request.max_new_tokens
        assert client.is_closed or (last.token_ids, last.summary.content) == (tokens, text)
    else:
        assert client.error is not None
        is_cancelled = isinstance(client.error, RequestCancelled)
        assert client.is_closed or not is_cancelled or "shut down" in str(client.error)
