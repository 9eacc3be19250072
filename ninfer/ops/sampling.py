"""Contract of token choice: counting, sampling, and scoring of given tokens.

Order of one row's choice (model contract 7.1; biases and repetition are not part of it):

    1 ids that are unaddressable or masked out leave the distribution
    2 l - presence * [count > 0] - frequency * count
    3 temperature 0: the largest, lowest id on ties; otherwise l / temperature
    4 top_k: the k largest, lower id first on ties                     off at 0
    5 top_p: shortest descending prefix whose probability reaches p    off from 1
    6 min_p: probability >= min_p * the largest probability            off at 0
    7 argmax over what is left of log p + Gumbel noise, lowest id on ties

The noise of an id is addressed by (seed, position of the token being decided, id), Philox4x32-10,
purpose 0 (model contract 7.3): a row's choice depends on nothing but its own operands. Knows no
request, grammar or stop condition.

Logits that are not numbers: NaN and -inf leave the distribution like masked ids, +inf counts as
the largest finite value. A row of which only such ids remain takes its lowest permitted id; a row
whose mask permits no addressable id writes -1, which is a mistake of the caller.
"""

from dataclasses import dataclass

from ninfer.ops.checks import expect, require
from ninfer.ops.context import OpContext
from ninfer.tensor import DType, Tensor

MASK_WORD_BITS = 32


@dataclass(frozen=True, slots=True)
class SamplerRows:
    """Settings of the B rows of a round.

    Attributes:
        temperature: [B] F32, >= 0; 0 is greedy.
        top_p: [B] F32; 1 is off.
        min_p: [B] F32; 0 is off.
        presence: [B] F32, subtracted once from ids that have been counted.
        frequency: [B] F32, subtracted for each count.
        top_k: [B] I32; 0 is off.
        seeds: [B, 2] U32, low word first.
        positions: [B] I32, absolute position of the token being decided.
    """

    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    presence: Tensor
    frequency: Tensor
    top_k: Tensor
    seeds: Tensor
    positions: Tensor


def mask_words(vocabulary: int) -> int:
    """Return the 32-bit words of one mask row; bit ``id % 32`` of word ``id // 32`` permits it."""
    return -(-vocabulary // MASK_WORD_BITS)


def count_tokens(
    ctx: OpContext, counts: Tensor, slots: Tensor, tokens: Tensor, flags: Tensor
) -> None:
    """Count one token of each row: ``counts[slots[b], tokens[b]] += 1`` where ``flags[b]``.

    A slot or token outside the table is a fault of the device.

    Args:
        ctx: where to run.
        counts: [slots, V] I32, added to.
        slots: [B] I32.
        tokens: [B] I32.
        flags: [B] I32; 0 leaves the row out, its slot and token are not looked at.

    Raises:
        ShapeError: an operand differs from the above.
    """
    require(len(counts.shape) == 2, f"counts: shape {counts.shape}, expected two axes")
    expect("counts", counts, counts.shape, DType.I32)
    for name, tensor in (("slots", slots), ("tokens", tokens), ("flags", flags)):
        expect(name, tensor, (slots.size,), DType.I32)
    ctx.kernels.sampling.count_tokens(ctx.stream, counts, slots, tokens, flags)


def sample(
    ctx: OpContext,
    logits: Tensor,
    rows: SamplerRows,
    counts: Tensor,
    slots: Tensor,
    mask: Tensor,
    addressable: int,
    tokens: Tensor,
) -> None:
    """Choose one token for each row.

    Args:
        ctx: where to run.
        logits: [B, V] F32, left unchanged.
        rows: settings of the B rows.
        counts: [slots, V] I32; row b reads ``counts[slots[b]]``, and only when it has a penalty.
        slots: [B] I32.
        mask: [B, ceil(V / 32)] U32, see `mask_words`.
        addressable: ids from here on are never chosen; 1..V.
        tokens: [B] I32, written whole.

    Raises:
        ShapeError: an operand differs from the above.
    """
    require(len(logits.shape) == 2, f"logits: shape {logits.shape}, expected two axes")
    require(len(counts.shape) == 2, f"counts: shape {counts.shape}, expected two axes")
    num_rows, vocabulary = logits.shape
    expect("logits", logits, (num_rows, vocabulary), DType.F32)
    for name in ("temperature", "top_p", "min_p", "presence", "frequency"):
        expect(name, getattr(rows, name), (num_rows,), DType.F32)
    expect("top_k", rows.top_k, (num_rows,), DType.I32)
    expect("seeds", rows.seeds, (num_rows, 2), DType.U32)
    expect("positions", rows.positions, (num_rows,), DType.I32)
    expect("counts", counts, (counts.shape[0], vocabulary), DType.I32)
    expect("slots", slots, (num_rows,), DType.I32)
    expect("mask", mask, (num_rows, mask_words(vocabulary)), DType.U32)
    expect("tokens", tokens, (num_rows,), DType.I32)
    _expect_addressable(addressable, vocabulary)
    ctx.kernels.sampling.sample(ctx.stream, logits, rows, counts, slots, mask, addressable, tokens)


def score(
    ctx: OpContext,
    logits: Tensor,
    targets: Tensor,
    addressable: int,
    logprobs: Tensor,
    argmax: Tensor,
) -> None:
    """Score a given token of each row under the plain softmax over the addressable ids.

    Args:
        ctx: where to run.
        logits: [T, V] F32, left unchanged.
        targets: [T] I32; the score of an unaddressable id is -inf.
        addressable: ids from here on have no probability; 1..V.
        logprobs: [T] F32, natural logarithm, written whole.
        argmax: [T] I32, most probable id, lowest on ties, written whole.

    Raises:
        ShapeError: an operand differs from the above.
    """
    require(len(logits.shape) == 2, f"logits: shape {logits.shape}, expected two axes")
    num_rows, vocabulary = logits.shape
    expect("logits", logits, (num_rows, vocabulary), DType.F32)
    expect("targets", targets, (num_rows,), DType.I32)
    expect("logprobs", logprobs, (num_rows,), DType.F32)
    expect("argmax", argmax, (num_rows,), DType.I32)
    _expect_addressable(addressable, vocabulary)
    ctx.kernels.sampling.score(ctx.stream, logits, targets, addressable, logprobs, argmax)


def _expect_addressable(addressable: int, vocabulary: int) -> None:
    require(1 <= addressable <= vocabulary, f"addressable: {addressable}, expected 1..{vocabulary}")
