"""The trunk in plain torch: embedding, gated delta and attention blocks, tied head.

A batch is rows of packed documents. ``positions`` [rows, tokens] counts from 0 inside each document
and is all that separates neighbours: a token belongs to the document that starts ``position`` slots
before it. Parameter names are the checkpoint's without its prefix. Source: published Qwen3.5
architecture.
"""

import math

import torch
from torch import Tensor, nn

from tools.demo_model.gated_delta import RESET, DeltaRule, chunked_delta_rule
from tools.demo_model.geometry import LINEAR, DemoGeometry


class OffsetNorm(nn.Module):
    """Root mean square norm whose weight is stored minus one."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis, in the weight's type."""
        return rms(x.to(self.weight.dtype), self.eps) * (1 + self.weight)


def rms(x: Tensor, eps: float) -> Tensor:
    """Divide the last axis by its root mean square."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


class Linear(nn.Linear):
    """Matrix without bias; the input takes the matrix's type."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__(width_in, width_out, bias=False)
        nn.init.normal_(self.weight, std=1 / math.sqrt(width_in))

    def forward(self, x: Tensor) -> Tensor:
        """Multiply."""
        return nn.functional.linear(x.to(self.weight.dtype), self.weight)


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.gate_proj = Linear(hidden, width)
        self.up_proj = Linear(hidden, width)
        self.down_proj = Linear(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Apply."""
        output: Tensor = self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return output


def rotary(positions: Tensor, width: int, theta: float, kind: torch.dtype) -> Tensor:
    """Return cosines and sines ``[2, *positions.shape, width / 2]`` of split-half rotation."""
    step = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width
    angles = positions[..., None].float() * theta**-step
    return torch.stack((angles.cos(), angles.sin())).to(kind)


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Rotate the first components of each head.

    Args:
        x: [..., tokens, heads, dim].
        turns: as `rotary` makes them for these tokens.
    """
    width = 2 * turns.shape[-1]
    cos, sin = (part[..., None, :] for part in turns)
    first, second, rest = x.split((width // 2, width // 2, x.shape[-1] - width), -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), -1)


def same_document(positions: Tensor) -> Tensor:
    """Return [rows, tokens, tokens]: whether a query (first axis) may see a key."""
    index = torch.arange(positions.shape[-1], device=positions.device)
    start = index - positions
    return (start[:, :, None] == start[:, None, :]) & (index[:, None] >= index)


class Attention(nn.Module):
    """Gated full attention with normalised, partially rotated queries and keys."""

    def __init__(self, geometry: DemoGeometry) -> None:
        super().__init__()
        hidden, dim = geometry.hidden, geometry.head_dim
        self.heads, self.kv_heads, self.dim = geometry.num_heads, geometry.num_kv_heads, dim
        self.q_proj = Linear(hidden, 2 * self.heads * dim)
        self.k_proj = Linear(hidden, self.kv_heads * dim)
        self.v_proj = Linear(hidden, self.kv_heads * dim)
        self.o_proj = Linear(self.heads * dim, hidden)
        self.q_norm = OffsetNorm(dim, geometry.norm_eps)
        self.k_norm = OffsetNorm(dim, geometry.norm_eps)

    def project(self, x: Tensor, turns: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return scaled queries, keys, values and gates, each [rows, tokens, heads, dim]."""
        kind = self.q_proj.weight.dtype
        both = self.q_proj(x).unflatten(-1, (self.heads, 2, self.dim))
        q, gate = both.unbind(-2)
        k = self.k_proj(x).unflatten(-1, (self.kv_heads, self.dim))
        v = self.v_proj(x).unflatten(-1, (self.kv_heads, self.dim))
        q = rotate(self.q_norm(q), turns) / math.sqrt(self.dim)
        return q.to(kind), rotate(self.k_norm(k), turns).to(kind), v, gate

    def finish(self, mixed: Tensor, gate: Tensor) -> Tensor:
        """Gate what attention read [rows, tokens, heads, dim] and project it."""
        output: Tensor = self.o_proj((mixed * gate.sigmoid()).flatten(-2))
        return output

    def forward(self, x: Tensor, positions: Tensor, turns: Tensor) -> Tensor:
        """Attend inside each document."""
        q, k, v, gate = self.project(x, turns)
        share = self.heads // self.kv_heads
        grouped = q.unflatten(2, (self.kv_heads, share))
        scores = torch.einsum("btgsd,bugd->bgstu", grouped, k)
        scores = scores.to(turns.dtype).masked_fill(
            ~same_document(positions)[:, None, None], -math.inf
        )
        weights = scores.softmax(-1).to(v.dtype)
        mixed = torch.einsum("bgstu,bugd->btgsd", weights, v).flatten(2, 3)
        return self.finish(mixed, gate)


class DeltaNorm(nn.Module):
    """Plain norm of each head, then a gate."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """Normalise, weigh and gate."""
        kind = self.weight.dtype
        return self.weight * rms(x.to(kind), self.eps) * nn.functional.silu(gate.to(kind))


class DeltaConv(nn.Module):
    """Holds the depthwise kernel under the checkpoint's name."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, 4).uniform_(-0.5, 0.5))


class GatedDelta(nn.Module):
    """Gated DeltaNet mixer."""

    def __init__(self, geometry: DemoGeometry) -> None:
        super().__init__()
        self.rule: DeltaRule = chunked_delta_rule
        self.key_heads, self.value_heads = geometry.num_key_heads, geometry.num_value_heads
        self.dim = geometry.delta_dim
        hidden = geometry.hidden
        self.in_proj_qkv = Linear(hidden, geometry.conv_channels)
        self.in_proj_z = Linear(hidden, geometry.value_width)
        self.in_proj_a = Linear(hidden, self.value_heads)
        self.in_proj_b = Linear(hidden, self.value_heads)
        self.conv1d = DeltaConv(geometry.conv_channels)
        self.A_log = nn.Parameter(torch.empty(self.value_heads).uniform_(1, 16).log())
        span = torch.empty(self.value_heads).uniform_(math.log(1e-3), math.log(0.1)).exp()
        self.dt_bias = nn.Parameter(span + torch.log(-torch.expm1(-span)))
        self.norm = DeltaNorm(self.dim, geometry.norm_eps)
        self.out_proj = Linear(geometry.value_width, hidden)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Mix tokens inside each document."""
        q, k, v, g, beta = self.prepare(x, positions)
        mixed = self.norm(
            self.rule(q, k, v, g, beta), self.in_proj_z(x).unflatten(-1, (-1, self.dim))
        )
        output: Tensor = self.out_proj(mixed.flatten(-2))
        return output

    def prepare(
        self, x: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return queries, keys, values, log decays and write strengths."""
        wide = self.A_log.dtype
        kind = self.in_proj_qkv.weight.dtype
        mixed = self.convolve(self.in_proj_qkv(x), positions)
        keys = self.key_heads * self.dim
        q, k, v = mixed.split((keys, keys, self.value_heads * self.dim), -1)
        q, k = (unit(part.unflatten(-1, (self.key_heads, self.dim))).to(kind) for part in (q, k))
        v = v.unflatten(-1, (self.value_heads, self.dim)).to(kind)
        step = nn.functional.softplus(self.in_proj_a(x).to(wide) + self.dt_bias)
        g = -self.A_log.exp() * step
        g = torch.where(positions[..., None] == 0, RESET, g)
        return q, k, v, g, self.in_proj_b(x).to(wide).sigmoid()

    def convolve(self, x: Tensor, positions: Tensor) -> Tensor:
        """Convolve each channel over its last four tokens of the document."""
        weight = self.conv1d.weight[:, 0]
        total = x * weight[:, 3]
        for back in (1, 2, 3):
            shifted = nn.functional.pad(x, (0, 0, back, 0))[:, : x.shape[1]]
            is_inside = (positions >= back)[..., None]
            total = total + torch.where(is_inside, shifted * weight[:, 3 - back], 0)
        return nn.functional.silu(total)


def unit(x: Tensor) -> Tensor:
    """Divide the last axis by its length."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


class Block(nn.Module):
    """One layer: mixer and MLP, each behind a norm and beside a residual."""

    def __init__(self, geometry: DemoGeometry, kind: str) -> None:
        super().__init__()
        self.input_layernorm = OffsetNorm(geometry.hidden, geometry.norm_eps)
        self.post_attention_layernorm = OffsetNorm(geometry.hidden, geometry.norm_eps)
        self.is_linear = kind == LINEAR
        if self.is_linear:
            self.linear_attn = GatedDelta(geometry)
        else:
            self.self_attn = Attention(geometry)
        self.mlp = Mlp(geometry.hidden, geometry.intermediate)

    def forward(self, x: Tensor, positions: Tensor, turns: Tensor) -> Tensor:
        """Advance the residual stream."""
        normed = self.input_layernorm(x)
        if self.is_linear:
            x = x + self.linear_attn(normed, positions)
        else:
            x = x + self.self_attn(normed, positions, turns)
        output: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return output


class Embedding(nn.Module):
    """Rows of the vocabulary; also the head."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, width) * 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Gather."""
        return nn.functional.embedding(tokens, self.weight)


class Trunk(nn.Module):
    """The text model without its head's softmax."""

    def __init__(self, geometry: DemoGeometry) -> None:
        super().__init__()
        self.geometry = geometry
        self.embed_tokens = Embedding(geometry.vocab_rows, geometry.hidden)
        self.layers = nn.ModuleList(Block(geometry, kind) for kind in geometry.layer_types)
        self.norm = OffsetNorm(geometry.hidden, geometry.norm_eps)
        scale_residual_outputs(self.layers, 2 * geometry.num_layers)

    def forward(
        self, tokens: Tensor, positions: Tensor, taps: tuple[int, ...] = ()
    ) -> tuple[Tensor, list[Tensor]]:
        """Return final hidden states and the residual streams after the tapped blocks."""
        wide = self.norm.weight.dtype
        x = self.embed_tokens(tokens).to(wide)
        geometry = self.geometry
        turns = rotary(positions, geometry.rotary_dim, geometry.rope_theta, wide)
        features = []
        for index, block in enumerate(self.layers):
            x = block(x, positions, turns)
            if index in taps:
                features.append(x)
        return self.norm(x), features

    def logits(self, hidden: Tensor) -> Tensor:
        """Multiply by the tied head."""
        weight = self.embed_tokens.weight
        return nn.functional.linear(hidden.to(weight.dtype), weight)


def scale_residual_outputs(module: nn.Module, depth: int) -> None:
    """Shrink what each branch adds at first, so that the stream's size does not grow with depth."""
    for name, parameter in module.named_parameters():
        if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
            with torch.no_grad():
                parameter.mul_(1 / math.sqrt(depth))


def narrow_matrices(module: nn.Module, kind: torch.dtype) -> None:
    """Give every matrix the type products run in; vectors and convolutions keep theirs."""
    for parameter in module.parameters():
        if parameter.ndim == 2:
            parameter.data = parameter.data.to(kind)


def use_rule(trunk: Trunk, rule: DeltaRule) -> None:
    """Choose how gated delta layers advance their state."""
    for module in trunk.modules():
        if isinstance(module, GatedDelta):
            module.rule = rule
