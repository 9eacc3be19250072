"""Every row of the error table: golden malformed files, and one hand-made file for each trap."""

import json
from pathlib import Path
from typing import Any

import pytest

from ninfer.artifact.format import ArtifactCode, ArtifactError
from ninfer.artifact.reader import ArtifactReader
from ninfer.errors import RequestError
from tests.artifact.malformed_cases import ACCEPTED, CASES, PREFIX
from tests.support.artifact_files import MATRIX, NORM, with_member
from tests.support.golden import GOLDEN

FOLDER = GOLDEN / "artifact" / "malformed"
MANIFEST: list[dict[str, Any]] = json.loads((FOLDER / "manifest.json").read_text())["cases"]

BINDER_CODES = {
    ArtifactCode.UNKNOWN_MODEL,
    ArtifactCode.UNKNOWN_WEIGHTS,
    ArtifactCode.MISSING_OBJECT,
    ArtifactCode.UNEXPECTED_OBJECT,
    ArtifactCode.WRONG_KIND,
    ArtifactCode.DESCRIPTOR_MISMATCH,
    ArtifactCode.SHORTLIST,
    ArtifactCode.RESOURCE_CONTENT,
}


def by_expectation(expect: str) -> list[Any]:
    return [pytest.param(case, id=case["file"]) for case in MANIFEST if case["expect"] == expect]


@pytest.mark.parametrize("case", by_expectation("reject"))
def test_golden_malformed_file_gives_its_code(case: dict[str, Any]) -> None:
    path = FOLDER / case["file"]

    with pytest.raises(ArtifactError) as caught:
        ArtifactReader.open(path)

    assert caught.value.code == case["code"]
    assert caught.value.path == path


@pytest.mark.parametrize("case", by_expectation("accept"))
def test_golden_odd_file_is_accepted(case: dict[str, Any]) -> None:
    with ArtifactReader.open(FOLDER / case["file"]) as reader:
        sizes = [len(reader.view(descriptor.name)) for descriptor in reader.objects]

        assert sizes == [descriptor.nbytes for descriptor in reader.objects]


@pytest.mark.parametrize("case", CASES)
def test_one_fault_gives_its_code(case: str, tmp_path: Path) -> None:
    code, content = CASES[case]
    path = tmp_path / "bad.ninfer"
    path.write_bytes(content)

    with pytest.raises(ArtifactError) as caught:
        ArtifactReader.open(path)

    assert caught.value.code == code
    assert caught.value.path == path
    str(caught.value).encode()  # messages never carry text that cannot be printed
    assert len(str(caught.value)) < 1500


def test_every_code_of_the_reader_has_a_case() -> None:
    assert {code for code, _ in CASES.values()} == set(ArtifactCode) - BINDER_CODES


@pytest.mark.parametrize("case", ACCEPTED)
def test_legal_oddity_is_accepted(case: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.ninfer"
    path.write_bytes(ACCEPTED[case])

    with ArtifactReader.open(path) as reader:
        assert reader.model_id == "example"


def test_messages_name_the_object_and_both_numbers(tmp_path: Path) -> None:
    path = tmp_path / "bad.ninfer"
    path.write_bytes(with_member(NORM, "bytes", 15))

    with pytest.raises(ArtifactError, match="'norm' stores 15 bytes; layout needs 8") as caught:
        ArtifactReader.open(path)

    assert caught.value.object == "norm"
    assert isinstance(caught.value, RequestError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("file", ["v3_single.ninfer", "v3_sharded.ninfer"])
def test_newer_file_is_told_apart_with_a_way_out(file: str) -> None:
    with pytest.raises(ArtifactError, match="version 3; this build reads 1 and 2") as caught:
        ArtifactReader.open(GOLDEN / "artifact" / "later" / file)

    assert caught.value.code == ArtifactCode.UNSUPPORTED_VERSION
    assert "older revision" in str(caught.value)


def test_later_formats_are_called_so(tmp_path: Path) -> None:
    path = tmp_path / "later.ninfer"
    path.write_bytes(with_member(MATRIX, "format", "NVFP4"))

    with pytest.raises(ArtifactError, match="later format"):
        ArtifactReader.open(path)


def test_directory_size_has_a_limit_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "huge.ninfer"
    with path.open("wb") as file:
        file.write(PREFIX + (2**28 + 1).to_bytes(8, "little"))
        file.truncate(2**29)

    with pytest.raises(ArtifactError) as caught:
        ArtifactReader.open(path)

    assert caught.value.code == ArtifactCode.JSON_LENGTH


def test_errors_of_the_operating_system_pass_through(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ArtifactReader.open(tmp_path / "absent.ninfer")
    with pytest.raises(IsADirectoryError):
        ArtifactReader.open(tmp_path)
