"""The facade on golden models: what it generates, and that nothing around it changes that."""

from collections.abc import Iterator

import numpy as np
import pytest

from ninfer.config import EngineConfig, KvDtype, Purpose, SpeculativeBackend
from ninfer.errors import (
    ConfigurationError,
    InvariantError,
    NinferError,
    OutOfDeviceMemory,
    UnsupportedFeature,
)
from ninfer.generation import RopePositions, SamplingParams
from ninfer.host.device import HostStream
from ninfer.program.contract import Program, Release
from tests.support.golden import load
from tests.support.model_cases import CASES, open_case
from tests.support.oracle_weights import oracle_weights
from tests.support.oracles.model import dims_of, run_text
from tests.support.program_driver import ProgramDriver
from tests.support.running_program import WatchedDevice, running_program

MAX_ERROR = 2e-3  # float32 host path, golden README
SAMPLED = SamplingParams(
    temperature=0.9, top_p=0.95, top_k=40, presence_penalty=0.6, frequency_penalty=0.2, seed=-7
)


def _prompt(case: str, index: int) -> list[int]:
    return [int(token) for token in load(case)[f"prompt_ids.{index}"]]


@pytest.fixture(scope="module")
def eight() -> Iterator[ProgramDriver]:
    with running_program("tiny-dense", max_concurrency=8, max_context=384) as driver:
        yield driver


@pytest.mark.parametrize("case", CASES)
def test_greedy_tokens_and_their_logits_are_the_golden_ones(case: str) -> None:
    golden = load(case)
    with running_program(case, max_context=192) as driver:
        for index in range(5):
            wanted = golden[f"greedy.{index}"]

            lane = driver.generate(_prompt(case, index), len(wanted))

            assert lane.tokens == list(wanted)
            np.testing.assert_allclose(
                np.stack(lane.logits), golden[f"greedy_logits.{index}"], rtol=0, atol=MAX_ERROR
            )


@pytest.mark.parametrize("case", ["tiny-dense", "tiny-moe"])
@pytest.mark.parametrize("sampling", [SamplingParams(temperature=0.0), SAMPLED])
def test_a_request_is_bitwise_the_same_alone_and_in_every_batch(
    case: str, sampling: SamplingParams
) -> None:
    prompts = [_prompt(case, index % 4)[: 70 - 3 * index] for index in range(8)]
    with running_program(case, max_concurrency=8, max_context=192) as driver:
        alone = [driver.generate(prompt, 8, sampling) for prompt in prompts]

        lanes = [driver.admit(prompt, 8, sampling) for prompt in prompts]
        # Lane i runs in batches of 8, 7, ... 1 rows at rows that change from round to round.
        for size in range(8, 0, -1):
            for start in range(0, 8, size):
                group = lanes[start : start + size]
                driver.round(*reversed(group) if size % 2 else group)

        for one, many in zip(alone, lanes, strict=True):
            assert many.tokens == one.tokens
            assert np.array_equal(np.stack(many.logits), np.stack(one.logits))


def test_the_moment_of_admission_and_leaving_neighbours_change_nothing(
    eight: ProgramDriver,
) -> None:
    prompt = _prompt("tiny-dense", 2)
    alone = eight.generate(prompt, 16, SAMPLED)

    first = eight.admit(_prompt("tiny-dense", 3), 40)
    for _ in range(5):
        eight.round(first)
    late = eight.admit(prompt, 16, SAMPLED)
    for _ in range(4):
        eight.round(first, late)
    third = eight.admit(_prompt("tiny-dense", 1), 8)
    for _ in range(6):
        eight.round(late, third, first)
    eight.end(first)
    for _ in range(2):
        eight.round(third, late)
    eight.end(third)
    for _ in range(4):
        eight.round(late)
    eight.end(late)

    assert late.tokens == alone.tokens
    assert np.array_equal(np.stack(late.logits), np.stack(alone.logits))


def test_graphs_and_eager_rounds_agree_bit_for_bit() -> None:
    prompts = [_prompt("tiny-moe", index) for index in range(3)]
    runs = []
    for use_graphs in (True, False):
        with running_program(
            "tiny-moe", max_concurrency=3, max_context=192, use_graphs=use_graphs
        ) as driver:
            lanes = [driver.admit(prompt, 8, SAMPLED) for prompt in prompts]
            for _ in range(8):
                driver.round(*lanes)
            runs.append(lanes)

    for captured, eager in zip(*runs, strict=True):
        assert captured.tokens == eager.tokens
        assert np.array_equal(np.stack(captured.logits), np.stack(eager.logits))


