"""Greedy continuations of many prompts at once, one token a step, with caches.

All rows stand at the same position at any time: a row whose prompt is not used up yet takes its
next prompt token instead of its own choice. Knows no tokenizer. Source: the recurrent form of
`gated_delta`, which is its definition.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tools.demo_model.geometry import LINEAR
from tools.demo_model.model import Attention, GatedDelta, Trunk, rotary

_TAPS = 4
_SWEEP = 8


@dataclass(slots=True)
class Caches:
    """What a layer remembers of each row.

    Attributes:
        states: gated delta states [rows, value heads, key dim, value dim] by layer.
        inputs: last inputs [rows, at most `_TAPS`, hidden] of gated delta layers.
        keys, values: of attention layers [rows, tokens, kv heads, dim].
    """

    states: dict[int, Tensor] = field(default_factory=dict)
    inputs: dict[int, Tensor] = field(default_factory=dict)
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)

    def keep(self, rows: Tensor) -> None:
        """Forget all rows but these."""
        for kind in (self.states, self.inputs, self.keys, self.values):
            for layer, tensor in kind.items():
                kind[layer] = tensor[rows]


def step(trunk: Trunk, tokens: Tensor, position: int, caches: Caches) -> Tensor:
    """Advance every row by one token and return the logits of the next [rows, vocabulary]."""
    geometry = trunk.geometry
    x = trunk.embed_tokens(tokens[:, None])
    turns = rotary(
        torch.full((1, 1), position, device=tokens.device),
        geometry.rotary_dim,
        geometry.rope_theta,
        x.dtype,
    )
    for index, block in enumerate(trunk.layers):
        normed = block.input_layernorm(x)
        if geometry.layer_types[index] == LINEAR:
            x = x + _advance(block.linear_attn, normed, position, index, caches)
        else:
            x = x + _attend(block.self_attn, normed, turns, index, caches)
        x = x + block.mlp(block.post_attention_layernorm(x))
    return trunk.logits(trunk.norm(x))[:, 0]


def _append(cache: dict[int, Tensor], layer: int, new: Tensor, limit: int | None = None) -> Tensor:
    old = cache.get(layer)
    joined = new if old is None else torch.cat((old, new), 1)
    cache[layer] = joined if limit is None else joined[:, -limit:]
    return cache[layer]


def _advance(mixer: GatedDelta, x: Tensor, position: int, layer: int, caches: Caches) -> Tensor:
    window = _append(caches.inputs, layer, x, _TAPS)
    first = position + 1 - window.shape[1]
    positions = torch.arange(first, position + 1, device=x.device).expand(window.shape[:2])
    q, k, v, g, beta = (part[:, -1] for part in mixer.prepare(window, positions))
    share = mixer.value_heads // mixer.key_heads
    q = q.repeat_interleave(share, 1) / math.sqrt(mixer.dim)
    k = k.repeat_interleave(share, 1)
    state = caches.states.get(layer)
    if state is None:
        state = v.new_zeros(*v.shape[:2], mixer.dim, mixer.dim)
    state = state * g.exp()[..., None, None]
    update = beta[..., None] * (v - torch.einsum("bhkv,bhk->bhv", state, k))
    state = state + k[..., None] * update[:, :, None, :]
    caches.states[layer] = state
    read = torch.einsum("bhkv,bhk->bhv", state, q)[:, None]
    mixed = mixer.norm(read, mixer.in_proj_z(x).unflatten(-1, (-1, mixer.dim)))
    output: Tensor = mixer.out_proj(mixed.flatten(-2))
    return output


def _attend(mixer: Attention, x: Tensor, turns: Tensor, layer: int, caches: Caches) -> Tensor:
    q, k, v, gate = mixer.project(x, turns)
    keys, values = _append(caches.keys, layer, k), _append(caches.values, layer, v)
    grouped = q.unflatten(2, (mixer.kv_heads, -1))
    weights = torch.einsum("btgsd,bugd->bgstu", grouped, keys).softmax(-1)
    mixed = torch.einsum("bgstu,bugd->btgsd", weights, values).flatten(2, 3)
    return mixer.finish(mixed, gate)


@torch.no_grad()
def continuations(
    trunk: Trunk, prompts: Sequence[Sequence[int]], stop: int, limit: int, addressable: int
) -> list[list[int]]:
    """Continue each prompt with the most likely token until it says ``stop``.

    Args:
        trunk: on any device.
        prompts: at least one token each.
        stop: the id behind which a row ends; it is part of the result.
        limit: most new tokens of a row.
        addressable: ids below it may be chosen.

    Returns:
        The new tokens of each prompt.
    """
    device = trunk.norm.weight.device
    texts = [list(prompt) for prompt in prompts]
    rows = list(range(len(texts)))
    caches, position = Caches(), 0
    while rows:
        tokens = torch.tensor([texts[row][position] for row in rows], device=device)
        chosen = step(trunk, tokens, position, caches)[:, :addressable].argmax(-1).tolist()
        position += 1
        for row, token in zip(rows, chosen, strict=True):
            if len(texts[row]) == position:
                texts[row].append(token)
        if position % _SWEEP == 0 or len(rows) == 1:
            kept = [
                i for i, row in enumerate(rows) if not _is_done(texts, prompts, row, stop, limit)
            ]
            if len(kept) < len(rows):
                caches.keep(torch.tensor(kept, dtype=torch.long, device=device))
                rows = [rows[i] for i in kept]
    return [
        _until(text[len(prompt) :][:limit], stop)
        for text, prompt in zip(texts, prompts, strict=True)
    ]


def _is_done(
    texts: list[list[int]], prompts: Sequence[Sequence[int]], row: int, stop: int, limit: int
) -> bool:
    new = texts[row][len(prompts[row]) :]
    return stop in new or len(new) >= limit


def _until(tokens: list[int], stop: int) -> list[int]:
    return tokens[: tokens.index(stop) + 1] if stop in tokens else tokens
