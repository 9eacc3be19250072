"""Requests and texts load no kernel on the card: their start has loaded them all."""

from typing import Any

import pytest

from ninfer.config import EngineConfig, KvDtype
from ninfer.generation import SamplingParams
from ninfer.runtime import Engine, RequestOptions, Scorer
from tests.support.cuda_bench import open_cuda_device
from tests.support.tiny_model import artifact_path

pytestmark = pytest.mark.gpu

LENGTHS = (2, 3, 10, 17, 40, 66, 130, 300)
SAMPLED = RequestOptions(sampling=SamplingParams(temperature=1.0, top_k=5), max_new_tokens=6)
every_model = pytest.mark.parametrize("case", ["real-head-dense", "real-head-moe"])
every_cache = pytest.mark.parametrize("kv_dtype", [KvDtype.BF16, KvDtype.INT8_G64])


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Devices that were opened."""
    devices: list[Any] = []

    def open_cuda(ordinal: int) -> Any:
        devices.append(open_cuda_device())
        return devices[-1]

    monkeypatch.setattr("ninfer.model_stack._open_cuda", open_cuda)
    return devices


def loaded(devices: list[Any]) -> set[str]:
    return {kernel.name for kernel in devices[0]._functions}


@every_model
@every_cache
def test_no_request_loads_a_kernel(case: str, kv_dtype: KvDtype, opened: list[Any]) -> None:
    config = EngineConfig(device="0", max_concurrency=4, max_context=512, kv_dtype=kv_dtype)
    with Engine(artifact_path(case), config=config) as engine:
        at_start = loaded(opened)
        prompts = [engine.frontend.prepare_tokens([7] * length) for length in LENGTHS]
        handles = [engine.submit(prompt, SAMPLED) for prompt in prompts]
        for handle in handles:
            handle.result()

        assert loaded(opened) == at_start


@every_model
@every_cache
def test_no_text_loads_a_kernel(case: str, kv_dtype: KvDtype, opened: list[Any]) -> None:
    config = EngineConfig(device="0", max_context=512, kv_dtype=kv_dtype)
    with Scorer(artifact_path(case), config=config) as scorer:
        at_start = loaded(opened)
        for length in LENGTHS:
            scorer.score([7] * length)

        assert loaded(opened) == at_start