@pytest.mark.parametrize("case", ["tiny-dense", "tiny-moe"])
def test_the_prefill_chunk_changes_no_bit(case: str) -> None:
    prompt = [int(token) for token in load(case)["prompt_ids.random"]] * 4  # 360 tokens
    runs = []
    for chunk in (128, 1024):
        with running_program(case, max_context=400, prefill_chunk=chunk) as driver:
            runs.append(driver.generate(prompt, 8))

    small, large = runs
    assert small.tokens == large.tokens
    assert np.array_equal(np.stack(small.logits), np.stack(large.logits))


def test_a_sampled_request_follows_its_seed(eight: ProgramDriver) -> None:
    prompt = [int(token) for token in load("tiny-dense")["prompt_ids.random"]]

    runs = [
        eight.generate(prompt, 24, SamplingParams(temperature=2.0, seed=seed)).tokens
        for seed in (1, 1, 2)
    ]

    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_an_int8_cache_keeps_the_golden_tokens_within_its_rounding() -> None:
    golden = load("tiny-dense")
    with running_program("tiny-dense", max_context=192, kv_dtype=KvDtype.INT8_G64) as driver:
        for index in range(4):
            lane = driver.generate(_prompt("tiny-dense", index), 32)

            error = np.abs(np.stack(lane.logits) - golden[f"greedy_logits.{index}"])
            assert lane.tokens == list(golden[f"greedy.{index}"])
            # A code is off by at most half of 1/127 of its group's largest value, so keys and
            # values move by up to 0.4 %; the logits reach 18. The cache must show, and only so far.
            assert 1e-4 < error.max() < 0.4


def test_a_bf16_cache_keeps_the_golden_tokens_within_its_rounding() -> None:
    golden = load("tiny-dense")
    with running_program("tiny-dense", max_context=192, kv_dtype=KvDtype.BF16) as driver:
        lane = driver.generate(_prompt("tiny-dense", 2), 32)

    error = np.abs(np.stack(lane.logits) - golden["greedy_logits.2"])
    assert lane.tokens == list(golden["greedy.2"])
    assert 1e-4 < error.max() < 0.4  # eight bits of mantissa: the same 0.4 %


