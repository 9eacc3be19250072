"""Artifact and report appear together or not at all."""

import errno
import os
from pathlib import Path

import pytest

from ninfer.artifact.writer import ArtifactWriter
from ninfer.convert.conversion import convert
from ninfer.convert.plan import ConvertOptions
from tests.support.golden import GOLDEN
from tools.convert.__main__ import main

SOURCE = GOLDEN / "tiny-dense" / "checkpoint"
ARTIFACT, REPORT = "m.ninfer", "m.conversion.json"


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _fill(folder: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    for name in names:
        (folder / name).write_bytes(f"old {name}".encode())
    return _contents(folder)


OLDER = pytest.mark.parametrize("older", [(), (ARTIFACT,), (ARTIFACT, REPORT)])


@OLDER
def test_report_that_cannot_be_written_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, older: tuple[str, ...]
) -> None:
    before = _fill(tmp_path, older)
    write_text = Path.write_text

    def full(path: Path, *arguments: str) -> int:
        write_text(path, "{")
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_text", full)

    assert main([str(SOURCE), str(tmp_path / ARTIFACT), "--force"]) == 1
    assert _contents(tmp_path) == before


@OLDER
@pytest.mark.parametrize("refused", [ARTIFACT, REPORT])
def test_refused_rename_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, older: tuple[str, ...], refused: str
) -> None:
    before = _fill(tmp_path, older)
    replace = os.replace
    refusals = [refused]

    def refusing(source: Path, target: Path) -> None:
        if target.name in refusals:
            refusals.clear()
            raise PermissionError(errno.EPERM, "Operation not permitted", str(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", refusing)

    assert main([str(SOURCE), str(tmp_path / ARTIFACT), "--force"]) == 1
    assert refusals == []
    assert _contents(tmp_path) == before


def test_interrupt_at_the_last_moment_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _fill(tmp_path, (ARTIFACT, REPORT))

    def interrupted(writer: ArtifactWriter) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ArtifactWriter, "commit", interrupted)

    with pytest.raises(KeyboardInterrupt):
        convert(ConvertOptions(source=SOURCE, output=tmp_path / ARTIFACT, is_forced=True))
    assert _contents(tmp_path) == before


def test_both_older_files_are_replaced_and_nothing_else_stays(tmp_path: Path) -> None:
    before = _fill(tmp_path, (ARTIFACT, REPORT))

    assert main([str(SOURCE), str(tmp_path / ARTIFACT), "--force"]) == 0

    after = _contents(tmp_path)
    assert after.keys() == before.keys()
    assert all(after[name] != before[name] for name in before)


def test_path_that_is_not_utf8_can_be_reported(tmp_path: Path) -> None:
    output = tmp_path / os.fsdecode(b"m\xff.ninfer")

    assert main([str(SOURCE), str(output)]) == 0
    assert output.is_file()
