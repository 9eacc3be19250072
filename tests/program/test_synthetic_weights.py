"""Random weights where loaded ones would lie: their scale, their variety, and that models run."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pytest

from ninfer.config import EngineConfig, KvDtype
from ninfer.device import host_array
from ninfer.frontend.frontend import OutputOptions
from ninfer.generation import CacheMode, SamplingParams
from ninfer.host.device import HostDevice
from ninfer.models.qwen_hybrid.inventory import ObjectGroup
from ninfer.models.qwen_hybrid.residency import stored_format
from ninfer.models.qwen_hybrid.synthetic import Normal, spread_of, synthetic_model
from ninfer.ops.context import make_context
from ninfer.program.synthetic_weights import SyntheticWeights, synthesise_weights
from ninfer.program.weight_loader import LoadedWeights, weight_bytes
from ninfer.runtime import Engine, RequestOptions, SyntheticModel
from ninfer.tensor import TensorFormat
from ninfer.tensor_formats import decode_matrix

MODELS = ("tiny-dense", "tiny-moe")
PROFILES = ("bf16", "groupwise-int")


@contextmanager
def weights(model_id: str, profile: str, seed: int = 0) -> Iterator[LoadedWeights]:
    objects = synthetic_model(model_id, profile).objects[ObjectGroup.TEXT]
    with HostDevice(num_threads=1) as device:
        ctx = make_context(device, device.stream())
        arena = device.arena("weights", weight_bytes(ctx, objects))
        yield synthesise_weights(ctx, SyntheticWeights(seed), objects, arena)
        arena.close()


def values(made: LoadedWeights, name: str) -> npt.NDArray[np.float32]:
    matrix = made.matrices[name]
    payload = host_array(matrix.storage)
    return decode_matrix(matrix.format, payload, matrix.num_rows, matrix.num_columns)


@pytest.mark.parametrize("model_id", MODELS)
@pytest.mark.parametrize("profile", PROFILES)
def test_every_matrix_has_its_deviation_no_bias_and_no_row_twice(
    model_id: str, profile: str
) -> None:
    objects = synthetic_model(model_id, profile).objects[ObjectGroup.TEXT]
    with weights(model_id, profile) as made:
        for stored in objects:
            if stored.name not in made.matrices:
                continue
            found, spread = values(made, stored.name), spread_of(stored)
            assert isinstance(spread, Normal)
            assert found.std() == pytest.approx(spread.deviation, rel=0.12), stored.name
            assert abs(found.mean()) < 5 * spread.deviation / found.size**0.5
            assert len(np.unique(found, axis=0)) == len(found), stored.name
            assert stored_format(stored) in set(TensorFormat)


@pytest.mark.parametrize("profile", PROFILES)
def test_the_seed_decides_everything(profile: str) -> None:
    with (
        weights("tiny-moe", profile, 1) as one,
        weights("tiny-moe", profile, 1) as same,
        weights("tiny-moe", profile, 2) as other,
    ):
        for name, matrix in one.matrices.items():
            octets = host_array(matrix.storage)
            np.testing.assert_array_equal(octets, host_array(same.matrices[name].storage))
            assert not np.array_equal(octets, host_array(other.matrices[name].storage))


def test_norms_are_neutral_and_decays_in_range() -> None:
    with weights("tiny-dense", "bf16") as made:
        for name, tensor in made.tensors.items():
            found = host_array(tensor)
            kind = name.rpartition("/")[2]
            if kind.endswith("_norm"):
                assert not found.any()
            elif kind == "a_log":
                assert found.min() >= -2
                assert found.max() <= 2.7
            elif kind == "norm":
                assert (found == 0x3F80).all()


@pytest.mark.parametrize("model_id", MODELS)
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("kv", [KvDtype.AUTO, KvDtype.INT8_G64])
def test_a_model_runs_and_its_logits_are_of_usual_size(
    model_id: str, profile: str, kv: KvDtype
) -> None:
    config = EngineConfig(device="host", max_context=256, kv_dtype=kv)
    greedy = RequestOptions(
        sampling=SamplingParams(temperature=0.0),
        max_new_tokens=24,
        output=OutputOptions(ignore_eos=True),
        cache=CacheMode.DISABLED,
    )
    with Engine(SyntheticModel(model_id, profile), config=config) as engine:
        prompt = engine.frontend.prepare_tokens([7 * n % 500 for n in range(100)])
        found = engine.generate(prompt, greedy).token_ids
        again = engine.generate(prompt, greedy).token_ids
        parts = engine.measurement.rounds._on_device
        logits = parts.io.download_logits(parts.stream, 1)
        engine.measurement.rounds.imagine_prompts(True)
        imagined = engine.generate(prompt, greedy).token_ids

    assert found == again
    assert imagined != found
    assert len(set(found)) > 8
    assert np.isfinite(logits).all()
    assert 1 < logits.std() < 6