def test_positions_of_the_prompt_and_their_delta_turn_the_later_tokens() -> None:
    prompt = _prompt("tiny-dense", 2)[:40]
    axes = np.stack([np.arange(40) // 3, np.arange(40) % 7, 5 + np.arange(40) % 4])
    time, height, width = (tuple(int(one) for one in axis) for axis in axes)
    rope = RopePositions((time, height, width), delta=-26)

    with running_program("tiny-dense", max_context=128) as driver:
        lane = driver.admit(prompt, 6, rope=rope)
        for _ in range(6):
            driver.round(lane)

    later = np.tile(np.arange(40, 45) - 26, (3, 1))
    with open_case("tiny-dense") as case:
        weights = oracle_weights(case.bound, case.reader)
        dims = dims_of(case.bound.geometry)
    tokens, positions = prompt + lane.tokens[:-1], np.concatenate([axes, later], axis=1)
    wanted = run_text(weights, dims, tokens, positions).logits[39:]
    np.testing.assert_allclose(np.stack(lane.logits), wanted, rtol=0, atol=MAX_ERROR)


def test_a_prompt_of_one_token_decodes_at_once(eight: ProgramDriver) -> None:
    lane = eight.admit([5], 2)

    with pytest.raises(InvariantError):
        eight.program.prefill(lane.handle)
    eight.round(lane)

    assert len(lane.tokens) == 1
    eight.end(lane)


def test_a_sequence_fills_the_context_to_its_last_position_and_no_further() -> None:
    prompt = _prompt("tiny-dense", 2)
    with running_program("tiny-dense", max_context=80) as driver:
        lane = driver.admit(prompt, 1000)
        for _ in range(80 - len(prompt)):
            driver.round(lane)

        with pytest.raises(InvariantError):
            driver.decode(lane)

        assert lane.tokens == list(load("tiny-dense")["greedy.2"][:10])


def test_pages_and_slots_are_all_free_again_at_the_end(eight: ProgramDriver) -> None:
    total = eight.program.capacity.total

    lanes = [eight.admit(_prompt("tiny-dense", 3), 40) for _ in range(8)]
    eight.round(*lanes)
    held = eight.program.free()
    for lane in lanes:
        eight.end(lane)

    assert held != total
    assert eight.program.free() == total


def test_abandon_releases_a_pending_batch_and_everything_active(eight: ProgramDriver) -> None:
    lanes = [eight.admit(_prompt("tiny-dense", 1), 8) for _ in range(3)]
    eight.decode(*lanes[:2])

    eight.program.abandon()
    eight.program.abandon()

    assert eight.program.free() == eight.program.capacity.total
    assert eight.generate(_prompt("tiny-dense", 1), 4).tokens == list(
        load("tiny-dense")["greedy.1"][:4]
    )


def test_no_transition_starts_while_a_batch_is_pending(eight: ProgramDriver) -> None:
    lane = eight.admit(_prompt("tiny-dense", 1), 8)
    other = eight.admit(_prompt("tiny-dense", 0), 8)
    plan = eight.program.seal(Release(other.handle))
    batch = eight.decode(lane)

    with pytest.raises(InvariantError):
        eight.program.start(plan)

    eight.program.abort_pending(batch)
    eight.program.abandon()


def test_a_fault_of_the_device_fails_the_unit_loudly() -> None:
    with running_program("tiny-dense", max_context=128) as driver:
        lane = driver.admit(_prompt("tiny-dense", 1), 8)

        driver.streams[0].enqueue(_broken_kernel)

        with pytest.raises(InvariantError, match="a kernel failed"):
            driver.decode(lane)
        driver.program.abandon()
        assert driver.program.free() == driver.program.capacity.total


def _broken_kernel() -> None:
    raise ZeroDivisionError("of the test")


def test_a_closed_program_refuses_every_call_and_closes_again() -> None:
    with running_program("tiny-dense", max_context=128) as driver:
        driver.program.close()
        driver.program.close()
        driver.program.abandon()

        with pytest.raises(InvariantError):
            driver.program.free()


def test_the_facade_is_what_the_engine_asks_for(eight: ProgramDriver) -> None:
    program: Program = eight.program  # checked by mypy, member by member

    assert program.capacity.max_concurrency == 8


def test_a_program_for_generation_does_not_score(eight: ProgramDriver) -> None:
    with pytest.raises(InvariantError):
        eight.program.score_window([1, 2, 3])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"has_vision": True}, UnsupportedFeature),
        ({"speculative": SpeculativeBackend.MTP, "draft_tokens": 2}, UnsupportedFeature),
        ({"host_state_slots": 1}, UnsupportedFeature),
        ({"host_kv_bytes": 4096}, UnsupportedFeature),
        ({"max_context": 4097}, ConfigurationError),
        ({"kv_headroom_bytes": 1 << 49}, OutOfDeviceMemory),
    ],
)
def test_start_up_refuses_what_cannot_be_and_leaves_nothing(
    options: dict[str, object], error: type[NinferError]
) -> None:
    config = EngineConfig(**{"max_context": 64, "kv_headroom_bytes": 0} | options)  # type: ignore[arg-type]  # by table

    with open_case("tiny-dense") as case, WatchedDevice() as device:
        with pytest.raises(error):
            case.build(config, device)

        assert device.open_arenas() == []


@pytest.mark.parametrize("purpose", list(Purpose))
def test_a_program_owns_its_arenas_until_it_is_closed(purpose: Purpose) -> None:
    config = EngineConfig(purpose=purpose, max_context=64, kv_headroom_bytes=0)
    with open_case("tiny-dense") as case, WatchedDevice() as device:
        program = case.build(config, device)
        held = device.open_arenas()
        program.close()

        assert {"weights", "state", "kv", "workspace", "round"} <= set(held)
        assert "weight staging" not in held
        assert ("scoring" in held) is (purpose is Purpose.CAUSAL_SCORING)
        assert device.open_arenas() == []


def test_a_start_that_fails_half_way_frees_what_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise InvariantError("of the test")

    monkeypatch.setattr(HostStream, "end_capture", fail)
    config = EngineConfig(max_context=64, kv_headroom_bytes=0)
    with open_case("tiny-dense") as case, WatchedDevice() as device:
        with pytest.raises(InvariantError, match="of the test"):
            case.build(config, device)

        assert device.open_arenas() == []


def test_the_account_of_memory_lists_every_arena() -> None:
    with running_program(
        "tiny-dense", max_concurrency=1, max_context=128, purpose=Purpose.CAUSAL_SCORING
    ) as driver:
        account = driver.program.memory.account()

    for name in ("weights", "state", "kv", "workspace", "round", "scoring"):
        assert name in account
