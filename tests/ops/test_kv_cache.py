import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.device import host_array
from ninfer.errors import ShapeError
from ninfer.ops import kv_cache
from ninfer.ops.kv_cache import PagedKv, RopeSpec
from ninfer.tensor import DType
from ninfer.tensor_formats import bf16_to_f32, encode_int8_g64, f32_to_bf16
from tests.support.guarded_bench import GuardedBench
from tests.support.oracles.kv_cache import offset_norm, rotate
from tests.support.paged_cache import make_cache, planes, read_sequence

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
EPS = 1e-6
TINY_ROPE = RopeSpec(1e7, 16, (3, 3, 2))
REAL_ROPE = RopeSpec(1e7, 64, (11, 11, 10))
GEOMETRIES = [(2, 1, 64, TINY_ROPE), (4, 2, 64, TINY_ROPE), (6, 2, 256, REAL_ROPE)]
TABLE = [[3, 0, 5], [1, 4, 2]]
every_dtype = pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.I8])


@dataclasses.dataclass(frozen=True)
class Columns:
    """Projected columns and where they belong."""

    projected: F32
    rope_positions: I32
    positions: I32
    table_rows: I32
    query_norm: F32
    key_norm: F32

    def take(self, columns: list[int]) -> "Columns":
        return dataclasses.replace(
            self,
            projected=self.projected[columns],
            rope_positions=self.rope_positions[:, columns],
            positions=self.positions[columns],
            table_rows=self.table_rows[columns],
        )


