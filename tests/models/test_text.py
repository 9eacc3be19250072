"""The text schedule against the goldens and against the float64 oracle."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ninfer.device import host_array
from ninfer.tensor import DType
from tests.support.golden import load
from tests.support.model_cases import CASES, open_case
from tests.support.oracle_weights import oracle_weights
from tests.support.oracles.model import OracleDims, OracleWeights, dims_of, run_text
from tests.support.text_bench import TextBench

MAX_ERROR = 2e-3  # float32 host path, golden README
ORACLE_ERROR = 1e-4
"""Float32 rounding of logits up to about 20 through eight layers; observed below 3e-5."""

Golden = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Model:
    name: str
    golden: Golden
    bench: TextBench
    weights: OracleWeights
    dims: OracleDims

    def prompt(self, index: int | str) -> list[int]:
        return [int(token) for token in self.golden[f"prompt_ids.{index}"]]


@pytest.fixture(scope="module", params=CASES)
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    yield from _model(request.param, "bf16")


@pytest.fixture(scope="module", params=CASES)
def groupwise(request: pytest.FixtureRequest) -> Iterator[Model]:
    yield from _model(request.param, "groupwise-int")


def _model(case: str, weights_id: str) -> Iterator[Model]:
    with open_case(case, weights_id) as opened:
        weights = oracle_weights(opened.bound, opened.reader)
        dims = dims_of(opened.bound.geometry)
        with TextBench(opened.bound, opened.reader) as bench:
            yield Model(case, load(case), bench, weights, dims)


def _close(actual: npt.NDArray[Any], wanted: npt.NDArray[Any], error: float = MAX_ERROR) -> None:
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=error)


@pytest.mark.parametrize("index", [0, 1, 2, 3, 4, "random"])
def test_logits_at_all_positions_are_the_golden_ones(model: Model, index: int | str) -> None:
    model.bench.reset()

    run = model.bench.prefill(model.prompt(index))

    _close(run.logits, model.golden[f"logits.{index}"])


def test_the_residual_stream_after_each_layer_is_the_golden_one(model: Model) -> None:
    wanted = model.golden["hidden.2"]

    residuals = []
    for num_layers in range(len(wanted)):
        model.bench.reset()
        truncated = model.bench.truncated(num_layers)
        residuals.append(model.bench.prefill(model.prompt(2), model=truncated).residual)

    _close(np.stack(residuals), wanted)


def test_prefill_leaves_the_golden_caches(model: Model) -> None:
    model.bench.reset()

    model.bench.prefill(model.prompt(2))

    _assert_states(model, "prefill")
    linear, full = _layer_indices(model)
    assert len(linear) == len(model.bench.state.layers)
    for layer, planes in zip(full, model.bench.kv.layers, strict=True):
        wanted = model.golden[f"prefill.k.{layer}"]
        _close(_cached(planes.keys, wanted.shape), wanted)
        wanted = model.golden[f"prefill.v.{layer}"]
        _close(_cached(planes.values, wanted.shape), wanted)


def test_decoding_the_greedy_tokens_leaves_the_golden_state(model: Model) -> None:
    model.bench.reset()
    model.bench.prefill(model.prompt(2))

    logits = [model.bench.decode(int(token)).logits[0] for token in model.golden["greedy.2"]]
    model.bench.fold_records()

    _close(np.stack(logits[:-1]), model.golden["greedy_logits.2"][1:])
    _assert_states(model, "final")


def test_decode_and_prefill_agree_bit_for_bit(model: Model) -> None:
    _assert_decode_is_prefill(model)


def test_groupwise_decode_and_prefill_agree_bit_for_bit(groupwise: Model) -> None:
    _assert_decode_is_prefill(groupwise)


def _assert_decode_is_prefill(model: Model) -> None:
    tokens = model.prompt("random")
    model.bench.reset()
    whole = model.bench.prefill(tokens)
    states = [host_array(layer.matrices).copy() for layer in model.bench.state.layers]

    model.bench.reset()
    parts = [model.bench.prefill(tokens[:33]).logits]
    parts += [model.bench.decode(token).logits for token in tokens[33:66]]
    parts.append(model.bench.prefill(tokens[66:]).logits)

    assert np.array_equal(np.concatenate(parts), whole.logits)
    for layer, state in zip(model.bench.state.layers, states, strict=True):
        assert np.array_equal(host_array(layer.matrices), state)


def test_the_oracle_reproduces_the_goldens(model: Model) -> None:
    run = run_text(model.weights, model.dims, model.prompt(2))

    _close(run.logits, model.golden["logits.2"], 1e-3)
    _close(np.stack(run.hidden), model.golden["hidden.2"], 1e-3)
    _close(run.final_hidden, model.golden["final_hidden.2"], 1e-3)
    linear, full = _layer_indices(model)
    for layer, keys, values in zip(full, run.keys, run.values, strict=True):
        _close(keys, model.golden[f"prefill.k.{layer}"], 1e-3)
        _close(values, model.golden[f"prefill.v.{layer}"], 1e-3)
    for layer, state in zip(linear, run.states, strict=True):
        _close(state, model.golden[f"prefill.gdn_state.{layer}"], 1e-3)


@pytest.mark.parametrize("index", [1, "random"])
def test_groupwise_logits_are_those_of_the_dequantised_weights(
    groupwise: Model, index: int | str
) -> None:
    groupwise.bench.reset()
    tokens = groupwise.prompt(index)

    run = groupwise.bench.prefill(tokens)

    wanted = run_text(groupwise.weights, groupwise.dims, tokens).logits
    _close(run.logits, wanted, ORACLE_ERROR)
    # Quantisation moves the logits by far more than that, so the bound means something.
    assert np.abs(groupwise.golden[f"logits.{index}"] - wanted).max() > 20 * ORACLE_ERROR


def test_three_axis_positions_turn_each_frequency_by_its_own_axis(model: Model) -> None:
    tokens = model.prompt(3)[:40]
    axes = np.stack([np.arange(40) // 3, np.arange(40) % 7, 5 + np.arange(40) % 4])
    model.bench.reset()

    run = model.bench.prefill(tokens, axes=axes)

    wanted = run_text(model.weights, model.dims, tokens, axes).logits
    plain = run_text(model.weights, model.dims, tokens).logits
    _close(run.logits, wanted, ORACLE_ERROR)
    assert np.abs(wanted - plain).max() > 20 * ORACLE_ERROR


@pytest.mark.parametrize("case", ["tiny-dense", "real-head-moe"])
def test_an_int8_cache_acts_like_rounded_keys_and_values(case: str) -> None:
    with (
        open_case(case) as opened,
        TextBench(opened.bound, opened.reader, kv=DType.I8) as bench,
    ):
        tokens = [int(token) for token in load(case)["prompt_ids.random"]]
        weights, dims = oracle_weights(opened.bound, opened.reader), dims_of(bench.geometry)

        run = bench.prefill(tokens)

        rounded = run_text(weights, dims, tokens, round_cache=True).logits
        plain = run_text(weights, dims, tokens).logits
        # A value near a code's edge may round the other way in float32: one code of few components.
        _close(run.logits, rounded, 4e-3)
        assert np.abs(rounded - plain).max() > 5 * 4e-3


def _layer_indices(model: Model) -> tuple[list[int], list[int]]:
    """Numbers of the linear and of the full layers that the golden file names."""
    names = model.golden.keys()
    linear = sorted(int(n.rsplit(".", 1)[1]) for n in names if n.startswith("prefill.gdn_state."))
    full = sorted(int(n.rsplit(".", 1)[1]) for n in names if n.startswith("prefill.k."))
    return linear, full


def _assert_states(model: Model, stage: str) -> None:
    linear, _ = _layer_indices(model)
    for layer, planes in zip(linear, model.bench.state.layers, strict=True):
        wanted = model.golden[f"{stage}.gdn_state.{layer}"]
        _close(host_array(planes.matrices)[0], wanted)
        wanted = model.golden[f"{stage}.gdn_conv.{layer}"]
        _close(host_array(planes.window)[0].T, wanted)


def _cached(plane: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """First tokens of a cache plane as [kv heads, T, head_dim]; pages lie in order."""
    pages = host_array(plane)
    heads, count, dim = shape
    return pages.transpose(1, 0, 2, 3).reshape(heads, -1, dim)[:, :count]
