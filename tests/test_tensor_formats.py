"""Stored formats against the golden payloads and the published sizes, and what they refuse."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ninfer.errors import ShapeError
from ninfer.tensor import TensorFormat
from ninfer.tensor_formats import (
    GROUPED,
    DirectGeometry,
    EncodeError,
    RowSplitGeometry,
    assemble,
    decode_direct,
    decode_matrix,
    encode_direct,
    encode_matrix,
    encode_rows,
    encoded_bytes,
    f32_to_bf16,
    geometry_of,
    pack_codes,
    split_planes,
    take_rows,
    unpack_codes,
)
from tests.support.golden import GOLDEN

FOLDER = GOLDEN / "artifact" / "tensors"
INDEX: list[dict[str, Any]] = json.loads((GOLDEN / "artifact" / "index.json").read_text())[
    "tensors"
]
GROUPED_FORMATS = sorted(GROUPED, key=lambda format: format.value)
DIRECT_DTYPES = {
    TensorFormat.BF16: np.uint16,
    TensorFormat.FP32: np.float32,
    TensorFormat.I32: np.int32,
}


def cases(*, having: str = "bytes", **wanted: object) -> list[Any]:
    """Index entries that have a member and equal the wanted ones."""
    return [
        pytest.param(entry, id=entry["name"])
        for entry in INDEX
        if having in entry and all(entry.get(key) == value for key, value in wanted.items())
    ]


ENCODED = cases(having="encoder", encoder="MAXABS_F16_RECIP_RNE_V1")
ALL_CODES = cases(having="encoder", encoder=None)
DERIVED = cases(having="derived_from")
REJECTED = [
    pytest.param(entry, member, id=f"{entry['name']}-{member}")
    for entry in INDEX
    if "expect" in entry
    for member in entry["members"]
]
DIRECT = cases(layout="contiguous-le-v1")


def payload_of(name: str) -> npt.NDArray[np.uint8]:
    return np.fromfile(FOLDER / f"{name}.bin", np.uint8)


def arrays_of(name: str) -> dict[str, npt.NDArray[Any]]:
    with np.load(FOLDER / f"{name}.npz") as arrays:
        return dict(arrays)


def words(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Bits, so that signed zeros and NaN payloads count."""
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))


def test_every_golden_tensor_is_tested() -> None:
    covered = [*ENCODED, *ALL_CODES, *DERIVED, *DIRECT]
    names = {case.values[0]["name"] for case in covered} | {
        entry["name"] for entry in INDEX if "expect" in entry
    }

    assert names == {entry["name"] for entry in INDEX}
    assert {Path(path).stem for path in FOLDER.glob("*.bin")} <= names


@pytest.mark.parametrize("entry", ENCODED)
def test_golden_source_encodes_to_the_golden_payload(entry: dict[str, Any]) -> None:
    source = arrays_of(entry["name"])["source_f32"]

    payload = encode_matrix(TensorFormat(entry["format"]), source)

    assert payload.tobytes() == payload_of(entry["name"]).tobytes()


@pytest.mark.parametrize("entry", ENCODED)
def test_golden_payload_decodes_to_golden_codes_scales_and_values(entry: dict[str, Any]) -> None:
    format, (rows, columns) = TensorFormat(entry["format"]), entry["shape"]
    expected, payload = arrays_of(entry["name"]), payload_of(entry["name"])

    planes = split_planes(RowSplitGeometry(format, rows, columns), payload)
    values = decode_matrix(format, payload, rows, columns)

    np.testing.assert_array_equal(unpack_codes(format, planes), expected["codes_i8"])
    np.testing.assert_array_equal(planes.scales, expected["scales_u16"])
    np.testing.assert_array_equal(words(values), words(expected["dequant_f32"]))
    np.testing.assert_array_equal(f32_to_bf16(values), expected["dequant_bf16_words"])


@pytest.mark.parametrize("entry", ALL_CODES)
def test_all_legal_codes_pack_and_unpack(entry: dict[str, Any]) -> None:
    format, (rows, columns) = TensorFormat(entry["format"]), entry["shape"]
    arrays, geometry = arrays_of(entry["name"]), RowSplitGeometry(format, rows, columns)

    payload = assemble(geometry, pack_codes(format, arrays["codes_i8"], arrays["scales_u16"]))

    assert payload.tobytes() == payload_of(entry["name"]).tobytes()
    np.testing.assert_array_equal(
        unpack_codes(format, split_planes(geometry, payload)), arrays["codes_i8"]
    )


@pytest.mark.parametrize("entry", DERIVED)
def test_rows_become_a_stand_alone_payload(entry: dict[str, Any]) -> None:
    parent = next(other for other in INDEX if other["name"] == entry["derived_from"])
    geometry = RowSplitGeometry(TensorFormat(entry["format"]), *parent["shape"])

    payload = take_rows(geometry, payload_of(parent["name"]), entry["rows"])

    assert payload.tobytes() == payload_of(entry["name"]).tobytes()


@pytest.mark.parametrize("entry", [*ENCODED, *ALL_CODES, *DERIVED])
def test_geometry_gives_the_golden_sizes_and_offsets(entry: dict[str, Any]) -> None:
    geometry = RowSplitGeometry(TensorFormat(entry["format"]), *entry["shape"])
    base, high, scale = geometry.spans

    assert {
        "k_pad": geometry.padded_columns,
        "groups_per_row": geometry.groups_per_row,
        "base_offset": base.offset,
        "base_bytes": base.nbytes,
        "high_offset": high.offset,
        "high_bytes": high.nbytes,
        "scale_offset": scale.offset,
        "scale_bytes": scale.nbytes,
        "payload_bytes": geometry.payload_bytes,
    } == entry["geometry"]
    assert geometry.payload_bytes == entry["bytes"]


