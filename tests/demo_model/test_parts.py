"""A folder comes back from its parts as it was."""

from pathlib import Path

import pytest

from tools.demo_model import parts


def test_parts_are_small_and_join_to_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 4096)
    contents = {"a.bin": bytes(range(256)) * 40, "inner/b.txt": b"text", "inner/empty": b""}
    for name, content in contents.items():
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    found = parts.split(tmp_path / "source", tmp_path / "parts")
    code = parts.main(["join", *map(str, reversed(found)), str(tmp_path / "target")])

    assert code == 0
    assert len(found) > 2
    assert all(path.stat().st_size <= 4096 for path in found)
    target = tmp_path / "target"
    assert {
        str(path.relative_to(target)): path.read_bytes()
        for path in target.rglob("*")
        if path.is_file()
    } == contents


def test_other_arguments_are_refused_with_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert parts.main(["join", "only-one"]) == 2
    assert "split FOLDER OUT" in capsys.readouterr().err
