"""Damaged shards, headers and indexes: a clear error, and nothing left behind."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.checkpoint_files import (
    INDEX,
    copy_checkpoint,
    read_tensors,
    shard_checkpoint,
    write_tensors,
)
from tests.support.failing_conversion import failing_conversion


def _sharded(tmp_path: Path) -> tuple[Path, list[Path]]:
    folder = copy_checkpoint("tiny-dense", tmp_path / "checkpoint")
    return folder, shard_checkpoint(folder, 2)


def _edit_index(folder: Path, edit: Callable[[dict[str, str]], object]) -> None:
    index = json.loads((folder / INDEX).read_bytes())
    edit(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


def test_missing_shard_is_named_with_its_tensors(tmp_path: Path) -> None:
    folder, shards = _sharded(tmp_path)
    shards[1].unlink()

    message = failing_conversion(folder, tmp_path)

    assert "1 of 2 files are missing (model-00002-of-00002.safetensors)" in message
    assert "61 of 123 tensors" in message


def test_all_missing_shards_are_named_at_once(tmp_path: Path) -> None:
    folder, shards = _sharded(tmp_path)
    for shard in shards:
        shard.unlink()

    message = failing_conversion(folder, tmp_path)

    assert "00001-of-00002" in message
    assert "00002-of-00002" in message
    assert "123 of 123 tensors" in message


def test_shard_cut_short_by_one_byte_is_refused(tmp_path: Path) -> None:
    folder, shards = _sharded(tmp_path)
    content = shards[1].read_bytes()
    shards[1].write_bytes(content[:-1])

    message = failing_conversion(folder, tmp_path)

    assert f"is cut short: {len(content) - 1} bytes, its header describes {len(content)}" in message


def test_shard_with_trailing_bytes_is_refused(tmp_path: Path) -> None:
    folder, shards = _sharded(tmp_path)
    shards[0].write_bytes(shards[0].read_bytes() + b"\0")

    assert "bytes after its last tensor" in failing_conversion(folder, tmp_path)


def test_header_longer_than_any_file_is_refused(tmp_path: Path) -> None:
    folder, shards = _sharded(tmp_path)
    shards[0].write_bytes((1 << 63).to_bytes(8, "little") + shards[0].read_bytes()[8:])

    assert "claims a header of 9223372036854775808 bytes" in failing_conversion(folder, tmp_path)


def test_text_pointer_instead_of_a_shard_is_recognised(tmp_path: Path) -> None:
    folder, shards = _sharded(tmp_path)
    pointer = (
        "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 1234567890\n"
    )
    shards[0].write_text(pointer)

    assert f"is a text pointer of {len(pointer)} bytes" in failing_conversion(folder, tmp_path)


@pytest.mark.parametrize("content", [b"", b"1234567", b"\0" * 8, b"\1" + b"\0" * 7 + b"["])
def test_file_without_a_header_is_refused(tmp_path: Path, content: bytes) -> None:
    folder = copy_checkpoint("tiny-dense", tmp_path / "checkpoint")
    (folder / "model.safetensors").write_bytes(content)

    assert "model.safetensors: the file" in failing_conversion(folder, tmp_path)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"[1]", "not JSON"),
        (b'{"a":\xff}', "valid JSON"),
        (b'{"a": {"dtype": "F32", "shape": [1]}}', "exactly dtype, shape and data_offsets"),
        (b'{"a": {"dtype": "F33", "shape": [1], "data_offsets": [0, 4]}}', "unknown type"),
        (b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}', "shape"),
        (b'{"a": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}}', "shape"),
        (b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}', "offsets"),
        (b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}', "covers -4 bytes"),
        (b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}', "needs 8"),
        (
            b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},'
            b' "b": {"dtype": "F32", "shape": [1], "data_offsets": [2, 6]}}',
            "overlaps",
        ),
        (
            b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},'
            b' "a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}',
            "twice",
        ),
        (b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}', "unused bytes"),
    ],
)
def test_corrupt_header_is_refused(tmp_path: Path, header: bytes, reason: str) -> None:
    folder = copy_checkpoint("tiny-dense", tmp_path / "checkpoint")
    content = len(header).to_bytes(8, "little") + header + bytes(8)
    (folder / "model.safetensors").write_bytes(content)

    assert reason in failing_conversion(folder, tmp_path)


def test_index_without_any_shard_names_them(tmp_path: Path) -> None:
    folder = copy_checkpoint("tiny-dense", tmp_path / "checkpoint")
    (folder / "model.safetensors").unlink()
    (folder / INDEX).write_text('{"weight_map": {"a": "x.safetensors", "b": "x.safetensors"}}')

    assert "1 of 1 files are missing (x.safetensors), and with them 2 of 2" in failing_conversion(
        folder, tmp_path
    )


def test_one_file_under_two_names_is_refused(tmp_path: Path) -> None:
    folder, shards = _sharded(tmp_path)
    shards[1].unlink()
    shards[1].symlink_to(shards[0])

    message = failing_conversion(folder, tmp_path)

    assert f"names one file twice, as {shards[0].name} and {shards[1].name}" in message


def test_index_that_repeats_a_tensor_is_refused(tmp_path: Path) -> None:
    folder, _ = _sharded(tmp_path)
    text = (folder / INDEX).read_text()
    first = '"model.language_model.norm.weight": "model-00001-of-00002.safetensors"'
    (folder / INDEX).write_text(text.replace('"weight_map": {', '"weight_map": {' + first + ","))

    assert "'model.language_model.norm.weight' twice" in failing_conversion(folder, tmp_path)


def test_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    folder, shards = _sharded(tmp_path)
    first, second = read_tensors(shards[0]), read_tensors(shards[1])
    name = next(iter(first))
    write_tensors(shards[1], second | {name: first[name]})

    assert f"tensor {name!r} is in {shards[0].name} and in {shards[1].name}" in failing_conversion(
        folder, tmp_path
    )


@pytest.mark.parametrize("shard", ["../x.safetensors", "a/b.safetensors", "weights.bin", "", 3])
def test_index_naming_no_plain_shard_is_refused(tmp_path: Path, shard: object) -> None:
    folder = copy_checkpoint("tiny-dense", tmp_path / "checkpoint")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": shard}}))

    assert "a shard is a plain *.safetensors file" in failing_conversion(folder, tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": []}'])
def test_unusable_index_is_refused(tmp_path: Path, content: str) -> None:
    folder = copy_checkpoint("tiny-dense", tmp_path / "checkpoint")
    (folder / INDEX).write_text(content)

    assert INDEX in failing_conversion(folder, tmp_path)


def test_tensor_the_index_promises_and_the_shard_lacks_is_named(tmp_path: Path) -> None:
    folder, shards = _sharded(tmp_path)
    _edit_index(folder, lambda index: index.update({"model.extra": shards[0].name}))

    assert "lacks 1 tensors that the index places there: model.extra" in failing_conversion(
        folder, tmp_path
    )


def test_tensor_the_index_does_not_know_is_named(tmp_path: Path) -> None:
    folder, _ = _sharded(tmp_path)
    _edit_index(folder, lambda index: index.pop("model.language_model.norm.weight"))

    assert "does not place there: model.language_model.norm.weight" in failing_conversion(
        folder, tmp_path
    )


def test_shards_without_an_index_are_named(tmp_path: Path) -> None:
    folder, shards = _sharded(tmp_path)
    (folder / INDEX).unlink()

    message = failing_conversion(folder, tmp_path)

    assert "model.safetensors is missing" in message
    assert shards[0].name in message
