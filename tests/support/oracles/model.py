"""Float64 oracle of the text model, written from the model contract, section 3.

One straight pass over a whole sequence: no cache, no pages, no slots, no chunks. It takes logical
weights (see `LayerWeights`) that a caller decoded from wherever it likes, as float64.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
Experts = npt.NDArray[np.int64]
LayerWeights = Mapping[str, F64]
"""By role. All layers: ``input_norm post_norm``. Attention: ``q k out_gate v q_norm k_norm o``.
Gated DeltaNet: ``q k v z a b conv`` ([4, C], tap-major) ``a_log dt_bias norm o``. Dense FFN: ``gate
up down``. MoE: ``router`` [E+1, H], ``expert_gate expert_up expert_down`` (leading axis E),
``shared_gate shared_up shared_down``."""


@dataclass(frozen=True)
class OracleWeights:
    embedding: F64
    layers: Sequence[LayerWeights]
    final_norm: F64
    head: F64


@dataclass(frozen=True)
class OracleDims:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    mrope_section: tuple[int, int, int]
    num_key_heads: int
    num_value_heads: int
    eps: float
    experts_per_token: int = 0


@dataclass
class OracleRun:
    """Everything the fixtures record, for T tokens."""

    rounds_cache: bool = False
    experts: Experts | None = None
    hidden: list[F64] = field(default_factory=list)  # [T, H] before, then after each layer
    final_hidden: F64 = field(default_factory=lambda: np.empty(0))
    logits: F64 = field(default_factory=lambda: np.empty(0))
    keys: list[F64] = field(default_factory=list)  # [kv heads, T, head_dim] of full layers
    values: list[F64] = field(default_factory=list)
    states: list[F64] = field(default_factory=list)  # [Hv, Dk, Dv] of linear layers
    windows: list[F64] = field(default_factory=list)  # [3, C], oldest first
    scores: list[F64] = field(default_factory=list)  # [T, E] router logits of MoE layers


def run_text(
    weights: OracleWeights,
    dims: OracleDims,
    tokens: Sequence[int],
    positions: npt.NDArray[np.int64] | None = None,
    *,
    round_cache: bool = False,
    experts: Experts | None = None,
) -> OracleRun:
    """Run all tokens; ``positions`` [3, T] defaults to 0, 1, 2, ... on each axis.

    ``round_cache`` rounds keys and values to int8 codes in groups of 64 components. ``experts``
    [MoE layers, T, k] are taken instead of the most likely ones.
    """
    count = len(tokens)
    axes = np.tile(np.arange(count), (3, 1)) if positions is None else positions
    run = OracleRun(rounds_cache=round_cache, experts=experts)
    x = weights.embedding[np.asarray(tokens)]
    run.hidden.append(x)
    for layer in weights.layers:
        h = _offset_norm(x, layer["input_norm"], dims.eps)
        mixer = _gated_delta if "a_log" in layer else _attention
        x = x + mixer(layer, dims, h, axes, run)
        x = x + _ffn(layer, dims, _offset_norm(x, layer["post_norm"], dims.eps), run)
        run.hidden.append(x)
    run.final_hidden = _offset_norm(x, weights.final_norm, dims.eps)
    run.logits = run.final_hidden @ weights.head.T
    return run


def _rms(x: F64, eps: float) -> F64:
    return np.asarray(x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps))


def _offset_norm(x: F64, weight: F64, eps: float) -> F64:
    return _rms(x, eps) * (1 + weight)


def _sigmoid(x: F64) -> F64:
    return np.asarray(1 / (1 + np.exp(-x)))


def _silu(x: F64) -> F64:
    return x * _sigmoid(x)


def _rope(x: F64, dims: OracleDims, axes: npt.NDArray[np.int64]) -> F64:
    """Rotate [T, heads, head_dim]: component j with j + R/2, each frequency on its own axis."""
    half = dims.rotary_dim // 2
    j = np.arange(half)
    axis = np.zeros(half, np.int64)
    axis[(j % 3 == 1) & (j < 3 * dims.mrope_section[1])] = 1
    axis[(j % 3 == 2) & (j < 3 * dims.mrope_section[2])] = 2
    angle = axes[axis].T * dims.rope_theta ** (-2.0 * j / dims.rotary_dim)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)


def _attention(
    w: LayerWeights, dims: OracleDims, h: F64, axes: npt.NDArray[np.int64], run: OracleRun
) -> F64:
    count, shape = len(h), (len(h), -1, dims.head_dim)
    q = _rope(_offset_norm((h @ w["q"].T).reshape(shape), w["q_norm"], dims.eps), dims, axes)
    k = _rope(_offset_norm((h @ w["k"].T).reshape(shape), w["k_norm"], dims.eps), dims, axes)
    v = (h @ w["v"].T).reshape(shape)
    gate = (h @ w["out_gate"].T).reshape(shape)
    if run.rounds_cache:
        k, v = _round_int8(k), _round_int8(v)
    run.keys.append(k.transpose(1, 0, 2))
    run.values.append(v.transpose(1, 0, 2))
    per_kv = dims.num_heads // dims.num_kv_heads
    causal = np.tri(count, dtype=bool)
    out = np.empty_like(q)
    for n in range(dims.num_heads):
        scores = q[:, n] @ k[:, n // per_kv].T / np.sqrt(dims.head_dim)
        scores = np.where(causal, scores, -np.inf)
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, n] = (p / p.sum(axis=1, keepdims=True)) @ v[:, n // per_kv]
    return np.asarray((out * _sigmoid(gate)).reshape(count, -1) @ w["o"].T)


def _round_int8(x: F64) -> F64:
    """Nearest multiple of scale = f16(largest / 127) in each group of 64 components."""
    groups = x.reshape(*x.shape[:-1], -1, min(64, x.shape[-1]))
    scale = (np.abs(groups).max(axis=-1, keepdims=True) / 127).astype(np.float16).astype(np.float64)
    codes = np.clip(np.rint(groups / scale), -127, 127)
    return np.asarray((codes * scale).reshape(x.shape))


def _gated_delta(
    w: LayerWeights, dims: OracleDims, h: F64, axes: npt.NDArray[np.int64], run: OracleRun
) -> F64:
    del axes  # the recurrence uses no positions
    count = len(h)
    x = np.concatenate([h @ w[name].T for name in ("q", "k", "v")], axis=1)
    padded = np.concatenate([np.zeros((3, x.shape[1])), x])
    run.windows.append(padded[-3:])
    c = _silu(np.asarray(sum(w["conv"][tap] * padded[tap : tap + count] for tap in range(4))))
    key_width = w["q"].shape[0]
    q = _unit(c[:, :key_width].reshape(count, dims.num_key_heads, -1))
    k = _unit(c[:, key_width : 2 * key_width].reshape(count, dims.num_key_heads, -1))
    v = c[:, 2 * key_width :].reshape(count, dims.num_value_heads, -1)
    g = -np.exp(w["a_log"]) * np.logaddexp(0, h @ w["a"].T + w["dt_bias"])
    beta = _sigmoid(h @ w["b"].T)
    per_key = dims.num_value_heads // dims.num_key_heads
    q, k = np.repeat(q, per_key, axis=1), np.repeat(k, per_key, axis=1)
    state = np.zeros((dims.num_value_heads, k.shape[2], v.shape[2]))
    out = np.empty_like(v)
    for t in range(count):
        state = np.exp(g[t])[:, None, None] * state
        update = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
        state = state + k[t][:, :, None] * update[:, None, :]
        out[t] = np.einsum("hkv,hk->hv", state, q[t]) / np.sqrt(k.shape[2])
    run.states.append(state)
    z = (h @ w["z"].T).reshape(out.shape)
    return np.asarray((w["norm"] * _rms(out, dims.eps) * _silu(z)).reshape(count, -1) @ w["o"].T)


def _unit(x: F64) -> F64:
    return np.asarray(x / np.sqrt(np.sum(x**2, axis=-1, keepdims=True) + 1e-6))


def _ffn(w: LayerWeights, dims: OracleDims, h: F64, run: OracleRun) -> F64:
    if "router" not in w:
        return _swiglu(h, w["gate"], w["up"], w["down"])
    scores = h @ w["router"].T
    scores, shared_gate = scores[:, :-1], scores[:, -1]
    taken = None if run.experts is None else run.experts[len(run.scores)]
    run.scores.append(scores)
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    y = _sigmoid(shared_gate)[:, None] * _swiglu(
        h, w["shared_gate"], w["shared_up"], w["shared_down"]
    )
    for t, row in enumerate(p):
        best = np.argsort(-row, kind="stable")[: dims.experts_per_token]
        chosen = best if taken is None else taken[t]
        for e in chosen:
            expert = (w["expert_gate"][e], w["expert_up"][e], w["expert_down"][e])
            y[t] += row[e] / row[chosen].sum() * _swiglu(h[t], *expert)
    return y


def _swiglu(h: F64, gate: F64, up: F64, down: F64) -> F64:
    return np.asarray((_silu(h @ gate.T) * (h @ up.T)) @ down.T)


def dims_of(geometry: Any) -> OracleDims:
    """Read the numbers off a model geometry."""
    heads, delta = geometry.attention, geometry.gated_delta
    return OracleDims(
        heads.num_heads,
        heads.num_kv_heads,
        heads.head_dim,
        heads.rotary_dim,
        heads.rope_theta,
        heads.mrope_section,
        delta.num_key_heads,
        delta.num_value_heads,
        geometry.norm_eps,
        getattr(geometry.mlp, "experts_per_token", 0),
    )
