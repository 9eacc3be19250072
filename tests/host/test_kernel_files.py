"""Whatever happens to a file of a compiled kernel, nothing but the kernel comes out of it."""

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.kernels.host import kernel_files
from ninfer.kernels.host.kernel_files import KernelCache, KernelFiles, sources_digest
from tests.support.full_disk import room_for

Key = tuple[Any, ...]
KEY: Key = (("int64", "array(float32, 2d, C)"), ("x86_64", "cpu", "+avx2"), ("code", ""))
OTHERS: tuple[Key, ...] = (
    (("int64", "array(float32, 2d, A)"), *KEY[1:]),
    (KEY[0], ("x86_64", "cpu", "+avx512f"), KEY[2]),
    (*KEY[:2], ("other code", "")),
)
DATA = ("signature", bytes(range(256)) * 4)


def files(folder: Path, base: str = "norm._rms", stamp: str = "sources") -> KernelFiles:
    return KernelFiles(folder, base, stamp)


def expect_healing(folder: Path) -> None:
    """Nothing comes out; what is then saved does, also in the next process."""
    assert files(folder).load(KEY) is None
    files(folder).save(KEY, DATA)
    assert files(folder).load(KEY) == DATA


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    kept = files(tmp_path / "new")
    assert kept.load(KEY) is None

    kept.save(KEY, DATA)

    assert files(tmp_path / "new").load(KEY) == DATA
    assert [path.name for path in (tmp_path / "new").iterdir()] == [kept.path(KEY).name]


@settings(max_examples=60)
@given(st.data())
def test_a_file_that_was_shortened_or_altered_anywhere_is_dropped_and_heals(
    data: st.DataObject,
) -> None:
    with tempfile.TemporaryDirectory() as name:
        files(Path(name)).save(KEY, DATA)
        path = files(Path(name)).path(KEY)
        content = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, len(content) - 1), label="place")
        match data.draw(st.sampled_from(["cut", "flip", "zeros", "insert", "append"])):
            case "cut":
                del content[place:]
            case "flip":
                content[place] ^= 1 << data.draw(st.integers(0, 7), label="bit")
            case "zeros":
                content[place:] = bytes(len(content) - place + 1)
            case "insert":
                content.insert(place, 0)
            case _:
                content += b"."
        path.write_bytes(content)

        expect_healing(Path(name))


@pytest.mark.parametrize("other", OTHERS)
def test_a_file_of_another_key_in_its_place_is_dropped_and_heals(
    tmp_path: Path, other: Key
) -> None:
    files(tmp_path).save(other, ("other", b""))
    files(tmp_path).path(other).replace(files(tmp_path).path(KEY))

    expect_healing(tmp_path)


def test_a_file_of_other_sources_or_another_compiler_is_dropped_and_heals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files(tmp_path, stamp="older").save(KEY, ("older", b""))
    expect_healing(tmp_path)

    monkeypatch.setattr(kernel_files, "_COMPILER", "another")
    expect_healing(tmp_path)


def test_a_file_of_another_kernel_in_its_place_is_dropped_and_heals(tmp_path: Path) -> None:
    other = files(tmp_path, base="norm._other")
    other.save(KEY, ("other", b""))
    other.path(KEY).replace(files(tmp_path).path(KEY))

    expect_healing(tmp_path)


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_file_that_others_may_write_is_dropped_and_heals(tmp_path: Path, mode: int) -> None:
    files(tmp_path).save(KEY, ("of whoever wrote it", b""))
    files(tmp_path).path(KEY).chmod(mode)

    expect_healing(tmp_path)


def test_others_may_never_write_what_is_kept(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        files(tmp_path / "new").save(KEY, DATA)
    finally:
        os.umask(before)

    kept = files(tmp_path / "new").path(KEY)
    assert [path.stat().st_mode & 0o777 for path in (kept, kept.parent)] == [0o644, 0o755]
    assert files(tmp_path / "new").load(KEY) == DATA


def test_a_file_that_cannot_be_unpickled_any_more_is_dropped_and_heals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(kernel_files, "dumps", lambda _: b"cno_such_module\nname\n.")
        files(tmp_path).save(KEY, DATA)

    expect_healing(tmp_path)


def test_it_is_known_what_is_kept_whole(tmp_path: Path) -> None:
    kept = files(tmp_path)
    assert not kept.holds_any()
    kept.save(KEY, DATA)
    assert kept.holds_any()
    assert kept.holds(KEY)
    assert not kept.holds(OTHERS[0])

    kept.path(KEY).write_bytes(kept.path(KEY).read_bytes()[:-1])

    assert not kept.holds_any()
    assert not kept.holds(KEY)


def test_a_kernel_whose_source_is_not_there_is_not_kept(tmp_path: Path) -> None:
    code = compile("def kernel(x):\n    return x", str(tmp_path / "gone.py"), "exec")
    scope: dict[str, Any] = {}
    exec(code, scope)

    with pytest.raises(OSError, match="gone"):
        KernelCache(scope["kernel"])


def test_kernels_of_several_argument_types_do_not_replace_one_another(tmp_path: Path) -> None:
    for other in OTHERS[:2]:
        files(tmp_path).save(other, other)
    files(tmp_path).save(KEY, DATA)

    assert files(tmp_path).load(KEY) == DATA
    assert [files(tmp_path).load(other) for other in OTHERS[:2]] == list(OTHERS[:2])


def test_full_disk_keeps_nothing_and_breaks_nothing(tmp_path: Path) -> None:
    with room_for(100):
        files(tmp_path).save(KEY, DATA)

    assert list(tmp_path.iterdir()) == []
    expect_healing(tmp_path)


@pytest.mark.parametrize("obstacle", ["folder is a file", "file is a folder"])
def test_what_cannot_be_written_is_not_kept(tmp_path: Path, obstacle: str) -> None:
    folder = tmp_path / "folder"
    if obstacle == "folder is a file":
        folder.write_bytes(b"")
    else:
        files(folder).path(KEY).mkdir(parents=True)
        (files(folder).path(KEY) / "below").write_bytes(b"")

    files(folder).save(KEY, DATA)

    assert files(folder).load(KEY) is None


def test_flush_forgets_this_kernel_only(tmp_path: Path) -> None:
    files(tmp_path).save(KEY, DATA)
    files(tmp_path, base="norm._other").save(KEY, DATA)

    files(tmp_path).flush()

    assert files(tmp_path).load(KEY) is None
    assert files(tmp_path, base="norm._other").load(KEY) == DATA


def test_digest_changes_with_every_source(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("1")
    (tmp_path / "two.py").write_text("2")
    seen = {sources_digest(tmp_path)}

    for name, text in (("one.py", "3"), ("two.py", ""), ("three.py", "2")):
        (tmp_path / name).write_text(text)
        sources_digest.cache_clear()
        seen.add(sources_digest(tmp_path))

    assert len(seen) == 4
