"""The MTP head in torch, unrolled the way speculation uses it.

Step 1 reads the trunk's final hidden states; each further step reads the head's own output, and its
attention sees the first step's entries of the past beside the entries of its own chain. Parameter
names are the checkpoint's without ``mtp.``. Source: published Qwen3.5 architecture.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from tools.demo_model.geometry import FULL, DemoGeometry
from tools.demo_model.model import (
    Block,
    Linear,
    OffsetNorm,
    Trunk,
    rotary,
    same_document,
    scale_residual_outputs,
)

Criterion = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Logits, targets and weights to a loss and a share of right choices."""


class MtpHead(nn.Module):
    """One attention layer that predicts the token after the next."""

    def __init__(self, geometry: DemoGeometry) -> None:
        super().__init__()
        self.geometry = geometry
        hidden, eps = geometry.hidden, geometry.norm_eps
        self.fc = Linear(2 * hidden, hidden)
        self.pre_fc_norm_embedding = OffsetNorm(hidden, eps)
        self.pre_fc_norm_hidden = OffsetNorm(hidden, eps)
        self.layers = nn.ModuleList([Block(geometry, FULL)])
        self.norm = OffsetNorm(hidden, eps)
        scale_residual_outputs(self.layers, 2)

    def forward(
        self, hidden: Tensor, embedded: Tensor, positions: Tensor, steps: int
    ) -> list[Tensor]:
        """Return the outputs of every step; output ``s`` at ``t`` predicts token ``t + 2 + s``.

        Args:
            hidden: [rows, tokens, hidden] the trunk's final hidden states.
            embedded: [rows, tokens, hidden] embedding of each token itself.
            positions: [rows, tokens] inside the document.
            steps: length of the chain.
        """
        visible = same_document(positions)
        first: tuple[Tensor, Tensor] | None = None
        chain: list[tuple[Tensor, Tensor]] = []
        outputs: list[Tensor] = []
        attention = self.layers[0].self_attn
        for step in range(steps):
            embedded = ahead(embedded, 1)
            joined = (self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden))
            x = self.fc(torch.cat(joined, -1)).to(hidden.dtype)
            geometry = self.geometry
            turns = rotary(positions + step, geometry.rotary_dim, geometry.rope_theta, hidden.dtype)
            q, k, v, gate = attention.project(self.layers[0].input_layernorm(x), turns)
            if first is None:
                first = (k, v)
            else:
                chain.append((k, v))
            mixed = chain_attention(q, first, chain, visible)
            x = x + attention.finish(mixed, gate)
            x = x + self.layers[0].mlp(self.layers[0].post_attention_layernorm(x))
            hidden = self.norm(x)
            outputs.append(hidden)
        return outputs


def chain_attention(
    q: Tensor, first: tuple[Tensor, Tensor], chain: list[tuple[Tensor, Tensor]], visible: Tensor
) -> Tensor:
    """Attend to the visible first entries and, position by position, to those of the chain.

    Args:
        q: [rows, tokens, heads, dim], scaled.
        first: keys and values [rows, tokens, kv heads, dim] that `visible` selects from.
        chain: keys and values of which a query sees only those at its own place.
        visible: [rows, tokens, tokens].
    """
    keys, values = first
    share = q.shape[2] // keys.shape[2]
    q = q.unflatten(2, (keys.shape[2], share))
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = torch.einsum("btgsd,bugd->bgstu", q, keys).to(wide)
    scores = scores.masked_fill(~visible[:, None, None], -math.inf)
    own = [torch.einsum("btgsd,btgd->bgst", q, k)[..., None].to(wide) for k, _ in chain]
    weights = torch.cat((scores, *own), -1).softmax(-1).to(values.dtype)
    tokens = values.shape[1]
    mixed = torch.einsum("bgstu,bugd->btgsd", weights[..., :tokens], values)
    for index, (_, v) in enumerate(chain):
        share_of = weights[..., tokens + index].permute(0, 3, 1, 2)[..., None]
        mixed = mixed + share_of * v[:, :, :, None]
    return mixed.flatten(2, 3)


def ahead(x: Tensor, steps: int) -> Tensor:
    """Return ``x`` with each token in the place of the one ``steps`` before it, else 0."""
    padding = (0, 0) * (x.ndim - 2) + (0, steps)
    return nn.functional.pad(x[:, steps:], padding)


def mtp_targets(
    greedy: Tensor, tokens: Tensor, weights: Tensor, positions: Tensor, steps: int
) -> list[tuple[Tensor, Tensor]]:
    """Return target ids and weights [rows, tokens] of each step.

    The target is what the trunk would say, and a step counts only while the text before it is what
    the trunk says, because a draft is of no use after a difference.

    Args:
        greedy: [rows, tokens] the trunk's choice of the next token.
        tokens: [rows, tokens].
        weights: [rows, tokens] of predicting the next token; 0 at a document's end.
        positions: [rows, tokens] inside the document.
        steps: length of the chain.
    """
    is_right = (greedy == ahead(tokens, 1)) & (weights > 0)
    alive = torch.ones_like(is_right)
    found = []
    for step in range(1, steps + 1):
        is_same = ahead(positions, step) == positions + step
        weight = ahead(weights, step) * (alive & is_same)
        found.append((ahead(greedy, step), weight))
        alive = alive & ahead(is_right, step)
    return found


def mtp_losses(
    head: MtpHead,
    trunk: Trunk,
    hidden: Tensor,
    tokens: Tensor,
    positions: Tensor,
    targets: list[tuple[Tensor, Tensor]],
    criterion: Criterion | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the mean loss over the steps and, per step, the share of right proposals."""
    criterion = criterion or weighted_loss
    embedded = trunk.embed_tokens(tokens).to(hidden.dtype)
    outputs = head(hidden, embedded, positions, len(targets))
    losses, hits = [], []
    for output, (target, weight) in zip(outputs, targets, strict=True):
        loss, hit = criterion(trunk.logits(output), target, weight)
        losses.append(loss)
        hits.append(hit)
    return torch.stack(losses).mean(), torch.stack(hits)


def weighted_loss(logits: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weighted mean cross entropy and the weighted share of right choices."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    logits = logits.to(wide)
    picked = logits.gather(-1, target.long()[..., None])[..., 0]
    loss = logits.logsumexp(-1) - picked
    total = weight.sum().clamp(min=1)
    hit = ((picked >= logits.amax(-1)) * weight).sum() / total
    return (loss * weight).sum() / total, hit.detach()
