"""Encoder arithmetic and row handling by property: exact rational oracle, blocks, bfloat16, KV."""

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.tensor import TensorFormat
from ninfer.tensor_formats import (
    GROUPED,
    EncodeError,
    Planes,
    RowSplitGeometry,
    bf16_to_f32,
    decode_int8_g64,
    decode_matrix,
    decode_rows,
    encode_int8_g64,
    encode_matrix,
    encode_rows,
    f32_to_bf16,
    pack_codes,
    split_planes,
    take_rows,
    unpack_codes,
)
from tests.support.grouped_oracle import DEFINITIONS, encode_group, encode_payload

GROUPED_FORMATS = sorted(GROUPED, key=lambda format: format.value)
MAGNITUDES = st.sampled_from([2.0**-149, 2.0**-140, 2.0**-126, 2.0**-25, 1e-3, 1.0, 300.0, 65504.0])


@st.composite
def matrices(draw: st.DrawFn, limit: float = 7 * 65519.0) -> npt.NDArray[np.float32]:
    """Small matrices whose groups have very different magnitudes, ties and zeros."""
    rows, columns = draw(st.integers(1, 3)), draw(st.integers(1, 140))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = rng.standard_normal((rows, columns))
    if draw(st.booleans()):
        values = np.rint(values * 4) / 2
    values *= draw(MAGNITUDES)
    values[rng.random(values.shape) < draw(st.sampled_from([0.0, 0.5, 1.0]))] *= -0.0
    return np.clip(values, -limit, limit).astype(np.float32)


@pytest.mark.parametrize("format", GROUPED_FORMATS)
@settings(max_examples=12, deadline=None)
@given(matrix=matrices())
def test_encoder_equals_exact_arithmetic(
    format: TensorFormat, matrix: npt.NDArray[np.float32]
) -> None:
    exact = [[Fraction(float(value)) for value in row] for row in matrix]

    assert encode_matrix(format, matrix).tobytes() == encode_payload(exact, format.value)


@pytest.mark.parametrize("format", GROUPED_FORMATS)
def test_scale_limit_is_half_way_above_the_largest_binary16(format: TensorFormat) -> None:
    code_max = GROUPED[format].code_max
    below = np.full((1, 3), np.nextafter(np.float32(65520), np.float32(0)) * code_max, np.float32)
    below = np.nextafter(below, np.float32(0))
    above = np.full((1, 3), np.float32(65520) * np.float32(code_max))

    assert encode_rows(format, below).scales[0, 0] == 0x7BFF
    with pytest.raises(EncodeError):
        encode_rows(format, above)


@pytest.mark.parametrize("format", GROUPED_FORMATS)
def test_half_of_the_smallest_subnormal_scale_is_rescued(format: TensorFormat) -> None:
    row = np.full((1, 1), GROUPED[format].code_max * 2.0**-25, np.float32)

    planes = encode_rows(format, row)

    assert planes.scales[0, 0] == 0x0001
    assert not planes.scales[0, 1:].any()


@pytest.mark.parametrize("format", GROUPED_FORMATS)
@pytest.mark.parametrize("block", [1, 3, 7])
def test_row_blocks_at_their_spans_give_the_whole_payload(format: TensorFormat, block: int) -> None:
    matrix = np.random.default_rng(5).standard_normal((11, 200)).astype(np.float32)
    geometry = RowSplitGeometry(format, *matrix.shape)
    payload = np.zeros(geometry.payload_bytes, np.uint8)

    for first in range(0, len(matrix), block):
        planes = encode_rows(format, matrix[first : first + block])
        parts: tuple[npt.NDArray[Any], ...] = planes
        for span, part in zip(geometry.row_spans(first, len(planes.base)), parts, strict=True):
            payload[span.offset : span.offset + span.nbytes] = part.reshape(-1).view(np.uint8)

    assert payload.tobytes() == encode_matrix(format, matrix).tobytes()


@pytest.mark.parametrize("format", GROUPED_FORMATS)
def test_rows_beyond_one_internal_block_encode_alike(format: TensorFormat) -> None:
    row = np.random.default_rng(6).standard_normal((1, 64)).astype(np.float32)
    tall = np.repeat(row, 2500, axis=0)

    planes = encode_rows(format, tall)

    single = encode_rows(format, row)
    np.testing.assert_array_equal(planes.base, np.repeat(single.base, 2500, axis=0))
    np.testing.assert_array_equal(planes.high, np.repeat(single.high, 2500, axis=0))
    np.testing.assert_array_equal(planes.scales, np.repeat(single.scales, 2500, axis=0))


def test_error_names_the_row_of_the_whole_block() -> None:
    tall = np.ones((3000, 128), np.float32)
    tall[2999, 70] = np.nan

    with pytest.raises(EncodeError, match="row 2999, columns from 64"):
        encode_rows(TensorFormat.Q4, tall)


@pytest.mark.parametrize("format", GROUPED_FORMATS)
def test_bf16_and_f16_sources_widen_exactly(format: TensorFormat) -> None:
    values = np.random.default_rng(7).standard_normal((3, 150)).astype(np.float32)
    bf16, f16 = f32_to_bf16(values), values.astype(np.float16)

    from_bf16, from_f16 = encode_matrix(format, bf16), encode_matrix(format, f16)

    assert from_bf16.tobytes() == encode_matrix(format, bf16_to_f32(bf16)).tobytes()
    assert from_f16.tobytes() == encode_matrix(format, f16.astype(np.float32)).tobytes()


