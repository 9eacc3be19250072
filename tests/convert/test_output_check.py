"""Places that must not be written to: sources under any name, and what is no regular file."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.checkpoint_files import copy_checkpoint
from tests.support.golden import GOLDEN
from tools.convert.__main__ import main

SOURCE = GOLDEN / "tiny-dense" / "checkpoint"
MODES = [["--force"], ["--force", "--dry-run"]]


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def _hard_link(place: Path, target: Path) -> None:
    place.hardlink_to(target)


def _symbolic_link(place: Path, target: Path) -> None:
    place.symlink_to(target)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("link", [None, _hard_link, _symbolic_link])
@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"]
)
def test_source_file_is_never_the_output(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    link: Callable[[Path, Path], None] | None,
    mode: list[str],
) -> None:
    folder = copy_checkpoint("tiny-dense", tmp_path / "checkpoint")
    output = folder / name
    if link is not None:
        output = tmp_path / "m.ninfer"
        link(output, folder / name)
    before, inode = _contents(folder), os.lstat(output).st_ino

    assert main([str(folder), str(output), *mode]) == 2

    assert f"{output} is the file {folder / name} of the source" in capsys.readouterr().err
    assert _contents(folder) == before
    assert os.lstat(output).st_ino == inode


@pytest.mark.parametrize("mode", MODES)
def test_draft_and_ranking_are_sources_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: list[str]
) -> None:
    ranking, draft = tmp_path / "m.conversion.json", GOLDEN / "tiny-dense" / "dflash2"
    ranking.write_bytes(bytes(8 * 544))
    linked = tmp_path / "linked.ninfer"
    linked.symlink_to(draft / "model.safetensors")
    inputs = [str(SOURCE), "--draft", str(draft), "--ranking", str(ranking)]

    for output in (ranking, linked, tmp_path / "m.ninfer"):
        assert main([*inputs, str(output), *mode]) == 2
        assert "of the source; choose another output" in capsys.readouterr().err
    assert ranking.read_bytes() == bytes(8 * 544)
    assert {path.name for path in tmp_path.iterdir()} == {"m.conversion.json", "linked.ninfer"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["m.ninfer", "m.conversion.json"])
def test_pipe_and_folder_are_never_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, mode: list[str]
) -> None:
    arguments = [str(SOURCE), str(tmp_path / "m.ninfer"), *mode]
    os.mkfifo(tmp_path / name)
    assert main(arguments) == 2
    assert f"{tmp_path / name} is not a regular file" in capsys.readouterr().err
    assert (tmp_path / name).is_fifo()

    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    assert main(arguments) == 2
    assert f"{tmp_path / name} is a folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("mode", MODES)
def test_link_to_a_device_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: list[str]
) -> None:
    output = tmp_path / "m.ninfer"
    output.symlink_to("/dev/null")

    assert main([str(SOURCE), str(output), *mode]) == 2
    assert "is not a regular file" in capsys.readouterr().err
    assert output.is_symlink()


def test_link_to_nothing_counts_as_existing(tmp_path: Path) -> None:
    output = tmp_path / "m.ninfer"
    output.symlink_to(tmp_path / "absent")

    assert main([str(SOURCE), str(output)]) == 2
    assert output.is_symlink()
    assert main([str(SOURCE), str(output), "--force"]) == 0
    assert output.is_file()
    assert not output.is_symlink()


def test_dry_run_tells_that_force_will_be_needed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "m.ninfer"
    output.write_bytes(b"old")
    note = f"{output} exists: the conversion will be refused without --force"

    assert main([str(SOURCE), str(output), "--dry-run"]) == 0
    captured = capsys.readouterr()
    assert f"note: {note}" in captured.err
    assert note in json.loads(captured.out)["notes"]

    assert main([str(SOURCE), str(output), "--dry-run", "--force"]) == 0
    assert note not in json.loads(capsys.readouterr().out)["notes"]
    assert _contents(tmp_path) == {"m.ninfer": b"old"}


def test_name_too_long_for_the_report_is_seen_before_anything_is_written(tmp_path: Path) -> None:
    assert main([str(SOURCE), str(tmp_path / ("m" * 250))]) == 1
    assert list(tmp_path.iterdir()) == []
