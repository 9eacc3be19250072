"""Whatever is asked, cancelled and left alone in whatever order: every answer is its own.

One engine stays up through all sequences. Its cache holds fewer pages than its lanes could use, so
that admission waits, and it takes fewer requests than come, so that some are refused.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest

from ninfer.config import EngineConfig
from ninfer.engine.response_channel import GenerationHandle
from ninfer.errors import EngineOverloaded
from ninfer.frontend.frontend import OutputOptions, PreparedInput
from ninfer.generation import (
    CacheMode,
    FinishReason,
    GenerationResult,
    OutputCommitted,
    SamplingParams,
)
from ninfer.runtime import Engine, RequestOptions, SyntheticModel
from tests.support.gateway_clients import wait_until

MAX_CONTEXT = 320
CAPACITY = 448  # seven pages for four lanes of up to five
NUM_QUESTIONS = 96
MOST_TOKENS = 48

SETTINGS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.0, presence_penalty=1.5, frequency_penalty=0.4),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_k=20, top_p=0.8, presence_penalty=1.0),
    SamplingParams(temperature=1.2, top_p=0.95, min_p=0.02),
)


@dataclass(frozen=True)
class Question:
    """One request and what the engine answered when nobody else asked."""

    prepared: PreparedInput
    options: RequestOptions
    answer: GenerationResult


@dataclass
class Asked:
    """A request under way: what was read of it, and whether somebody wanted it to end."""

    question: Question
    handle: GenerationHandle
    read: list[int] = field(default_factory=list)
    is_cancelled: bool = False
    result: GenerationResult | None = None

    def read_event(self) -> None:
        """Take one event, waiting for it."""
        event = self.handle.next_event()
        if isinstance(event, OutputCommitted):
            self.read += event.token_ids
        elif isinstance(event, GenerationResult):
            self.result = event

    def finish(self, is_streaming: bool) -> None:
        """Read to the end, or only the end."""
        if not is_streaming:
            self.result = self.handle.result()
            return
        while self.result is None:
            self.read_event()
        assert tuple(self.read) == self.result.token_ids


def questions(engine: Engine, count: int) -> Iterator[Question]:
    """Requests of all lengths and settings, each answered alone."""
    chance = random.Random(11)
    for number in range(count):
        length = chance.choice((1, 2, 5, 40, 63, 64, 65, 128, 129, 200, 255))
        prepared = engine.frontend.prepare_tokens([chance.randrange(500) for _ in range(length)])
        options = RequestOptions(
            sampling=replace(SETTINGS[number % len(SETTINGS)], seed=number),
            max_new_tokens=chance.randint(1, MOST_TOKENS),
            output=OutputOptions(
                stop=chance.choice(((), (), ("e",))), ignore_eos=chance.random() < 0.4
            ),
            cache=chance.choice(tuple(CacheMode)),
        )
        yield Question(prepared, options, engine.generate(prepared, options))


class Walk:
    """Some requests from one seed: asked, read, cancelled and dropped in a random order."""

    def __init__(self, engine: Engine, asked_from: Sequence[Question], seed: int) -> None:
        self.engine = engine
        self.questions = asked_from
        self.chance = random.Random(seed)
        self.open: list[Asked] = []
        self.ended: list[Asked] = []
        self.num_refused = 0
        self.most_waiting = 0

    def run(self) -> None:
        for _ in range(self.chance.randint(2, 9)):
            self._ask()
            if self.chance.random() < 0.5:
                self._step()
        while self.open:
            self._step()

    def _ask(self) -> None:
        question = self.chance.choice(self.questions)
        try:
            handle = self.engine.submit(question.prepared, question.options)
        except EngineOverloaded:
            self.num_refused += 1
            return
        self.open.append(Asked(question, handle))
        self.most_waiting = max(self.most_waiting, self.engine.status().waiting)

    def _step(self) -> None:
        if not self.open:
            return
        asked = self.chance.choice(self.open)
        match self.chance.choice(("read", "read", "read", "finish", "cancel", "leave")):
            case "read":
                asked.read_event()
            case "finish":
                asked.finish(self.chance.random() < 0.7)
            case "cancel":
                asked.handle.cancel()
                asked.is_cancelled = True
            case "leave" if self.chance.random() < 0.5:
                asked.handle.close()
                self.open.remove(asked)
        if asked.result is not None:
            asked.handle.close()
            self.open.remove(asked)
            self.ended.append(asked)


def check(asked: Asked) -> None:
    """An answer is the solitary one, or its beginning where somebody cancelled it."""
    result, alone = asked.result, asked.question.answer
    assert result is not None
    if result.finish is FinishReason.CANCELLED:
        assert asked.is_cancelled
        assert result.token_ids == alone.token_ids[: len(result.token_ids)]
    else:
        assert result.token_ids == alone.token_ids
        assert result.finish is alone.finish


def run_walks(engine: Engine, count: int) -> list[Walk]:
    """Run sequences one after another, and check what ended in each."""
    asked_from = list(questions(engine, min(count, NUM_QUESTIONS)))
    walks = []
    for seed in range(count):
        walk = Walk(engine, asked_from, seed)
        try:
            walk.run()
            for asked in walk.ended:
                check(asked)
        except AssertionError as error:
            raise AssertionError(f"sequence {seed}: {error}") from error
        walks.append(walk)
    return walks


@pytest.mark.parametrize(
    ("model_id", "device", "count"),
    [
        pytest.param("tiny-dense", "host", 20, marks=pytest.mark.slow),
        pytest.param("tiny-moe", "host", 20, marks=pytest.mark.slow),
        pytest.param("tiny-dense", "0", 100, marks=pytest.mark.gpu),
        pytest.param("tiny-moe", "0", 200, marks=pytest.mark.gpu),
    ],
)
def test_random_requests_get_their_solitary_answers_and_give_everything_back(
    model_id: str, device: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device != "host":
        from tests.support.cuda_bench import open_cuda_device

        monkeypatch.setattr("ninfer.model_stack._open_cuda", lambda ordinal: open_cuda_device())
    config = EngineConfig(
        device=device,
        max_concurrency=4,
        max_pending=2,
        max_context=MAX_CONTEXT,
        kv_capacity=CAPACITY,
        prefill_chunk=128,
    )
    with Engine(SyntheticModel(model_id, "groupwise-int"), config=config) as engine:
        walks = run_walks(engine, count)
        wait_until(lambda: engine.status().outstanding == 0 and engine.status().active == 0)
        status = engine.status()

    assert status.free == status.total
    assert (status.waiting, status.checkpoints) == (0, 0)
    # That all of it happened, and answers were many.
    ended = [asked for walk in walks for asked in walk.ended]
    cut = [asked for asked in ended if asked.result and asked.result.finish.name == "CANCELLED"]
    assert len(ended) > 2 * count
    assert 0 < len(cut) < len(ended) // 2
    assert sum(walk.num_refused for walk in walks) > 0
    assert max(walk.most_waiting for walk in walks) > 0