@pytest.mark.parametrize("format", GROUPED_FORMATS)
def test_non_contiguous_rows_encode_like_a_copy(format: TensorFormat) -> None:
    wide = np.random.default_rng(8).standard_normal((4, 256)).astype(np.float32)
    strided = wide[::-2, ::2]

    assert (
        encode_matrix(format, strided).tobytes() == encode_matrix(format, strided.copy()).tobytes()
    )


@pytest.mark.parametrize("format", GROUPED_FORMATS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_any_bytes_decode_to_codes_that_pack_back(
    format: TensorFormat, data: st.DataObject
) -> None:
    rows, columns = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 200))
    geometry = RowSplitGeometry(format, rows, columns)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    payload = rng.integers(0, 256, geometry.payload_bytes, np.uint8)
    planes = split_planes(geometry, payload)

    again = pack_codes(format, unpack_codes(format, planes), planes.scales)

    np.testing.assert_array_equal(again.base, planes.base)
    np.testing.assert_array_equal(again.high, planes.high)


@settings(max_examples=25, deadline=None)
@given(
    format=st.sampled_from(GROUPED_FORMATS),
    rows=st.lists(st.integers(0, 5), min_size=1, max_size=8),
)
def test_taken_rows_decode_to_the_parents_rows(format: TensorFormat, rows: list[int]) -> None:
    matrix = np.random.default_rng(9).standard_normal((6, 130)).astype(np.float32)
    payload = encode_matrix(format, matrix)

    taken = take_rows(RowSplitGeometry(format, 6, 130), payload, rows)

    values = decode_matrix(format, payload, 6, 130)[rows]
    np.testing.assert_array_equal(decode_matrix(format, taken, len(rows), 130), values)


def test_decode_rows_of_a_span_equals_the_rows_of_the_whole() -> None:
    matrix = np.random.default_rng(10).standard_normal((5, 300)).astype(np.float32)
    planes = encode_rows(TensorFormat.Q6, matrix)
    part = Planes(planes.base[1:3], planes.high[1:3], planes.scales[1:3])

    values = decode_rows(TensorFormat.Q6, part, 300)

    np.testing.assert_array_equal(values, decode_rows(TensorFormat.Q6, planes, 300)[1:3])


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_bf16_rounding_is_nearest_even_and_keeps_nan(bits: int) -> None:
    value = np.array([bits], np.uint32).view(np.float32)

    word = f32_to_bf16(value)
    back = float(bf16_to_f32(word)[0])

    if np.isnan(value[0]):
        assert np.isnan(back)
        assert (int(word[0]) >> 15) == bits >> 31
    else:
        candidates = [(bits >> 16) & 0xFFFF, ((bits >> 16) + 1) & 0xFFFF]
        remainder = bits & 0xFFFF
        up = remainder > 0x8000 or (remainder == 0x8000 and bool(candidates[0] & 1))
        assert int(word[0]) == candidates[up]


def test_every_bf16_word_survives_a_round_trip() -> None:
    every = np.arange(65536, dtype=np.uint32).astype(np.uint16)
    is_nan = ((every & 0x7F80) == 0x7F80) & ((every & 0x7F) != 0)

    back = f32_to_bf16(bf16_to_f32(every))

    np.testing.assert_array_equal(back, np.where(is_nan, every | 0x40, every))


@settings(max_examples=20, deadline=None)
@given(matrix=matrices(limit=1e6), head=st.integers(1, 140))
def test_kv_int8_is_w8_arithmetic_on_64_dims(matrix: npt.NDArray[np.float32], head: int) -> None:
    vectors = matrix[:, :head]

    codes, scales = encode_int8_g64(vectors)

    dims = vectors.shape[1]
    assert codes.shape == vectors.shape
    assert scales.shape == (len(vectors), -(-dims // 64))
    for row, start in np.ndindex(*scales.shape):
        group = [Fraction(float(v)) for v in vectors[row, start * 64 : start * 64 + 64]]
        scale, expected = encode_group(group, DEFINITIONS["W8G32_F16S"])
        assert Fraction(float(scales[row, start])) == scale
        assert codes[row, start * 64 : start * 64 + 64].tolist() == expected


def test_kv_int8_keeps_the_outer_shape_and_decodes_by_scale_times_code() -> None:
    vectors = np.random.default_rng(11).standard_normal((2, 3, 256)).astype(np.float32)

    codes, scales = encode_int8_g64(vectors)
    values = decode_int8_g64(codes, scales)

    assert scales.shape == (2, 3, 4)
    wide = scales.astype(np.float32)[..., None] * codes.reshape(2, 3, 4, 64).astype(np.float32)
    np.testing.assert_array_equal(values, wide.reshape(2, 3, 256))
    # Half a step of the scale, plus the scale's own rounding (11 bits) at code 127.
    tolerance = np.repeat(scales.astype(np.float64), 64, axis=-1) * (0.5 + 127 * 2.0**-11)
    assert (np.abs(values - vectors) <= tolerance).all()


def test_kv_int8_refuses_values_that_are_not_finite() -> None:
    vectors = np.zeros((2, 64), np.float32)
    vectors[1, 3] = np.inf

    with pytest.raises(EncodeError, match="row 1"):
        encode_int8_g64(vectors)
