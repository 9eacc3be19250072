"""How units are enqueued changes no token: rounds ahead, replayed chunks, parts, and none of it."""

from collections.abc import Sequence

import pytest

from ninfer.config import EngineConfig
from ninfer.engine.unit_execution import UnitExecution
from ninfer.frontend.frontend import OutputOptions, PreparedInput
from ninfer.generation import CacheMode, SamplingParams
from ninfer.runtime import Engine, RequestOptions, SyntheticModel

CHUNK = 128
SAMPLED = SamplingParams(
    temperature=0.9, top_p=0.95, presence_penalty=0.5, frequency_penalty=0.2, seed=3
)
GREEDY = SamplingParams(temperature=0.0)


def never(units: UnitExecution, orders: object) -> bool:
    return False


def answers(device: str, *, use_graphs: bool) -> Sequence[tuple[int, ...]]:
    """Eight requests that end one after another, then two of them alone."""
    config = EngineConfig(
        device=device,
        max_concurrency=8,
        max_context=768,
        prefill_chunk=CHUNK,
        use_graphs=use_graphs,
    )
    with Engine(SyntheticModel("tiny-moe", "groupwise-int"), config=config) as engine:

        def submitted(row: int) -> tuple[int, ...]:
            return engine.submit(prompt(engine, row), options(row, device)).result().token_ids

        handles = [engine.submit(prompt(engine, row), options(row, device)) for row in range(8)]
        return [
            *(handle.result().token_ids for handle in handles),
            *(submitted(row) for row in (0, 5)),
        ]


def prompt(engine: Engine, row: int) -> PreparedInput:
    ids = [(row + 97 * place) % 500 for place in range(40 + 60 * row)]
    return engine.frontend.prepare_tokens(ids)


def options(row: int, device: str) -> RequestOptions:
    return RequestOptions(
        sampling=SAMPLED if row % 2 else GREEDY,
        max_new_tokens=10 + 3 * row if device == "host" else 20 + 7 * row,
        output=OutputOptions(ignore_eos=True),
        cache=CacheMode.DISABLED,
    )


@pytest.mark.parametrize("device", ["host", pytest.param("0", marks=pytest.mark.gpu)])
def test_tokens_are_the_same_however_units_are_enqueued(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device != "host":
        from tests.support.cuda_bench import open_cuda_device

        monkeypatch.setattr("ninfer.model_stack._open_cuda", lambda ordinal: open_cuda_device())
    ahead = answers(device, use_graphs=True)
    eager = answers(device, use_graphs=False)
    with monkeypatch.context() as parts:
        parts.setattr("ninfer.program.prefill_parts.PART_TOKENS", CHUNK // 4)
        in_parts = answers(device, use_graphs=True)
        in_eager_parts = answers(device, use_graphs=False)
    monkeypatch.setattr(UnitExecution, "_is_steady", never)
    plain = answers(device, use_graphs=True)

    assert ahead == plain
    assert eager == plain
    assert in_parts == plain
    assert in_eager_parts == plain
    assert plain[8:] == [plain[0], plain[5]]
    assert len({token for answer in plain for token in answer}) > 50
