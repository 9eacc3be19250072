"""The folder of compiled kernels: what is found in it, what is built anew, and who shares it."""

import json
import multiprocessing
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")


from ninfer.cuda import module as kernel_module
from ninfer.cuda.kernel_source import Kernel
from ninfer.cuda.module import (
    Compiled,
    Figures,
    KernelCache,
    build,
)
from ninfer.errors import DeviceUnavailable
from tests.cuda.test_module import make_kernel
from tests.support.full_disk import room_for


class CountingBuild:
    """`build`, with its calls counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        monkeypatch.setattr(kernel_module, "build", self)

    def __call__(self, kernel: Kernel, target: str) -> Any:
        self.calls += 1
        return build(kernel, target)


def test_second_use_is_read_from_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = CountingBuild(monkeypatch)
    first = KernelCache(tmp_path / "new").compiled(make_kernel(1), "sm_90")

    second = KernelCache(tmp_path / "new").compiled(make_kernel(1), "sm_90")

    assert second == first
    assert counter.calls == 1


def test_another_constant_target_or_toolchain_is_built_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = CountingBuild(monkeypatch)
    cache = KernelCache(tmp_path)
    cache.compiled(make_kernel(1), "sm_90")

    cache.compiled(make_kernel(2), "sm_90")
    cache.compiled(make_kernel(1), "sm_80")
    monkeypatch.setattr(kernel_module, "toolchain", lambda: "another")
    cache.compiled(make_kernel(1), "sm_90")

    assert counter.calls == 4
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("damage", ["empty", "short", "flipped", "foreign", "text", "swapped"])
def test_damaged_entry_is_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    cache = KernelCache(tmp_path)
    good = cache.compiled(make_kernel(1), "sm_90")
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    other = build(make_kernel(2), "sm_90")
    kernel_module._write(tmp_path / "other", "0" * 64, other)
    flipped = bytearray(content)
    flipped[-100] ^= 1
    path.write_bytes(
        {
            "empty": b"",
            "short": content[:-1],
            "flipped": bytes(flipped),
            "foreign": good.cubin,
            "text": b'{"key": 3}\n',
            "swapped": (tmp_path / "other").read_bytes(),
        }[damage]
    )
    counter = CountingBuild(monkeypatch)

    again = cache.compiled(make_kernel(1), "sm_90")

    assert again == good
    assert counter.calls == 1
    assert path.read_bytes() == content


MADE = Compiled("norm", "sm_90", b"\x7fELF" + bytes(range(200)), Figures(32, 0, 0, 1024))


@settings(max_examples=100)
@given(st.data())
def test_an_entry_that_was_altered_anywhere_is_itself_or_none(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "norm"
        kernel_module._write(path, "k" * 64, MADE)
        content = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, len(content) - 1), label="place")
        match data.draw(st.sampled_from(["cut", "flip", "zeros", "digit"])):
            case "cut":
                del content[place:]
            case "flip":
                content[place] ^= 1 << data.draw(st.integers(0, 7), label="bit")
            case "zeros":
                content[place:] = bytes(len(content) - place)
            case _:  # of a figure, say
                content[place] = data.draw(st.sampled_from(b"0123456789"), label="digit")
        path.write_bytes(content)

        assert kernel_module._read(path, "k" * 64, "norm", "sm_90") in (None, MADE)


def test_altered_figures_are_noticed_and_entries_without_their_proof_still_read(
    tmp_path: Path,
) -> None:
    path = tmp_path / "norm"
    kernel_module._write(path, "k" * 64, MADE)
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"registers": 32', b'"registers": 33'))
    altered = kernel_module._read(path, "k" * 64, "norm", "sm_90")
    head, _, cubin = content.partition(b"\n")
    entry = json.loads(head)
    del entry["figures_sha256"]
    path.write_bytes(json.dumps(entry).encode() + b"\n" + cubin)

    assert altered is None
    assert kernel_module._read(path, "k" * 64, "norm", "sm_90") == MADE


def test_full_disk_keeps_nothing_and_breaks_nothing(tmp_path: Path) -> None:
    with room_for(100):
        kernel_module._write(tmp_path / "norm", "k" * 64, MADE)

    assert list(tmp_path.iterdir()) == []


def test_folder_that_cannot_be_written_still_gives_kernels(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    compiled = KernelCache(tmp_path / "file" / "below").compiled(make_kernel(1), "sm_90")

    assert compiled.cubin.startswith(b"\x7fELF")


def test_foreign_toolchain_reads_its_entries_and_builds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = kernel_module.toolchain()
    KernelCache(tmp_path).compiled(make_kernel(1), "sm_90")
    monkeypatch.setattr(kernel_module, "toolchain", lambda: "another")
    cache = KernelCache(tmp_path, here)

    found = cache.compiled(make_kernel(1), "sm_90")

    assert found.cubin.startswith(b"\x7fELF")
    with pytest.raises(DeviceUnavailable, match="another"):
        cache.compiled(make_kernel(2), "sm_90")


def _compile_into(folder: str) -> bytes:
    return KernelCache(Path(folder)).compiled(make_kernel(7), "sm_90").cubin


def test_a_folder_that_is_deleted_under_a_process_is_filled_again(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path / "kernels")
    first = cache.compiled(make_kernel(1), "sm_90")
    shutil.rmtree(cache.folder)

    again = cache.compiled(make_kernel(1), "sm_90")

    assert again.cubin == first.cubin
    assert cache.holds(make_kernel(1), "sm_90")


def test_two_processes_fill_one_folder(tmp_path: Path) -> None:
    first, folder = tmp_path / "first", tmp_path / "folder"
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.apply(_compile_into, [str(first)])  # from here on it has the compiler, as this one
        there = pool.apply_async(_compile_into, [str(folder)])
        here = _compile_into(str(folder))

        assert there.get() == here

    assert [path.suffix for path in folder.iterdir()] == [".kernel"]


def test_cache_lies_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    given = kernel_module.default_folder()
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    assert given == tmp_path / "ninfer" / "kernels"
    assert kernel_module.default_folder() == tmp_path / "home" / ".cache" / "ninfer" / "kernels"
