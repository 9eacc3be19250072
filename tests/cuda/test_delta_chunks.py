"""Chunked Gated DeltaNet on the CPU: operands and scan, against the recurrence in float64."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.kernels.cuda import (
    delta_chunks,
    delta_scan,
    delta_scan_wide,
)
from ninfer.kernels.cuda.delta_blocks import CHUNK_FACTORS, CHUNK_ROWS
from ninfer.kernels.cuda.delta_columns import DeltaHeads
from ninfer.tensor_formats import bf16_to_f32, f32_to_bf16
from tests.support.mixer_simulator import MixerSimulator, lay_out
from tests.support.warpgroup_simulator import launch

HEADS = DeltaHeads(1, 2, 128, 128)


def unit(head: Any) -> Any:
    return head / np.sqrt((head**2).sum(axis=-1, keepdims=True) + 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "columns"),  # 0: of a warpgroup; the longer one uses every stage twice
    [(70, 32), (70, 64), (150, 0)],
)
def test_chunks_advance_a_state_as_the_recurrence_does(count: int, columns: int) -> None:
    rng, chunks = np.random.default_rng(1), -(-count // 64)
    channels, width = HEADS.channels, HEADS.value_width
    x = rng.normal(0, 1, (count + 3, channels + width)).astype(np.float32)  # three in the window
    taps = rng.normal(0, 0.5, (4, channels)).astype(np.float32)
    ab = rng.normal(0, 2, (count, 4)).astype(np.float32)
    a_log, dt_bias = rng.uniform(-1, 1.5, 2).astype(np.float32), np.array([0.5, -0.5], np.float32)
    state = rng.normal(0, 0.3, (2, 128, 128)).astype(np.float32)
    octets, at, views = lay_out(
        {
            "projected": f32_to_bf16(x[3:]),
            "ab": ab,
            "taps": f32_to_bf16(taps),
            "a_log": a_log,
            "dt_bias": dt_bias,
            "window": f32_to_bf16(np.ascontiguousarray(x[:3, :channels])),
            "record": np.zeros((1, channels), np.uint16),
            "slots": np.zeros(1, np.int32),
            "folds": np.zeros(1, np.int32),
            "rows": np.full(chunks * CHUNK_ROWS, 0xFF, np.uint8),
            "factors": np.full(2 * chunks * CHUNK_FACTORS, 0xFF, np.uint8),
            "values": np.full((64 * chunks, width), np.nan, np.float32),
            "state": state.copy(),
        }
    )
    simulator = MixerSimulator(octets)
    inputs = ("projected", "ab", "taps", "a_log", "dt_bias", "window", "record", "slots", "folds")
    simulator.launch(
        delta_chunks.make_chunk_operands(HEADS, True),
        (chunks, 1, 1),
        (*(at[name] for name in (*inputs, "rows", "factors", "values")), 0, count, 1),
    )
    scan = ("rows", "factors", "values", "state", "slots")
    arguments = *(at[name] for name in scan), chunks
    if columns:
        simulator.launch(delta_scan.make_scan(HEADS, columns), (2, 128 // columns, 1), arguments)
    else:
        words: list[Any] = [np.uint64(address) for address in arguments[:-1]]
        words.append(np.int32(chunks))
        kernel = delta_scan_wide.make_wide_scan(HEADS)
        launch(octets, kernel, (2, 2, 1), words)

    outputs = views["values"][:count].reshape(count, 2, 128)
    rounded, weights = bf16_to_f32(f32_to_bf16(x)).astype(float), bf16_to_f32(f32_to_bf16(taps))
    g = -np.exp(a_log.astype(float)) * np.logaddexp(0, ab[:, :2].astype(float) + dt_bias)
    beta, exact = 1 / (1 + np.exp(-ab[:, 2:].astype(float))), state.astype(float)
    for t in range(count):
        c = (weights.astype(float) * rounded[t : t + 4, :channels]).sum(axis=0)
        c = c / (1 + np.exp(-c))
        q, k, v = unit(c[:128]) / np.sqrt(128), unit(c[128:256]), c[256:].reshape(2, 128)
        for head in range(2):
            decayed = np.exp(g[t, head]) * exact[head]
            u = beta[t, head] * (v[head] - decayed.T @ k)
            exact[head] = decayed + np.outer(k, u)
            read = exact[head].T @ q
            error = np.linalg.norm(outputs[t, head] - read)
            assert error <= 2.0**-13 * np.linalg.norm(read) + 1e-6
    assert np.linalg.norm(views["state"] - exact) <= 2.0**-16 * np.linalg.norm(exact)
