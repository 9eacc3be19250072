"""Float64 oracle of the Gated DeltaNet mixer over a whole sequence. Source: model contract 3.5."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class MixerInputs:
    """projected [T, C + Cv]; ab [T, 2Hv]; convolution [4, C]; a_log, dt_bias [Hv]; norm [Dv]."""

    projected: F64
    ab: F64
    convolution: F64
    a_log: F64
    dt_bias: F64
    norm: F64


@dataclass(frozen=True)
class MixerResult:
    """out [T, Cv]; matrices [Hv, Dk, Dv] and window [3, C] after the last token."""

    out: F64
    matrices: F64
    window: F64


def gated_delta(
    inputs: MixerInputs,
    num_key_heads: int,
    num_value_heads: int,
    key_dim: int,
    value_dim: int,
    eps: float,
) -> MixerResult:
    key_width = num_key_heads * key_dim
    channels = 2 * key_width + num_value_heads * value_dim
    num_tokens = inputs.projected.shape[0]
    x = np.concatenate([np.zeros((3, channels)), inputs.projected[:, :channels]])
    z = inputs.projected[:, channels:].reshape(num_tokens, num_value_heads, value_dim)
    a, b = inputs.ab[:, :num_value_heads], inputs.ab[:, num_value_heads:]
    g = -np.exp(inputs.a_log) * np.logaddexp(0.0, a + inputs.dt_bias)
    beta = 1 / (1 + np.exp(-b))
    matrices = np.zeros((num_value_heads, key_dim, value_dim))
    out = np.empty((num_tokens, num_value_heads, value_dim))
    for t in range(num_tokens):
        c = (inputs.convolution * x[t : t + 4]).sum(axis=0)
        c = c / (1 + np.exp(-c))
        q = _unit(c[:key_width].reshape(num_key_heads, key_dim))
        k = _unit(c[key_width : 2 * key_width].reshape(num_key_heads, key_dim))
        v = c[2 * key_width :].reshape(num_value_heads, value_dim)
        for j in range(num_value_heads):
            key_head = j // (num_value_heads // num_key_heads)
            state = np.exp(g[t, j]) * matrices[j]
            u = beta[t, j] * (v[j] - state.T @ k[key_head])
            matrices[j] = state + np.outer(k[key_head], u)
            o = matrices[j].T @ q[key_head] / np.sqrt(key_dim)
            normed = inputs.norm * o / np.sqrt((o**2).mean() + eps)
            out[t, j] = normed * z[t, j] / (1 + np.exp(-z[t, j]))
    return MixerResult(out.reshape(num_tokens, -1), matrices, x[-3:])


def _unit(heads: F64) -> F64:
    return np.asarray(heads / np.sqrt((heads**2).sum(axis=-1, keepdims=True) + 1e-6))
