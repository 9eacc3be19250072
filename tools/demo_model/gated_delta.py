"""The gated delta rule: token by token, in chunks, and through flash-linear-attention.

All three take queries and keys that are already normalised (queries not yet scaled), log decays
``g <= 0`` and write strengths ``beta``. A document boundary inside a row is a decay of `RESET`: it
leaves a billionth of the state, which no number format here can tell from nothing, and keeps every
exponent finite. Source: Gated Delta Networks, chunked WY form.
"""

import importlib.util
import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

CHUNK: Final = 64
RESET: Final = -20.0

DeltaRule = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]

# Largest relative difference of a value or gradient that a faster implementation may show.
_CHECK_TOLERANCE: Final = 0.05


def recurrent_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """Advance the state one token at a time; the definition.

    Args:
        q: [rows, tokens, key heads, key dim].
        k: as q.
        v: [rows, tokens, value heads, value dim].
        g: [rows, tokens, value heads].
        beta: as g.

    Returns:
        [rows, tokens, value heads, value dim].
    """
    share = v.shape[2] // k.shape[2]
    q = q.repeat_interleave(share, 2) / math.sqrt(q.shape[-1])
    k = k.repeat_interleave(share, 2)
    rows, tokens, heads, width = v.shape
    state = v.new_zeros(rows, heads, k.shape[-1], width)
    outputs = []
    for t in range(tokens):
        state = state * g[:, t].exp()[..., None, None]
        read = torch.einsum("bhkv,bhk->bhv", state, k[:, t])
        update = beta[:, t, :, None] * (v[:, t] - read)
        state = state + k[:, t, :, :, None] * update[:, :, None, :]
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(outputs, 1)


class UnitLowerInverse(torch.autograd.Function):
    """Inverse of ``I + A`` for strictly lower ``A``, by merging diagonal blocks of doubling size.

    Merging is as stable as forward substitution; a product of powers of ``A`` is not.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        """Return the inverse of ``I + a``."""
        size = a.shape[-1]
        index = torch.arange(size, device=a.device)
        eye = torch.eye(size, dtype=a.dtype, device=a.device)
        inverse = eye.expand_as(a)
        span = 1
        while span < size:
            block, pair = index // span, index // (2 * span)
            is_corner = (pair[:, None] == pair) & (block[:, None] > block)
            corner = torch.where(is_corner, a, 0)
            inverse = inverse - (corner if span == 1 else inverse @ corner @ inverse)
            span *= 2
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """Return the gradient of ``a``; its upper half is for the caller to mask."""
        (inverse,) = ctx.saved_tensors
        transposed = inverse.mT
        return -(transposed @ gradients[0] @ transposed)


def chunked_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """Do the same in chunks of `CHUNK` tokens; the number of tokens must be a multiple of it.

    Products run in the type of ``v``; decays, inverse and state in at least float32.
    """
    kind = v.dtype
    wide = torch.promote_types(kind, torch.float32)
    rows, tokens, heads, width = v.shape
    share = heads // k.shape[2]

    def chunks(x: Tensor) -> Tensor:
        """Return [rows, heads, chunks, CHUNK, ...]."""
        return x.unflatten(1, (tokens // CHUNK, CHUNK)).movedim(3, 1)

    q = chunks(q / math.sqrt(q.shape[-1])).repeat_interleave(share, 1)
    k = chunks(k).repeat_interleave(share, 1)
    v, beta = chunks(v), chunks(beta.to(wide))
    total = chunks(g.to(wide)).cumsum(-1)

    ones = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=v.device)
    difference = total[..., :, None] - total[..., None, :]
    decay = difference.masked_fill(~ones.tril(), -math.inf).exp()
    a = (beta[..., None] * (k @ k.mT) * decay).masked_fill(~ones.tril(-1), 0)
    inverse = UnitLowerInverse.apply(a).to(kind)
    new = inverse @ (beta[..., None] * v).to(kind)
    written = inverse @ ((beta * total.exp())[..., None] * k).to(kind)
    inner = ((q @ k.mT) * decay).to(kind)
    entering = (total.exp()[..., None] * q).to(kind)
    last = total[..., -1:]
    leaving = ((last - total).exp()[..., None] * k).to(kind).mT
    kept = last.exp()[..., None]

    state = torch.zeros(rows, heads, k.shape[-1], width, dtype=wide, device=v.device)
    outputs = []
    for n in range(tokens // CHUNK):
        low = state.to(kind)
        values = new[:, :, n] - written[:, :, n] @ low
        outputs.append(entering[:, :, n] @ low + inner[:, :, n] @ values)
        state = kept[:, :, n] * state + leaving[:, :, n] @ values
    return torch.stack(outputs, 2).flatten(2, 3).transpose(1, 2)


def flash_delta_rule() -> DeltaRule | None:
    """Return flash-linear-attention's kernel, or None when the package is not installed.

    The package refuses the backward kernel for a range of compilers in which one tile width is
    miscompiled. Widths of 128, as here, are right; the refusal is lifted and `agrees` decides.
    """
    if importlib.util.find_spec("fla") is None:
        return None
    from fla.ops.common import chunk_o
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    chunk_o.TRITON_ABOVE_3_7_1 = True

    def rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
        output: Tensor = chunk_gated_delta_rule(q, k, v, g, beta)[0]
        return output

    # Its launcher is not for the compiler to look into.
    opaque: DeltaRule = torch.compiler.disable(rule)
    return opaque


def agrees(rule: DeltaRule, device: torch.device, kind: torch.dtype) -> tuple[bool, float]:
    """Compare a rule with the recurrence in float64, values and all gradients.

    Returns:
        Whether it may be used, and the largest relative difference found.
    """
    torch.manual_seed(5)
    tokens, num_keys, num_values, dim = 4 * CHUNK, 2, 4, 128
    q, k = (torch.randn(2, tokens, num_keys, dim) for _ in range(2))
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    v = torch.randn(2, tokens, num_values, dim)
    g = -torch.rand(2, tokens, num_values) * 2
    g[:, 50], g[0, 130] = RESET, RESET
    beta = torch.rand(2, tokens, num_values)
    weight = torch.randn_like(v)

    def run(target: DeltaRule, wide: torch.dtype | None) -> list[Tensor]:
        types = (kind, kind, kind, torch.float32, torch.float32)
        inputs = [
            x.to(t).to(device, wide or t).requires_grad_()
            for x, t in zip((q, k, v, g, beta), types, strict=True)
        ]
        output = target(*inputs)
        gradients = torch.autograd.grad(output, inputs, weight.to(output))
        return [output.detach(), *gradients]

    wanted = run(recurrent_delta_rule, torch.float64)
    worst = 0.0
    for found, true in zip(run(rule, None), wanted, strict=True):
        error = (found.double() - true).norm() / true.norm()
        worst = max(worst, float(error) if bool(error.isfinite()) else math.inf)
    return worst < _CHECK_TOLERANCE, worst
