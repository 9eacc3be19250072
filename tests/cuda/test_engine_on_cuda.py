"""The whole engine on the card: golden tokens, alone and in company, with and without graphs."""

from collections.abc import Iterator

import pytest

from ninfer.config import EngineConfig, KvDtype
from ninfer.frontend.frontend import PreparedInput
from ninfer.generation import SamplingParams
from ninfer.runtime import Engine, RequestOptions
from tests.support.cuda_bench import open_cuda_device
from tests.support.golden import load
from tests.support.model_cases import CASES
from tests.support.tiny_model import artifact_path

pytestmark = pytest.mark.gpu

GREEDY = RequestOptions(sampling=SamplingParams(temperature=0.0), max_new_tokens=32)
NUM_PROMPTS = 4


@pytest.fixture(
    params=[
        pytest.param((case, profile, kv, graphs), id=f"{case}-{profile}-{kv.value}-{graphs}")
        for case in CASES
        for profile in ("bf16", "groupwise-int")
        for kv in (KvDtype.BF16, KvDtype.INT8_G64)
        for graphs in (True, False)
    ]
)
def loaded(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, Engine]]:
    case, profile, kv, graphs = request.param
    monkeypatch.setattr("ninfer.model_stack._open_cuda", lambda ordinal: open_cuda_device())
    config = EngineConfig(
        device="0", max_concurrency=8, max_context=512, kv_dtype=kv, use_graphs=graphs
    )
    with Engine(artifact_path(case, profile), config=config) as engine:
        yield case, engine


def prompt(engine: Engine, case: str, index: int) -> PreparedInput:
    return engine.frontend.prepare_tokens(load(case)[f"prompt_ids.{index}"].tolist())


def test_goldens_are_recited_alone_and_in_company(loaded: tuple[str, Engine]) -> None:
    case, engine = loaded
    golden = [load(case)[f"greedy.{index}"].tolist() for index in range(NUM_PROMPTS)]

    alone = [engine.generate(prompt(engine, case, i), GREEDY) for i in range(NUM_PROMPTS)]
    handles = [engine.submit(prompt(engine, case, i % NUM_PROMPTS), GREEDY) for i in range(8)]
    company = [handle.result() for handle in handles]

    assert [list(result.token_ids) for result in alone] == golden
    assert [list(result.token_ids) for result in company] == golden * 2
