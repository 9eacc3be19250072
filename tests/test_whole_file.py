"""A file is replaced whole or not at all, and drafts do not stay."""

from pathlib import Path

import pytest

from ninfer.whole_file import replace_file
from tests.support.full_disk import room_for


def test_file_is_replaced_and_readable_as_the_umask_says(tmp_path: Path) -> None:
    path, plain = tmp_path / "file", tmp_path / "plain"
    plain.write_bytes(b"")
    path.write_bytes(b"old")

    replace_file(path, b"new")

    assert path.read_bytes() == b"new"
    assert path.stat().st_mode == plain.stat().st_mode
    assert len(list(tmp_path.iterdir())) == 2


def test_full_disk_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    with room_for(100), pytest.raises(OSError, match="too large"):
        replace_file(path, bytes(1 << 16))

    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("file", b"old")]


def test_folder_in_the_way_is_an_error_without_a_draft(tmp_path: Path) -> None:
    (tmp_path / "file" / "below").mkdir(parents=True)

    with pytest.raises(IsADirectoryError):
        replace_file(tmp_path / "file", b"new")

    assert [one.name for one in tmp_path.iterdir()] == ["file"]
