"""A poisoned paged cache for CUDA tests: filled by NumPy, then copied to a bench.

Every element that no sequence owns is all-ones bytes: NaN as bf16 and as a scale. The last page
belongs to nobody, and table entries that are not mapped name it, so that reading one shows.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ninfer.ops.kv_cache import PAGE_TOKENS, PagedKv
from ninfer.tensor import DType
from ninfer.tensor_formats import bf16_to_f32, decode_int8_g64, encode_int8_g64, f32_to_bf16

Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class CacheContent:
    """Planes as they are stored, the table, and what the sequences hold in float64."""

    planes: tuple[Array, ...]
    table: Array
    keys: list[Array]
    values: list[Array]

    def on(self, bench: Any) -> PagedKv:
        """The cache on a bench, as an input that must not change."""
        stored = [bench.put(plane) for plane in self.planes]
        scales = stored[2:] if len(stored) == 4 else [None, None]
        return PagedKv(stored[0], stored[1], scales[0], scales[1], bench.put(self.table))


def make_content(
    dtype: DType, num_kv_heads: int, head_dim: int, lengths: Sequence[int], seed: int = 0
) -> CacheContent:
    """Sequences of random numbers; ``seed`` moves the pages, never the numbers."""
    numbers = np.random.default_rng(9)
    sequences = []
    for length in lengths:
        shape = (length, num_kv_heads, head_dim)
        pair = (numbers.normal(0, 1, shape).astype(np.float32) for _ in range(2))
        keys, values = (source.transpose(1, 0, 2) for source in pair)
        sequences.append((keys, values))
    return store_content(dtype, sequences, seed)


def store_content(
    dtype: DType, sequences: Sequence[tuple[Array, Array]], seed: int = 0
) -> CacheContent:
    """Store keys and values [kv heads, positions, D] of sequences; ``seed`` moves the pages."""
    num_kv_heads, _, head_dim = sequences[0][0].shape
    needed = [-(-keys.shape[1] // PAGE_TOKENS) for keys, _ in sequences]
    order = list(np.random.default_rng(seed).permutation(sum(needed)))
    shape = (sum(needed) + 1, num_kv_heads, PAGE_TOKENS, head_dim)
    is_int8 = dtype is DType.I8
    planes = [_poisoned(shape, np.int8 if is_int8 else np.uint16) for _ in range(2)]
    scales = [_poisoned((*shape[:3], head_dim // 64), np.float16) for _ in range(2)]
    table = np.full((len(sequences), max(needed) + 1), sum(needed), np.int32)
    content = CacheContent(tuple(planes + scales if is_int8 else planes), table, [], [])
    for row, pair in enumerate(sequences):
        for page in range(needed[row]):
            table[row, page] = order.pop()
        for which, found in enumerate((content.keys, content.values)):
            source = pair[which].transpose(1, 0, 2)
            places = np.arange(len(source))
            at = (table[row, places // PAGE_TOKENS], slice(None), places % PAGE_TOKENS)
            if is_int8:
                codes, steps = encode_int8_g64(source)
                planes[which][at], scales[which][at] = codes, steps
                wide = decode_int8_g64(codes, steps)
            else:
                planes[which][at] = f32_to_bf16(source)
                wide = bf16_to_f32(f32_to_bf16(source))
            found.append(wide.astype(np.float64).transpose(1, 0, 2))
    return content


def _poisoned(shape: tuple[int, ...], dtype: Any) -> Array:
    octets = np.full(int(np.prod(shape)) * np.dtype(dtype).itemsize, 0xFF, np.uint8)
    return np.asarray(octets.view(dtype).reshape(shape))
