"""A poisoned paged cache on a bench, written and read by NumPy alone.

Every element starts as all-ones bytes: NaN as f32 and bf16, and as the scale of an int8 group. Only
what a test writes is a number.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from ninfer.device import host_array
from ninfer.ops.kv_cache import PAGE_TOKENS, PagedKv
from ninfer.tensor import DType, Tensor
from ninfer.tensor_formats import bf16_to_f32, decode_int8_g64, encode_int8_g64, f32_to_bf16
from tests.support.guarded_bench import GuardedBench

F32 = npt.NDArray[np.float32]


def make_cache(
    bench: GuardedBench,
    dtype: DType,
    num_kv_heads: int,
    head_dim: int,
    block_table: npt.ArrayLike,
    num_pages: int,
) -> PagedKv:
    shape = (num_pages, num_kv_heads, PAGE_TOKENS, head_dim)
    groups = (*shape[:3], -(-head_dim // 64))
    return PagedKv(
        bench.out(shape, dtype),
        bench.out(shape, dtype),
        bench.out(groups, DType.F16) if dtype is DType.I8 else None,
        bench.out(groups, DType.F16) if dtype is DType.I8 else None,
        bench.inout(np.asarray(block_table, np.int32)),
    )


def write_sequence(kv: PagedKv, row: int, keys: F32, values: F32) -> None:
    """Store [kv_heads, N, D] as positions 0..N-1 of a block-table row."""
    for plane, scales, source in (
        (kv.keys, kv.key_scales, keys),
        (kv.values, kv.value_scales, values),
    ):
        _write(plane, scales, _places(kv, row, source.shape[1]), source.swapaxes(0, 1))


def read_sequence(kv: PagedKv, row: int, length: int) -> tuple[F32, F32]:
    """Decode positions 0..length-1 of a row: keys and values, [kv_heads, length, D]."""
    places = _places(kv, row, length)
    keys = _read(kv.keys, kv.key_scales, places).swapaxes(0, 1)
    return keys, _read(kv.values, kv.value_scales, places).swapaxes(0, 1)


def planes(kv: PagedKv) -> tuple[Tensor, ...]:
    """Every plane the cache has."""
    every = (kv.keys, kv.values, kv.key_scales, kv.value_scales)
    return tuple(plane for plane in every if plane is not None)


def _places(kv: PagedKv, row: int, length: int) -> tuple[Any, ...]:
    """Where positions 0..length-1 lie in a plane; there their axis is before that of heads."""
    positions = np.arange(length)
    pages = host_array(kv.block_table)[row, positions // PAGE_TOKENS]
    return (pages, slice(None), positions % PAGE_TOKENS)


def _write(plane: Tensor, scales: Tensor | None, places: tuple[Any, ...], heads: F32) -> None:
    target = host_array(plane)
    if scales is not None:
        target[places], host_array(scales)[places] = encode_int8_g64(heads)
    elif plane.dtype is DType.BF16:
        target[places] = f32_to_bf16(heads)
    else:
        target[places] = heads


def _read(plane: Tensor, scales: Tensor | None, places: tuple[Any, ...]) -> F32:
    source = host_array(plane)[places]
    if scales is not None:
        return decode_int8_g64(source, host_array(scales)[places])
    return bf16_to_f32(source) if plane.dtype is DType.BF16 else source
