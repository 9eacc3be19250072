"""Appending to the paged cache: one body for every device, BF16 and I8 planes."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from ninfer.ops import kv_cache
from ninfer.ops.kv_cache import PagedKv, RopeSpec
from ninfer.tensor import DType
from ninfer.tensor_formats import bf16_to_f32, decode_int8_g64, encode_int8_g64, f32_to_bf16
from tests.support.device_benches import BenchFactory, every_device
from tests.support.oracles.kv_cache import offset_norm, rotate
from tests.support.paged_cache import make_cache, planes

EPS = 1e-6
TINY_ROPE = RopeSpec(1e7, 16, (3, 3, 2))
REAL_ROPE = RopeSpec(1e7, 64, (11, 11, 10))
TABLE = [[3, 0, 5], [1, 4, 2]]
GEOMETRIES = [(2, 1, 64, TINY_ROPE), (4, 2, 32, TINY_ROPE), (24, 4, 256, REAL_ROPE)]
every_geometry = pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim", "rope"), GEOMETRIES
)
every_dtype = pytest.mark.parametrize("dtype", [DType.BF16, DType.I8])


@dataclasses.dataclass(frozen=True)
class Columns:
    """Projected columns and where they belong."""

    projected: Any
    rope_positions: Any
    positions: Any
    table_rows: Any
    query_norm: Any
    key_norm: Any

    def take(self, columns: list[int]) -> "Columns":
        return dataclasses.replace(
            self,
            projected=self.projected[columns],
            rope_positions=np.ascontiguousarray(self.rope_positions[:, columns]),
            positions=self.positions[columns],
            table_rows=self.table_rows[columns],
        )


@dataclasses.dataclass(frozen=True)
class Stored:
    """What an append left: queries [T, heads, D], keys and values [T, kv_heads, D], raw planes."""

    queries: Any
    keys: Any
    values: Any
    raw: list[Any]


def random_columns(
    num_heads: int, num_kv_heads: int, head_dim: int, count: int, largest_position: int = 300
) -> Columns:
    rng = np.random.default_rng(head_dim)
    width = 2 * (num_heads + num_kv_heads) * head_dim
    place = rng.permutation(2 * 192)[:count]
    norms = bf16_to_f32(f32_to_bf16(rng.normal(0, 0.3, (2, head_dim)).astype(np.float32)))
    projected = bf16_to_f32(f32_to_bf16(rng.normal(0, 2, (count, width)).astype(np.float32)))
    return Columns(
        projected,
        rng.integers(0, largest_position, (3, count)).astype(np.int32),
        (place % 192).astype(np.int32),
        (place // 192).astype(np.int32),
        norms[0],
        norms[1],
    )


def append(
    make_bench: BenchFactory,
    columns: Columns,
    geometry: tuple[int, int, int, RopeSpec],
    dtype: DType,
    table: list[list[int]] = TABLE,
    parts: list[list[int]] | None = None,
) -> Stored:
    num_heads, num_kv_heads, head_dim, rope = geometry
    count = len(columns.positions)
    parts = parts or [list(range(count))]
    queries = np.zeros((count, num_heads, head_dim), np.float32)
    with make_bench() as bench:
        kv = make_cache(bench, dtype, num_kv_heads, head_dim, table, 6)
        for part in parts:
            some = columns.take(part)
            out = bench.out_activations((len(part), num_heads, head_dim))
            kv_cache.append(
                bench.ctx,
                bench.activations(some.projected),
                bench.put(f32_to_bf16(some.query_norm)),
                bench.put(f32_to_bf16(some.key_norm)),
                EPS,
                rope,
                bench.put(some.rope_positions),
                bench.put(some.positions),
                bench.put(some.table_rows),
                kv,
                out,
            )
            bench.check()
            queries[part] = bench.read_activations(out)
        raw = [bench.read_tensor(plane) for plane in planes(kv)]
    pages = np.array(table)[columns.table_rows, columns.positions // 64]
    places = (pages, slice(None), columns.positions % 64)
    return Stored(queries, *_decoded(raw, kv, places), raw)


def _decoded(raw: list[Any], kv: PagedKv, places: Any) -> tuple[Any, Any]:
    keys, values = raw[0][places], raw[1][places]
    if kv.keys.dtype is DType.I8:
        return decode_int8_g64(keys, raw[2][places]), decode_int8_g64(values, raw[3][places])
    return bf16_to_f32(keys), bf16_to_f32(values)


def expected(columns: Columns, geometry: tuple[int, int, int, RopeSpec]) -> tuple[Any, Any, Any]:
    num_heads, num_kv_heads, head_dim, rope = geometry
    heads = columns.projected.reshape(len(columns.positions), -1, head_dim).astype(np.float64)
    turn = (columns.rope_positions, rope.theta, rope.rotary_dim, rope.section)
    query = offset_norm(heads[:, :num_heads], columns.query_norm.astype(np.float64), EPS)
    key = heads[:, num_heads : num_heads + num_kv_heads]
    key = offset_norm(key, columns.key_norm.astype(np.float64), EPS)
    return rotate(query, *turn), rotate(key, *turn), heads[:, 2 * num_heads + num_kv_heads :]


@every_device
@every_geometry
def test_append_agrees_with_the_formula(
    make_bench: BenchFactory, num_heads: int, num_kv_heads: int, head_dim: int, rope: RopeSpec
) -> None:
    geometry = (num_heads, num_kv_heads, head_dim, rope)
    columns = random_columns(num_heads, num_kv_heads, head_dim, 9)

    got = append(make_bench, columns, geometry, DType.BF16)

    queries, keys, values = expected(columns, geometry)
    # One rounding to bf16, and an angle of up to 300 radians with an error of 2^-16.
    np.testing.assert_allclose(got.queries, queries, rtol=2.0**-8, atol=2e-4)
    np.testing.assert_allclose(got.keys, keys, rtol=2.0**-8, atol=2e-4)
    np.testing.assert_array_equal(got.values, values)


@every_device
def test_angles_stay_right_far_into_the_context(make_bench: BenchFactory) -> None:
    geometry = (2, 1, 256, REAL_ROPE)
    columns = random_columns(2, 1, 256, 8, largest_position=262144)

    got = append(make_bench, columns, geometry, DType.BF16)

    queries, _, _ = expected(columns, geometry)
    # The angle is a binary32 product of up to 262144 radians: 2^-6 of an error in radians.
    np.testing.assert_allclose(got.queries, queries, rtol=2.0**-8, atol=6 * 2.0**-6)
    np.testing.assert_allclose(got.queries[:, :, 64:], queries[:, :, 64:], rtol=2.0**-8)


@every_device
@every_geometry
def test_int8_planes_follow_the_encoder_of_the_format(
    make_bench: BenchFactory, num_heads: int, num_kv_heads: int, head_dim: int, rope: RopeSpec
) -> None:
    geometry = (num_heads, num_kv_heads, head_dim, rope)
    columns = random_columns(num_heads, num_kv_heads, head_dim, 8)
    values = columns.projected.reshape(8, -1, head_dim)[:, 2 * num_heads + num_kv_heads :]
    values[0] = 0.0
    values[1] *= np.float32(2.0**-24)
    values[2] *= np.float32(2.0**-120)
    values[3] = np.float32(127 * 2.0**-25) * np.sign(values[3])
    values[4, :, 0] = 127.0
    values[5] *= np.float32(2.0**15)
    values[6, :, ::2] = -0.0

    got = append(make_bench, columns, geometry, DType.I8)

    _, keys, _ = expected(columns, geometry)
    codes, scales = encode_int8_g64(bf16_to_f32(f32_to_bf16(values)))
    pages = np.array(TABLE)[columns.table_rows, columns.positions // 64]
    places = (pages, slice(None), columns.positions % 64)
    np.testing.assert_array_equal(got.raw[1][places], codes)
    np.testing.assert_array_equal(got.raw[3][places].view(np.uint16), scales.view(np.uint16))
    groups = np.abs(keys).reshape(8, num_kv_heads, -1, min(64, head_dim)).max(axis=-1)
    bound = np.repeat(groups / 127 * (0.5 + 127 * 2.0**-11), min(64, head_dim), axis=-1)
    assert np.all(np.abs(got.keys - keys) <= bound + 2e-4)


@every_device
@every_dtype
def test_append_writes_its_positions_and_nothing_else(
    make_bench: BenchFactory, dtype: DType
) -> None:
    columns = random_columns(4, 2, 64, 7)

    got = append(make_bench, columns, (4, 2, 64, TINY_ROPE), dtype)

    untouched = np.ones((6, 2, 64), bool)
    for row, position in zip(columns.table_rows, columns.positions, strict=True):
        untouched[TABLE[row][position // 64], :, position % 64] = False
    for plane in got.raw:
        octets = plane.reshape(6, 2, 64, -1).view(np.uint8)
        np.testing.assert_array_equal((octets == 0xFF).all(axis=-1), untouched)


@every_device
@every_dtype
@pytest.mark.parametrize("geometry", [(4, 2, 64, TINY_ROPE), (16, 2, 256, REAL_ROPE)])
def test_no_split_order_or_placement_changes_a_bit(
    make_bench: BenchFactory, dtype: DType, geometry: tuple[int, int, int, RopeSpec]
) -> None:
    columns = random_columns(*geometry[:3], 9)
    order = [4, 0, 8, 2, 7, 1, 3, 6, 5]
    parts = [order[a:b] for a, b in itertools.pairwise([0, 1, 4, 9])]

    once = append(make_bench, columns, geometry, dtype)
    split = append(make_bench, columns, geometry, dtype, [[2, 5, 4], [0, 3, 1]], parts)

    assert once.queries.tobytes() == split.queries.tobytes()
    assert once.keys.tobytes() == split.keys.tobytes()
    assert once.values.tobytes() == split.values.tobytes()
