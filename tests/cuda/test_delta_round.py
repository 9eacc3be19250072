"""A decode round of Gated DeltaNet on the CPU: both ways of holding the state, against float64."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.kernels.cuda import (
    delta_inputs,
    delta_round,
)
from ninfer.kernels.cuda.delta_columns import DeltaHeads
from ninfer.tensor_formats import bf16_to_f32, f32_to_bf16
from tests.support import mixer_simulator
from tests.support.mixer_simulator import MixerSimulator, lay_out

HEADS = DeltaHeads(1, 2, 128, 128)
SLOT, RECORDS = 1, 3


def unit(head: Any) -> Any:
    return head / np.sqrt((head**2).sum(axis=-1, keepdims=True) + 1e-6)


def step(state: Any, k: Any, v: Any, g: Any, beta: Any) -> Any:
    decayed = np.exp(g)[:, None, None] * state
    u = beta[:, None] * (v - np.einsum("hkv,k->hv", decayed, k))
    return decayed + k[None, :, None] * u[:, None, :]


class Round:
    """One slot with records behind its state, and the next column."""

    def __init__(self, folded: int) -> None:
        rng = np.random.default_rng(folded)
        channels, width = HEADS.channels, HEADS.value_width
        self.folded = folded
        self.x = bf16_to_f32(
            f32_to_bf16(rng.normal(0, 1, (4 + RECORDS, channels)).astype(np.float32))
        )
        self.taps = f32_to_bf16(rng.normal(0, 0.5, (4, channels)).astype(np.float32))
        self.ab = rng.normal(0, 1, (1, 4)).astype(np.float32)
        self.k = unit(rng.normal(0, 1, (RECORDS, 128))).astype(np.float32)
        self.v = rng.normal(0, 1, (RECORDS, 2, 128)).astype(np.float32)
        self.g = -rng.uniform(0.01, 2, (RECORDS, 2)).astype(np.float32)
        self.beta = rng.uniform(0.1, 1, (RECORDS, 2)).astype(np.float32)
        self.state = rng.normal(0, 0.3, (2, 128, 128)).astype(np.float32)
        self.a_log = rng.uniform(-1, 1.5, 2).astype(np.float32)
        self.bias = np.array([0.5, -0.5], np.float32)
        projected = np.zeros((1, channels + width), np.float32)
        projected[0, :channels] = self.x[-1]
        behind = {  # a slot before it that nothing may touch
            "matrices": self.state,
            "window": f32_to_bf16(self.x[:3]),
            "record_x": f32_to_bf16(self.x[3 : 3 + RECORDS]),
            "record_k": self.k,
            "record_v": self.v,
            "record_g": self.g,
            "record_beta": self.beta,
        }
        self.buffers: dict[str, Any] = {
            "projected": f32_to_bf16(projected),
            "ab": self.ab,
            "taps": self.taps,
            "a_log": self.a_log,
            "dt_bias": self.bias,
            "norm": np.zeros(128, np.uint16),
            **{name: np.stack([np.zeros_like(plane), plane]) for name, plane in behind.items()},
            "slots": np.full(1, SLOT, np.int32),
            "folds": np.full(1, folded, np.int32),
            "outputs": np.full((2, 128), np.nan, np.float32),
        }

    def run(self, monkeypatch: pytest.MonkeyPatch, is_staged: bool) -> dict[str, Any]:
        arrivals: list[int] = []

        def is_last(counter: Any, sharing: int, lane: Any) -> bool:
            arrivals.append(1)
            return len(arrivals) == sharing

        monkeypatch.setattr(delta_round, "is_direct", lambda heads: False)
        monkeypatch.setattr(delta_inputs, "is_last_to_arrive", is_last)
        monkeypatch.setattr(
            mixer_simulator._Intrinsics,
            "bits_of_f32",
            staticmethod(lambda value: np.asarray(value, np.float32).view(np.uint32)),
            raising=False,
        )
        octets, at, views = lay_out(self.buffers)
        tail: tuple[Any, ...] = (0, 0, 0, RECORDS, 1e-6)
        names = [name for name in self.buffers if name != "outputs"]
        kernel = delta_round.make_decode.__wrapped__(HEADS, True, is_staged)
        MixerSimulator(octets).launch(
            kernel,
            (2, 1, 1),
            (*(at[name] for name in names), at["outputs"], *tail),
        )
        return views

    def expected(self) -> tuple[Any, Any, Any]:
        """State behind the fold, the column's k and v, and its outputs."""
        state = self.state.astype(float)
        for c in range(self.folded):
            state = step(state, self.k[c].astype(float), self.v[c], self.g[c], self.beta[c])
        inputs = np.concatenate([self.x[self.folded : self.folded + 3], self.x[-1:]])
        c = (bf16_to_f32(self.taps).astype(float) * inputs).sum(axis=0)
        c = c / (1 + np.exp(-c))
        k, v = unit(c[128:256]), c[256:].reshape(2, 128)
        g = -np.exp(self.a_log.astype(float)) * np.logaddexp(0, self.ab[0, :2] + self.bias)
        after = step(state, k, v, g, 1 / (1 + np.exp(-self.ab[0, 2:].astype(float))))
        outputs = np.einsum("hkv,k->hv", after, unit(c[:128]) / np.sqrt(128))
        return state, (k, v, g), outputs


@pytest.mark.slow
@pytest.mark.parametrize("folded", [0, 1, 3])
def test_a_round_folds_reads_and_records(monkeypatch: pytest.MonkeyPatch, folded: int) -> None:
    case = Round(folded)

    held = case.run(monkeypatch, is_staged=False)
    staged = case.run(monkeypatch, is_staged=True)

    for name, plane in held.items():
        np.testing.assert_array_equal(plane.view(np.uint8), staged[name].view(np.uint8), name)
    state, (k, v, g), outputs = case.expected()
    error = np.linalg.norm(held["matrices"][SLOT] - state)
    assert error <= 2.0**-18 * np.linalg.norm(state)
    assert np.linalg.norm(held["outputs"] - outputs) <= 2.0**-16 * np.linalg.norm(outputs)
    np.testing.assert_allclose(held["record_k"][SLOT, 0], k, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(held["record_v"][SLOT, 0], v, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(held["record_g"][SLOT, 0], g, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("is_staged", [False, True])
def test_a_round_moves_the_window_and_leaves_the_rest(
    monkeypatch: pytest.MonkeyPatch, is_staged: bool
) -> None:
    case = Round(2)

    views = case.run(monkeypatch, is_staged)

    np.testing.assert_array_equal(bf16_to_f32(views["window"][SLOT]), case.x[2:5])
    np.testing.assert_array_equal(bf16_to_f32(views["record_x"][SLOT, 0]), case.x[-1])
    for name in ("record_x", "record_k", "record_v", "record_g", "record_beta"):
        np.testing.assert_array_equal(views[name][SLOT, 1:], case.buffers[name][SLOT, 1:])
        assert not views[name][0].any()
    assert not views["matrices"][0].any()
    assert not views["window"][0].any()
