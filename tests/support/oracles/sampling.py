"""Float64 oracle of token choice, written from the model contract, section 7, with full sorts."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Settings:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence: float = 0.0
    frequency: float = 0.0


def philox(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    """Four words of Philox4x32-10, in Python integers."""
    c, k, low = list(counter), list(key), 0xFFFFFFFF
    for _ in range(10):
        hi0, lo0 = divmod(0xD2511F53 * c[0], 1 << 32)
        hi1, lo1 = divmod(0xCD9E8D57 * c[2], 1 << 32)
        c = [hi1 ^ c[1] ^ k[0], lo1, hi0 ^ c[3] ^ k[1], lo0]
        k = [(k[0] + 0x9E3779B9) & low, (k[1] + 0xBB67AE85) & low]
    return tuple(c)


def first_words(
    position: int | npt.NDArray[np.int64], tokens: npt.NDArray[np.uint64], seed: int
) -> npt.NDArray[np.uint64]:
    """First words of `philox` for every token, or position and token, in 64-bit words."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    zero = np.zeros_like(tokens)
    c, k = [zero + np.uint64(position), tokens, zero, zero], [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        product0, product1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [
            product1 >> half ^ c[1] ^ np.uint64(k[0]),
            product1 & low,
            product0 >> half ^ c[3] ^ np.uint64(k[1]),
            product0 & low,
        ]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c[0]


def gumbels(seed: int, position: int | npt.NDArray[np.int64], tokens: npt.NDArray[np.int64]) -> F64:
    words = first_words(position, tokens.astype(np.uint64), seed)
    return np.asarray(-np.log(-np.log(((words >> np.uint64(9)) + 0.5) * 2.0**-23)))


def penalised(logits: F64, counts: npt.NDArray[np.int32], settings: Settings) -> F64:
    used = settings.presence * (counts > 0) + settings.frequency * counts
    return np.asarray(logits - used)


def probabilities(
    logits: F64, counts: npt.NDArray[np.int32], permitted: npt.NDArray[np.bool_], s: Settings
) -> F64:
    """The filtered distribution [V]; a positive temperature."""
    z = np.where(permitted, penalised(logits, counts, s) / s.temperature, -np.inf)
    order = np.lexsort((np.arange(len(z)), -z))
    if s.top_k > 0:
        z[order[s.top_k :]] = -np.inf
    if s.top_p < 1:
        reached = np.cumsum(_softmax(z)[order])
        z[order[int(np.argmax(reached >= s.top_p)) + 1 :]] = -np.inf
    p = _softmax(z)
    z[p < s.min_p * p.max()] = -np.inf
    return _softmax(z)


def draw(p: F64, seed: int, position: int) -> tuple[int, float]:
    """The chosen id, and by how much its score exceeds the next one."""
    kept = np.flatnonzero(p)
    scores = np.log(p[kept]) + gumbels(seed, position, kept)
    best = int(np.argmax(scores))
    others = np.delete(scores, best)
    margin = float(scores[best] - others.max()) if len(others) else np.inf
    return int(kept[best]), margin


def log_softmax(logits: F64) -> F64:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def _softmax(z: F64) -> F64:
    e = np.exp(z - z.max())
    return np.asarray(e / e.sum())
