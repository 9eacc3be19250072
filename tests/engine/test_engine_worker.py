"""The engine on its real thread: concurrent streams, cancellation at every state, no leaks."""

import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from ninfer.engine.engine_core import Boundary, EngineCore
from ninfer.engine.engine_worker import EngineWorker
from ninfer.engine.intake import EngineState
from ninfer.engine.response_channel import GenerationHandle
from ninfer.errors import CapacityError, EngineClosed, EngineFailed, NinferError
from ninfer.generation import FinishReason, GenerationEvent, GenerationResult, OutputCommitted
from ninfer.termination import Terminated
from tests.support.scripted_books import Faults
from tests.support.scripted_program import ScriptedProgram
from tests.support.scripted_session import make_request

PATIENCE_S = 120.0
NUM_STREAMS = 8


class Consumer:
    """A thread that reads one stream to its end."""

    def __init__(self, handle: GenerationHandle) -> None:
        self.handle = handle
        self.events: list[GenerationEvent] = []
        self.error: NinferError | None = None
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _read(self) -> None:
        try:
            self.events.extend(self.handle)
        except NinferError as error:
            self.error = error

    @property
    def tokens(self) -> list[int]:
        outputs = [event for event in self.events if isinstance(event, OutputCommitted)]
        return [token for output in outputs for token in output.token_ids]

    @property
    def finish(self) -> FinishReason | None:
        last = self.events[-1] if self.events else None
        return last.finish if isinstance(last, GenerationResult) else None


class Gate:
    """Holds the worker at a numbered call of Program until the test has acted."""

    def __init__(self, call: str, number: int) -> None:
        self._call = call
        self._left = number
        self._reached = threading.Event()
        self._go = threading.Event()

    def observe(self, call: str) -> None:
        if call == self._call and not self._reached.is_set():
            self._left -= 1
            if self._left < 0:
                self._reached.set()
                assert self._go.wait(PATIENCE_S)

    def wait_reached(self) -> None:
        assert self._reached.wait(PATIENCE_S)

    def act(self, action: Callable[[], None]) -> None:
        self.wait_reached()
        action()
        self._go.set()


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def make_program(**changes: object) -> ScriptedProgram:
    options: dict[str, object] = {
        "max_concurrency": NUM_STREAMS,
        "num_pages": 80,
        "num_stages": 1,
        "width": 2,
    }
    return ScriptedProgram(**(options | changes))  # type: ignore[arg-type]  # names of its own


@pytest.mark.parametrize(
    ("call", "number"),
    [
        ("project", 0),  # waiting
        ("advance", 5),  # materializing
        ("prefill", 3),  # prefill
        ("decode", 4),  # decode-ready
        ("control", 2),  # control-ready
        ("commit", 6),  # pending batch
        ("commit_transition", 9),  # committed, not adopted; or terminal-pending
    ],
)
def test_streams_cancelled_or_dropped_at_any_state_all_end(call: str, number: int) -> None:
    gate = Gate(call, number)
    program = make_program(observe=gate.observe)
    core = EngineCore(program, max_pending=4)
    with EngineWorker(core):
        handles = [
            core.submit(make_request(program, first, max_new_tokens=12, forced={2: (7, 8)}))
            for first in range(1, NUM_STREAMS + 1)
        ]
        consumers = [Consumer(handle) for handle in handles]

        def act() -> None:
            for handle in handles[0::3]:
                handle.cancel()
            for handle in handles[1::3]:
                handle.close()

        gate.act(act)
        for consumer in consumers:
            consumer.join()
    kept = consumers[2::3]

    assert all(consumer.finish is FinishReason.LENGTH for consumer in kept)
    assert all(len(consumer.tokens) == 12 for consumer in kept)
    assert all(consumer.finish is not None for consumer in consumers[0::3])
    assert core.status().outstanding == 0
    assert core.status().state is EngineState.STOPPED
    program.check_idle()
    assert program.free() == program.capacity.total