@pytest.mark.parametrize(("entry", "member"), REJECTED)
def test_sources_that_have_no_encoding_are_refused(entry: dict[str, Any], member: str) -> None:
    source = arrays_of(entry["name"])[member]

    with pytest.raises(EncodeError, match=r"row \d+, columns from \d+"):
        encode_matrix(TensorFormat(entry["format"]), source)


@pytest.mark.parametrize("entry", DIRECT)
def test_direct_words_survive_bit_for_bit(entry: dict[str, Any]) -> None:
    format, shape = TensorFormat(entry["format"]), tuple(entry["shape"])
    source = arrays_of(entry["name"])["words"].view(DIRECT_DTYPES[format])

    payload = encode_direct(format, source)
    back = decode_direct(format, payload_of(entry["name"]), shape)

    assert payload.tobytes() == payload_of(entry["name"]).tobytes()
    np.testing.assert_array_equal(words(back), words(source))
    assert encoded_bytes(format, shape) == entry["bytes"]


@pytest.mark.parametrize(
    ("format", "shape", "nbytes"),
    [
        (TensorFormat.Q5, (2, 130), 528),
        (TensorFormat.Q4, (2, 130), 272),
        (TensorFormat.W8, (2, 130), 544),
        (TensorFormat.Q4, (7168, 5120), 19_496_960),
        (TensorFormat.Q5, (7168, 5120), 24_084_480),
        (TensorFormat.Q4, (34816, 5120), 94_699_520),
        (TensorFormat.Q5, (5120, 17408), 58_490_880),
        (TensorFormat.Q6, (248320, 5120), 993_280_000),
        (TensorFormat.W8, (14336, 5120), 77_987_840),
        (TensorFormat.Q5, (1152, 4304), 3_290_112),
        (TensorFormat.BF16, (), 2),
        (TensorFormat.I32, (3, 5), 60),
    ],
)
def test_encoded_sizes_are_the_published_ones(
    format: TensorFormat, shape: tuple[int, ...], nbytes: int
) -> None:
    assert encoded_bytes(format, shape) == nbytes


def test_worked_q5_group_has_the_published_bytes() -> None:
    codes = np.zeros((1, 2, 64), np.int8)
    codes[0, 0, :8] = [1, -1, 15, -16, 0, 7, -8, 2]

    planes = pack_codes(TensorFormat.Q5, codes, np.zeros((1, 2), np.uint16))

    assert planes.base[0, :4].tobytes() == bytes.fromhex("f10f7028")
    assert planes.high[0, 0] == 0x4A


@pytest.mark.parametrize(
    ("format", "shape"),
    [
        (TensorFormat.Q4, (4,)),
        (TensorFormat.Q4, ()),
        (TensorFormat.W8, (1, 2, 3)),
        (TensorFormat.Q5, (0, 3)),
        (TensorFormat.BF16, (3, 0)),
        (TensorFormat.I32, (-1,)),
    ],
)
def test_shapes_a_format_cannot_store_are_refused(
    format: TensorFormat, shape: tuple[int, ...]
) -> None:
    with pytest.raises(ShapeError):
        geometry_of(format, shape)


def test_direct_formats_convert_nothing() -> None:
    with pytest.raises(ShapeError):
        encode_direct(TensorFormat.BF16, np.zeros(3, np.float32))
    with pytest.raises(ShapeError):
        encode_direct(TensorFormat.FP32, np.zeros(3, np.float64))
    with pytest.raises(ShapeError):
        encode_direct(TensorFormat.I32, np.zeros(3, np.int64))
    with pytest.raises(ShapeError):
        encode_direct(TensorFormat.Q4, np.zeros(3, np.uint16))


def test_grouped_formats_take_no_other_source_type() -> None:
    with pytest.raises(ShapeError, match="float64"):
        encode_matrix(TensorFormat.Q4, np.zeros((1, 4)))  # type: ignore[arg-type] # the point
    with pytest.raises(ShapeError, match="rank"):
        encode_rows(TensorFormat.Q4, np.zeros(4, np.float32))


def test_payload_of_the_wrong_size_is_refused() -> None:
    payload = np.zeros(271, np.uint8)

    with pytest.raises(ShapeError, match="272"):
        split_planes(RowSplitGeometry(TensorFormat.Q4, 2, 130), payload)
    with pytest.raises(ShapeError, match="542"):
        decode_direct(TensorFormat.BF16, payload, (271,))


def test_row_spans_stay_inside_the_matrix() -> None:
    geometry = RowSplitGeometry(TensorFormat.Q4, 4, 128)

    assert [span.nbytes for span in geometry.row_spans(4, 0)] == [0, 0, 0]
    with pytest.raises(ShapeError):
        geometry.row_spans(3, 2)
    with pytest.raises(ShapeError):
        geometry.row_spans(-1, 1)


def test_direct_geometry_takes_no_grouped_format() -> None:
    with pytest.raises(ShapeError):
        DirectGeometry(TensorFormat.Q4, (2, 2))
