"""The DFlash2 drafter in torch: context features, block forward, candidate selector.

Blocks of many anchors of a row are computed side by side; a block sees the context before its
anchor and itself. All norms are plain. Parameter names are the checkpoint's. Source: published
DFlash2 drafters.
"""

import math

import torch
from torch import Tensor, nn

from tools.demo_model.geometry import DemoGeometry
from tools.demo_model.model import Linear, Mlp, Trunk, rms, rotary, rotate, scale_residual_outputs
from tools.demo_model.mtp import Criterion, weighted_loss

TAPS = 2
SIDES = 2


class PlainNorm(nn.Module):
    """Root mean square norm with a plain weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis."""
        return rms(x.to(self.weight.dtype), self.eps) * self.weight


class BlockConv(nn.Module):
    """Two-tap convolution along a block, with kernels that follow the branch's input."""

    def __init__(self, geometry: DemoGeometry) -> None:
        super().__init__()
        hidden, group = geometry.hidden, geometry.draft.conv_group
        base = torch.zeros(SIDES, TAPS, hidden)
        base[:, 0] = 1
        self.base_kernel = nn.Parameter(base)
        self.kernel_projection = Linear(hidden, SIDES * TAPS * (hidden // group))
        nn.init.zeros_(self.kernel_projection.weight)
        self.group = group

    def kernels(self, normed: Tensor) -> Tensor:
        """Return [..., sides, taps, hidden] for the branch's input [..., hidden]."""
        delta = self.kernel_projection(normed).to(self.base_kernel.dtype)
        delta = delta.unflatten(-1, (SIDES, TAPS, -1)).repeat_interleave(self.group, -1)
        return self.base_kernel + delta

    @staticmethod
    def apply_side(kernels: Tensor, side: int, x: Tensor) -> Tensor:
        """Convolve ``x`` [..., block, hidden]; nothing lies before a block."""
        before = nn.functional.pad(x, (0, 0, 1, 0))[..., :-1, :]
        return kernels[..., side, 0, :] * x + kernels[..., side, 1, :] * before


class DraftAttention(nn.Module):
    """Attention of block rows to context and block."""

    def __init__(self, geometry: DemoGeometry) -> None:
        super().__init__()
        draft, hidden = geometry.draft, geometry.hidden
        self.heads, self.kv_heads, self.dim = draft.num_heads, draft.num_kv_heads, draft.head_dim
        self.q_proj = Linear(hidden, self.heads * self.dim)
        self.k_proj = Linear(hidden, self.kv_heads * self.dim)
        self.v_proj = Linear(hidden, self.kv_heads * self.dim)
        self.o_proj = Linear(self.heads * self.dim, hidden)
        self.q_norm = PlainNorm(self.dim, geometry.norm_eps)
        self.k_norm = PlainNorm(self.dim, geometry.norm_eps)

    def keys_values(self, x: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
        """Return rotated keys and values [..., kv heads, dim]."""
        v = self.v_proj(x).unflatten(-1, (self.kv_heads, self.dim))
        k = self.k_norm(self.k_proj(x).unflatten(-1, (self.kv_heads, self.dim)))
        return rotate(k, turns).to(v.dtype), v

    def forward(
        self, x: Tensor, turns: Tensor, context: tuple[Tensor, Tensor], visible: Tensor
    ) -> Tensor:
        """Attend.

        Args:
            x: [rows, blocks, block, hidden].
            turns: rotation of the block rows.
            context: keys and values [rows, tokens, kv heads, dim].
            visible: [rows, blocks, tokens] context that each block sees.
        """
        k, v = self.keys_values(x, turns)
        q = self.q_norm(self.q_proj(x).unflatten(-1, (self.heads, self.dim)))
        q = (rotate(q, turns) / math.sqrt(self.dim)).to(v.dtype)
        q = q.unflatten(-2, (self.kv_heads, -1))
        keys, values = context
        wide = torch.promote_types(v.dtype, torch.float32)
        past = torch.einsum("bmigsd,btgd->bgsmit", q, keys).to(wide)
        past = past.masked_fill(~visible[:, None, None, :, None], -math.inf)
        own = torch.einsum("bmigsd,bmjgd->bgsmij", q, k).to(wide)
        weights = torch.cat((past, own), -1).softmax(-1).to(v.dtype)
        tokens = values.shape[1]
        mixed = torch.einsum("bgsmit,btgd->bmigsd", weights[..., :tokens], values)
        mixed = mixed + torch.einsum("bgsmij,bmjgd->bmigsd", weights[..., tokens:], v)
        output: Tensor = self.o_proj(mixed.flatten(-3))
        return output


class DraftLayer(nn.Module):
    """One layer of the drafter."""

    def __init__(self, geometry: DemoGeometry) -> None:
        super().__init__()
        hidden, eps = geometry.hidden, geometry.norm_eps
        self.input_layernorm = PlainNorm(hidden, eps)
        self.post_attention_layernorm = PlainNorm(hidden, eps)
        self.self_attn = DraftAttention(geometry)
        self.mlp = Mlp(hidden, geometry.draft.intermediate)
        self.attention_conv = BlockConv(geometry)
        self.mlp_conv = BlockConv(geometry)

    def forward(
        self, x: Tensor, turns: Tensor, context: tuple[Tensor, Tensor], visible: Tensor
    ) -> Tensor:
        """Advance the blocks [rows, blocks, block, hidden]."""
        normed = self.input_layernorm(x)
        kernels = self.attention_conv.kernels(normed)
        prepared = BlockConv.apply_side(kernels, 0, normed)
        mixed = self.self_attn(prepared, turns, context, visible)
        x = x + BlockConv.apply_side(kernels, 1, mixed)
        normed = self.post_attention_layernorm(x)
        kernels = self.mlp_conv.kernels(normed)
        prepared = BlockConv.apply_side(kernels, 0, normed)
        return x + BlockConv.apply_side(kernels, 1, self.mlp(prepared))


class CandidateSelector(nn.Module):
    """Scores a candidate by its predecessor, weighted by the hidden state."""

    def __init__(self, geometry: DemoGeometry) -> None:
        super().__init__()
        rank, rows = geometry.draft.selector_rank, geometry.vocab_rows
        self.hidden_projection = Linear(geometry.hidden, rank)
        self.predecessor_codebook = nn.Parameter(torch.randn(rows, rank) * 0.5)
        self.successor_codebook = nn.Parameter(torch.zeros(rows, rank))

    def edge(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """Return [..., rank]: what a successor's code is multiplied with."""
        code = nn.functional.embedding(previous, self.predecessor_codebook)
        edge: Tensor = code * self.hidden_projection(hidden)
        return edge


class Drafter(nn.Module):
    """The whole companion; embedding and head are the trunk's."""

    def __init__(self, geometry: DemoGeometry) -> None:
        super().__init__()
        self.geometry = geometry
        draft, hidden, eps = geometry.draft, geometry.hidden, geometry.norm_eps
        self.fc = Linear(len(draft.target_layers) * hidden, hidden)
        self.hidden_norm = PlainNorm(hidden, eps)
        self.layers = nn.ModuleList(DraftLayer(geometry) for _ in range(draft.num_layers))
        self.norm = PlainNorm(hidden, eps)
        self.candidate_selector = CandidateSelector(geometry)
        scale_residual_outputs(self.layers, 2 * draft.num_layers)

    def forward(
        self,
        features: list[Tensor],
        positions: Tensor,
        anchors: Tensor,
        embedded: Tensor,
        block_size: int,
    ) -> Tensor:
        """Return the final hidden states of all block rows [rows, blocks, block, hidden].

        Args:
            features: residual streams [rows, tokens, hidden] after the tapped blocks.
            positions: [rows, tokens] inside the document.
            anchors: [rows, blocks] token index of each anchor.
            embedded: [rows, blocks, block, hidden] embeddings of anchors and masks.
            block_size: anchor and proposals.
        """
        theta, dim = self.geometry.rope_theta, self.geometry.draft.head_dim
        wide = self.norm.weight.dtype
        context = self.hidden_norm(self.fc(torch.cat(features, -1)))
        offsets = torch.arange(block_size, device=anchors.device)
        places = positions.gather(1, anchors)
        turns = rotary(places[..., None] + offsets, dim, theta, wide)
        past = rotary(positions, dim, theta, wide)
        index = torch.arange(positions.shape[1], device=anchors.device)
        visible = (index < anchors[..., None]) & (index >= (anchors - places)[..., None])
        x = embedded.to(wide)
        for layer in self.layers:
            entries = layer.self_attn.keys_values(context, past)
            x = layer(x, turns, entries, visible)
        return self.norm(x)


def choose_anchors(weights: Tensor, count: int) -> Tensor:
    """Draw ``count`` different token indices of each row, those with full weight first."""
    noise = torch.rand_like(weights) * 0.5
    return (weights + noise).topk(count, -1).indices


def draft_losses(
    drafter: Drafter,
    trunk: Trunk,
    features: list[Tensor],
    batch: tuple[Tensor, Tensor, Tensor],
    greedy: Tensor,
    anchors: Tensor,
    decay: float = 0.85,
    criterion: Criterion = weighted_loss,
) -> tuple[Tensor, Tensor]:
    """Return the loss and, per proposal, the share that is right when all before it are.

    Args:
        drafter: in training.
        trunk: frozen.
        features: its tapped residual streams.
        batch: tokens, positions and weights [rows, tokens].
        greedy: the trunk's choice of the next token.
        anchors: [rows, blocks].
        decay: weight of a proposal relative to the one before it.
        criterion: loss of one choice.
    """
    tokens, positions, weights = batch
    geometry = drafter.geometry
    size = geometry.draft.block_size
    offsets = torch.arange(size, device=tokens.device)
    places = (anchors[..., None] + offsets).clamp(max=tokens.shape[1] - 1)
    inputs = torch.full_like(places, geometry.mask_token_id)
    inputs[..., 0] = tokens.gather(1, anchors)
    hidden = drafter(features, positions, anchors, trunk.embed_tokens(inputs), size)[:, :, 1:]

    def at(values: Tensor) -> Tensor:
        """Return the values of the tokens before each proposal."""
        return values.gather(1, places[..., :-1].flatten(1)).view_as(places[..., :-1])

    is_inside = at(positions) == positions.gather(1, anchors)[..., None] + offsets[:-1]
    target, previous = at(greedy), at(tokens)
    # The text up to a proposal's predecessor must be what the trunk says.
    is_right = (greedy == nn.functional.pad(tokens[:, 1:], (0, 1))) & (weights > 0)
    alive = at(is_right.long()).cumprod(-1)
    alive = nn.functional.pad(alive[..., :-1], (1, 0), value=1)
    importance = decay ** offsets[:-1].to(weights.dtype)
    weight = at(weights) * is_inside * alive * importance

    logits = trunk.logits(hidden)
    selector = drafter.candidate_selector
    edge = selector.edge(hidden, previous)
    plain, _ = criterion(logits, target, weight)
    joint = logits + nn.functional.linear(
        edge.to(logits.dtype), selector.successor_codebook.to(logits.dtype)
    )
    full, _ = criterion(joint, target, weight)
    is_hit = joint.argmax(-1) == target
    counts = weight.sum((0, 1)).clamp(min=1e-6)
    hits = (is_hit * weight).sum((0, 1)) / counts
    return full + 0.5 * plain, hits.detach()