def test_concurrent_streams_have_the_output_they_have_alone() -> None:
    program = make_program()
    with EngineWorker(EngineCore(program, max_pending=0)) as worker:
        consumers = [
            Consumer(worker.core.submit(make_request(program, first, max_new_tokens=9)))
            for first in range(1, NUM_STREAMS + 1)
        ]
        for consumer in consumers:
            consumer.join()

    expected = [[first * 1000 + index for index in range(9)] for first in range(1, 9)]
    assert [consumer.tokens for consumer in consumers] == expected


def test_an_idle_worker_sleeps_and_wakes_for_work() -> None:
    program = make_program()
    core = EngineCore(program, max_pending=0)
    counted: list[Boundary] = []
    asleep = threading.Semaphore(0)
    run_boundary, wait = core.run_boundary, core.wait

    def count() -> Boundary:
        counted.append(run_boundary())
        return counted[-1]

    def note_sleep() -> None:
        asleep.release()
        wait()

    core.run_boundary = count  # type: ignore[method-assign]  # observation only
    core.wait = note_sleep  # type: ignore[method-assign, assignment]  # observation only
    with EngineWorker(core):
        assert asleep.acquire(timeout=PATIENCE_S)
        idle_count = len(counted)
        result = core.submit(make_request(program, prompt_tokens=1)).result()
        assert asleep.acquire(timeout=PATIENCE_S)
        busy_count = len(counted)

    assert result.finish is FinishReason.LENGTH
    assert idle_count == 1
    assert busy_count <= 12
    assert len(counted) <= busy_count + 2


def test_closing_cancels_what_runs_and_refuses_what_comes() -> None:
    gate = Gate("decode", 2)
    program = make_program(observe=gate.observe)
    core = EngineCore(program, max_pending=0)
    worker = EngineWorker(core)
    worker.start()
    consumer = Consumer(core.submit(make_request(program, max_new_tokens=50)))

    gate.act(lambda: core.drain(0.0))
    worker.close()
    worker.close()
    consumer.join()

    assert consumer.error is not None
    assert consumer.error.code == "request_cancelled"
    assert not worker.is_alive
    with pytest.raises(EngineClosed):
        core.submit(make_request(program))
    program.check_idle()


def test_a_worker_that_never_started_closes_too() -> None:
    core = EngineCore(make_program(), max_pending=0)

    EngineWorker(core).close()

    assert core.status().state is EngineState.STOPPED


@pytest.mark.parametrize("call", ["project", "advance", "prefill", "decode", "commit"])
def test_a_failure_reaches_every_thread_and_loses_no_submission(call: str) -> None:
    program = make_program(faults=Faults(at={call: 2}))
    core = EngineCore(program, max_pending=100)
    ends: list[str] = []

    def submit_many(start: int) -> None:
        for index in range(20):
            try:
                core.submit(make_request(program, start + index)).result()
                ends.append("result")
            except (EngineFailed, CapacityError):
                ends.append("error")

    with EngineWorker(core) as worker:
        threads = [threading.Thread(target=submit_many, args=(100 * i,)) for i in range(1, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()

    assert len(ends) == 160
    assert "error" in ends
    assert core.status().state is EngineState.FAILED
    assert core.status().outstanding == 0
    assert not worker.is_alive


def test_a_thousand_dropped_handles_leave_no_capacity_behind() -> None:
    program = make_program()
    core = EngineCore(program, max_pending=4)
    refused = 0
    with EngineWorker(core):
        for first in range(1000):
            try:
                handle = core.submit(make_request(program, first, max_new_tokens=50))
            except CapacityError:
                refused += 1
                continue
            if first % 3 == 0:
                handle.next_event()
            handle.close()

    assert core.status().outstanding == 0
    assert core.status().counters.accepted + refused == 1000
    program.check_idle()


def test_close_that_is_interrupted_still_waits_for_the_thread() -> None:
    gate = Gate("decode", 2)
    program = make_program(observe=gate.observe)
    worker = EngineWorker(EngineCore(program, max_pending=0))
    worker.start()
    handle = worker.core.submit(make_request(program, 1, max_new_tokens=12))
    gate.wait_reached()

    def interrupt(number: int, frame: FrameType | None) -> None:
        threading.Timer(0.1, gate.act, [lambda: None]).start()
        raise Terminated

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Terminated):
            worker.close()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)

    assert not worker.is_alive
    assert handle.is_done
    program.check_idle()