def random_columns(
    num_heads: int, num_kv_heads: int, head_dim: int, count: int, seed: int = 0
) -> Columns:
    rng = np.random.default_rng(seed)
    width = 2 * (num_heads + num_kv_heads) * head_dim
    place = rng.permutation(2 * 192)[:count]
    norms = rng.normal(0, 0.3, (2, head_dim)).astype(np.float32)
    return Columns(
        rng.normal(0, 2, (count, width)).astype(np.float32),
        rng.integers(0, 300, (3, count)).astype(np.int32),
        (place % 192).astype(np.int32),
        (place // 192).astype(np.int32),
        bf16_to_f32(f32_to_bf16(norms[0])),
        bf16_to_f32(f32_to_bf16(norms[1])),
    )


def append(
    bench: GuardedBench, columns: Columns, num_heads: int, rope: RopeSpec, kv: PagedKv
) -> F32:
    queries = bench.out((len(columns.positions), num_heads, kv.head_dim))
    kv_cache.append(
        bench.ctx,
        bench.put(columns.projected),
        bench.put(f32_to_bf16(columns.query_norm)),
        bench.put(f32_to_bf16(columns.key_norm)),
        EPS,
        rope,
        bench.put(columns.rope_positions),
        bench.put(columns.positions),
        bench.put(columns.table_rows),
        kv,
        queries,
    )
    bench.check()
    return bench.read_tensor(queries)


def stored(kv: PagedKv, columns: Columns) -> tuple[F32, F32]:
    """Keys and values [T, kv_heads, D] at the places of the columns."""
    rows = [read_sequence(kv, row, 192) for row in range(2)]
    pairs = list(zip(columns.table_rows, columns.positions, strict=True))
    return (
        np.stack([rows[row][0][:, position] for row, position in pairs]),
        np.stack([rows[row][1][:, position] for row, position in pairs]),
    )


@pytest.mark.parametrize("size", [1.0, 1e-3])  # the smaller one lets epsilon count
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim", "rope"), GEOMETRIES)
def test_append_agrees_with_the_formula(
    num_heads: int, num_kv_heads: int, head_dim: int, rope: RopeSpec, size: float
) -> None:
    columns = random_columns(num_heads, num_kv_heads, head_dim, 9)
    columns.projected[...] *= np.float32(size)
    with GuardedBench() as bench:
        kv = make_cache(bench, DType.F32, num_kv_heads, head_dim, TABLE, 6)

        queries = append(bench, columns, num_heads, rope, kv)

        keys, values = stored(kv, columns)
    heads = columns.projected.reshape(9, -1, head_dim).astype(np.float64)
    norms = columns.query_norm.astype(np.float64), columns.key_norm.astype(np.float64)
    turn = (columns.rope_positions, rope.theta, rope.rotary_dim, rope.section)
    query = rotate(offset_norm(heads[:, :num_heads], norms[0], EPS), *turn)
    key = heads[:, num_heads : num_heads + num_kv_heads]
    key = rotate(offset_norm(key, norms[1], EPS), *turn)
    # An angle of up to 300 radians has an error of 2^-16; components are up to 6.
    np.testing.assert_allclose(queries, query, atol=2e-4)
    np.testing.assert_allclose(keys, key, atol=2e-4)
    np.testing.assert_array_equal(values, heads[:, 2 * num_heads + num_kv_heads :])


@every_dtype
def test_append_writes_its_positions_and_nothing_else(dtype: DType) -> None:
    columns = random_columns(4, 2, 64, 7)
    with GuardedBench() as bench:
        kv = make_cache(bench, dtype, 2, 64, TABLE, 6)
        expected = [np.ones(plane.shape[:3], bool) for plane in planes(kv)]
        for row, position in zip(columns.table_rows, columns.positions, strict=True):
            for untouched in expected:
                untouched[TABLE[row][position // 64], :, position % 64] = False

        append(bench, columns, 4, TINY_ROPE, kv)

        for plane, untouched in zip(planes(kv), expected, strict=True):
            octets = host_array(plane).view(np.uint8)
            np.testing.assert_array_equal((octets == 0xFF).all(axis=-1), untouched)


@pytest.mark.parametrize("head_dim", [64, 256])
@pytest.mark.parametrize("seed", range(3))
def test_bf16_planes_hold_the_nearest_words(head_dim: int, seed: int) -> None:
    rope = RopeSpec(1e7, 16, (3, 3, 2))
    columns = random_columns(2, 2, head_dim, 20, seed)
    columns.projected.view(np.uint32)[::2] &= np.uint32(0xFFFF0000)
    columns.projected.view(np.uint32)[::2] |= np.uint32(0x8000)  # raw values half way
    with GuardedBench() as bench:
        wide = make_cache(bench, DType.F32, 2, head_dim, TABLE, 6)
        narrow = make_cache(bench, DType.BF16, 2, head_dim, TABLE, 6)

        append(bench, columns, 2, rope, wide)
        append(bench, columns, 2, rope, narrow)

        for plane, words in zip(planes(wide), planes(narrow), strict=True):
            is_written = ~np.isnan(host_array(plane))
            expected = f32_to_bf16(host_array(plane)[is_written])
            np.testing.assert_array_equal(host_array(words)[is_written], expected)


def special_columns(head_dim: int) -> Columns:
    """Values with zero groups, subnormal scales, ties and signed zeros."""
    columns = random_columns(2, 2, head_dim, 8, 3)
    values = columns.projected.reshape(8, 8, head_dim)[:, 6:]
    values[0] = 0.0
    values[1] *= 1e-7
    values[2] *= 1e-42
    values[3] = np.float32(127 * 2.0**-25) * np.sign(values[3])
    values[4] = np.round(values[4] * 4) / 2
    values[4, :, 0] = 127.0
    values[5] *= 1e6
    values[6, :, ::2] = -0.0
    return columns


def tie_columns(head_dim: int) -> Columns:
    """Groups whose scale (even columns) or whose codes (odd ones) lie half way."""
    rng = np.random.default_rng(4)
    columns = random_columns(2, 2, head_dim, 40, 3)
    groups = columns.projected.reshape(40, 8, -1, min(head_dim, 64))[:, 6:]
    words = rng.integers(0x2000, 0x6000, groups.shape[:3]).astype(np.uint16)
    scales = words.view(np.float16).astype(np.float32)
    above = (words + np.uint16(1)).view(np.float16).astype(np.float32)
    steps = np.arange(groups.shape[-1], dtype=np.float32) + np.float32(0.5)
    groups[1::2] = steps * scales[1::2, ..., None]
    groups[1::2, ..., 0] = 127 * scales[1::2]
    groups[::2, ..., 0] = 127 * ((scales + above) / 2)[::2]
    groups[::2, ..., 1:] = groups[::2, ..., :1] * rng.uniform(-1, 1, groups[::2, ..., 1:].shape)
    return columns


@pytest.mark.parametrize("make", [special_columns, tie_columns])
@pytest.mark.parametrize("head_dim", [32, 64, 256])
def test_int8_planes_follow_the_encoder_of_the_format(
    head_dim: int, make: Callable[[int], Columns]
) -> None:
    columns = make(head_dim)
    with GuardedBench() as bench:
        wide = make_cache(bench, DType.F32, 2, head_dim, TABLE, 6)
        coded = make_cache(bench, DType.I8, 2, head_dim, TABLE, 6)
        append(bench, columns, 2, TINY_ROPE, wide)

        append(bench, columns, 2, TINY_ROPE, coded)

        codes = (coded.keys, coded.key_scales), (coded.values, coded.value_scales)
        for plane, (code_plane, scale_plane) in zip(planes(wide), codes, strict=True):
            assert scale_plane is not None
            is_written = ~np.isnan(host_array(plane)).any(axis=-1)
            expected, scales = encode_int8_g64(host_array(plane)[is_written])
            np.testing.assert_array_equal(host_array(code_plane)[is_written], expected)
            got = host_array(scale_plane)[is_written]
            np.testing.assert_array_equal(got.view(np.uint16), scales.view(np.uint16))


def test_a_scale_beyond_binary16_becomes_the_largest_one() -> None:
    columns = random_columns(2, 2, 64, 1)
    columns.projected.reshape(1, 8, 64)[0, 6:, ::2] = 3e38
    columns.projected.reshape(1, 8, 64)[0, 6:, 1::2] = -np.inf
    with GuardedBench() as bench:
        kv = make_cache(bench, DType.I8, 2, 64, TABLE, 6)

        append(bench, columns, 2, TINY_ROPE, kv)

        _, values = stored(kv, columns)
    expected = np.tile(np.array([1, -1]) * 127.0 * 65504.0, 32)
    np.testing.assert_array_equal(values[0], np.stack([expected, expected]))


def test_an_int8_element_is_within_half_a_step_of_the_f32_one() -> None:
    columns = random_columns(6, 2, 256, 30)
    with GuardedBench() as bench:
        wide = make_cache(bench, DType.F32, 2, 256, TABLE, 6)
        coded = make_cache(bench, DType.I8, 2, 256, TABLE, 6)

        append(bench, columns, 6, REAL_ROPE, wide)
        append(bench, columns, 6, REAL_ROPE, coded)

        for exact, decoded in zip(stored(wide, columns), stored(coded, columns), strict=True):
            groups = exact.reshape(-1, 64)
            # Half a code, plus what rounding the scale to 11 bits can cost the largest code.
            bound = np.abs(groups).max(axis=1, keepdims=True) / 127 * (0.5 + 127 * 2.0**-11)
            assert (np.abs(groups - decoded.reshape(-1, 64)) <= bound).all()


@every_dtype
@settings(max_examples=15, deadline=None)
@given(
    order=st.permutations(range(9)),
    cuts=st.sets(st.integers(1, 8)),
    table=st.permutations(range(6)),
    num_threads=st.integers(1, 2),
)
def test_no_split_order_or_placement_changes_a_bit(
    dtype: DType, order: list[int], cuts: set[int], table: list[int], num_threads: int
) -> None:
    columns = random_columns(4, 2, 64, 9)
    moved = [table[:3], table[3:]]
    with GuardedBench(num_threads) as bench:
        once = make_cache(bench, dtype, 2, 64, TABLE, 6)
        split = make_cache(bench, dtype, 2, 64, moved, 6)
        expected = append(bench, columns, 4, TINY_ROPE, once)

        bounds = [0, *sorted(cuts), 9]
        for first, stop in itertools.pairwise(bounds):
            part = order[first:stop]
            queries = append(bench, columns.take(part), 4, TINY_ROPE, split)
            np.testing.assert_array_equal(queries, expected[part])

        for a, b in zip(planes(once), planes(split), strict=True):
            for row in range(2):
                pages = host_array(a)[TABLE[row]], host_array(b)[moved[row]]
                assert pages[0].tobytes() == pages[1].tobytes()


def test_many_columns_on_two_threads_equal_one_thread() -> None:
    columns = random_columns(6, 2, 256, 64)
    results = []
    for num_threads in (1, 2):
        with GuardedBench(num_threads) as bench:
            kv = make_cache(bench, DType.F32, 2, 256, TABLE, 6)
            queries = append(bench, columns, 6, REAL_ROPE, kv)
            results.append([queries.tobytes(), *(host_array(p).tobytes() for p in planes(kv))])

    assert results[0] == results[1]


def test_equal_axes_are_plain_rotation_and_position_zero_is_none() -> None:
    columns = random_columns(2, 1, 64, 4)
    still = dataclasses.replace(columns, rope_positions=np.zeros((3, 4), np.int32))
    with GuardedBench() as bench:
        kv = make_cache(bench, DType.F32, 1, 64, TABLE, 6)

        queries = append(bench, still, 2, TINY_ROPE, kv)

    heads = columns.projected.reshape(4, -1, 64)[:, :2].astype(np.float64)
    expected = offset_norm(heads, columns.query_norm.astype(np.float64), EPS)
    np.testing.assert_allclose(queries, expected, rtol=2e-6, atol=1e-7)


def test_wrong_operands_are_refused() -> None:
    columns = random_columns(4, 2, 64, 3)
    with GuardedBench() as bench:
        kv = make_cache(bench, DType.F32, 2, 64, TABLE, 6)
        operands: dict[str, Any] = {
            "ctx": bench.ctx,
            "projected": bench.put(columns.projected),
            "query_norm": bench.put(f32_to_bf16(columns.query_norm)),
            "key_norm": bench.put(f32_to_bf16(columns.key_norm)),
            "eps": EPS,
            "rope": TINY_ROPE,
            "rope_positions": bench.put(columns.rope_positions),
            "positions": bench.put(columns.positions),
            "table_rows": bench.put(columns.table_rows),
            "kv": kv,
            "queries": bench.out((3, 4, 64)),
        }
        wrong: list[tuple[str, Any]] = [
            ("projected", bench.put(columns.projected[:, 1:])),
            ("query_norm", bench.put(columns.query_norm)),
            ("rope", RopeSpec(1e7, 65, (1, 1, 1))),
            ("rope_positions", bench.put(columns.rope_positions[:2])),
            ("positions", bench.out((3,))),
            ("table_rows", bench.out((4,), DType.I32)),
            ("queries", bench.out((3, 3, 64))),
            ("kv", dataclasses.replace(kv, key_scales=bench.out((6, 2, 64, 1), DType.F16))),
            ("kv", dataclasses.replace(kv, values=bench.out((5, 2, 64, 64)))),
            ("kv", make_cache(bench, DType.F32, 3, 64, TABLE, 2)),
        ]

        for name, operand in wrong:
            with pytest.raises(ShapeError):
                kv_cache.append(**(operands | {name: operand}))
