import dataclasses
import importlib
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from numba import cuda, float32, uint32, uint64

from ninfer.cli.exit_codes import ExitCode
from ninfer.cli.main import main
from ninfer.cuda import linker, ptx, translation
from ninfer.cuda import module as kernel_module
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param, source_digest
from ninfer.cuda.module import (
    BLOCK_SHARED,
    TARGETS,
    Figures,
    KernelCache,
    Recipe,
    build,
    complaints,
    figures_of,
    recipes,
)
from ninfer.errors import DeviceUnavailable, InvariantError

ADDRESSES = (Param.ADDRESS, Param.ADDRESS)


@device_function
def doubled(word: Any) -> Any:
    return word + word


@device_function
def tripled(word: Any) -> Any:
    return word + word + word


def make_first(pair: Any) -> Any:
    @device_function
    def first(word: Any) -> Any:
        return pair(word, uint32(0)).word

    return first


def make_kernel(constant: int, inner: Any = doubled, name: str = "probe") -> Kernel:
    def probe(source: int, target: int) -> None:
        ptx.release_successor()
        ptx.wait_for_predecessor()
        word = inner(ptx.load_u32(source)) + uint32(constant)
        ptx.store_u32(target, word)

    return Kernel(name, probe, ADDRESSES, threads=32, max_registers=32)


def make_spilling_kernel() -> Kernel:
    size = 300

    def probe(source: int, target: int) -> None:
        ptx.wait_for_predecessor()
        values = cuda.local.array(size, float32)
        for i in range(size):
            values[i] = ptx.load_f32(source + uint64(4 * i))
        ptx.store_f32(target, values[int(ptx.load_i32(target))])

    return Kernel("spilling", probe, ADDRESSES, threads=32, max_registers=4)


def test_kernel_becomes_a_cubin_under_its_own_name() -> None:
    compiled = build(make_kernel(1), "sm_90")

    assert compiled.cubin.startswith(b"\x7fELF")
    assert b".text.probe\0" in compiled.cubin
    assert 0 < compiled.figures.registers <= 32
    assert complaints(make_kernel(1), compiled.figures) == []


@pytest.mark.parametrize("target", ["sm_80", "sm_100", "sm_120"])
def test_kernel_with_dependent_launch_compiles_for_other_targets(target: str) -> None:
    assert build(make_kernel(1), target).cubin.startswith(b"\x7fELF")


def test_local_memory_and_a_broken_budget_are_complaints() -> None:
    kernel = make_spilling_kernel()

    found = complaints(kernel, build(kernel, "sm_90").figures)

    assert [message.split(": ")[0] for message in found] == ["spilling", "spilling"]
    assert "local" in found[0]
    assert "declared 4" in found[1]


def test_a_kernel_that_waits_for_no_predecessor_is_refused() -> None:
    def probe(target: int) -> None:
        ptx.store_u32(target, uint32(1))

    kernel = Kernel("hasty", probe, (Param.ADDRESS,), threads=32, max_registers=32)

    with pytest.raises(InvariantError, match="'hasty' never waits"):
        build(kernel, "sm_90")


def test_unknown_target_is_refused() -> None:
    with pytest.raises(InvariantError, match="sm_30"):
        build(make_kernel(1), "sm_30")


def test_text_the_linker_refuses_is_an_error_with_its_words() -> None:
    with pytest.raises(InvariantError, match="bad input"):
        linker.link_ptx(b"rubbish", "probe", ["-arch=sm_90"])


def test_log_without_figures_is_refused() -> None:
    with pytest.raises(InvariantError):
        figures_of("info    : 8 bytes gmem")


def test_digest_follows_constants_and_inner_functions() -> None:
    kernels = [make_kernel(1), make_kernel(2), make_kernel(1, tripled), make_kernel(1, name="b")]

    digests = [source_digest(kernel) for kernel in kernels]

    assert len(set(digests)) == 4
    assert source_digest(make_kernel(1)) == digests[0]


def test_digest_follows_the_order_of_fields() -> None:
    kernels = []
    for fields in ("word other", "other word"):
        pair = namedtuple("Pair", fields)  # type: ignore[misc]  # the order is what is tested
        kernels.append(make_kernel(1, make_first(pair)))

    first, second = (source_digest(kernel) for kernel in kernels)

    assert first != second


def test_digest_follows_an_instruction() -> None:
    first = ptx.define("mov.b32 $0, $1;", [uint32], [uint32])
    second = ptx.define("not.b32 $0, $1;", [uint32], [uint32])

    assert source_digest(make_kernel(1, first)) != source_digest(make_kernel(1, second))


def test_only_the_users_folder_takes_what_others_compile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    own = kernel_module.default_folder()

    assert KernelCache(own).is_users
    assert not KernelCache(tmp_path).is_users
    assert not KernelCache(own, "another toolchain").is_users
    monkeypatch.setattr("os.access", lambda *_: False)
    assert not KernelCache(own).is_users


def test_kernels_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        make_kernel(1).threads = 64  # type: ignore[misc]
    assert np.isfinite(make_kernel(1).threads)


def kernel_with(min_blocks: int, shared_bytes: int = 0) -> Kernel:
    made = make_kernel(1)
    return Kernel(made.name, made.function, made.params, made.threads, 32, shared_bytes, min_blocks)


@pytest.mark.parametrize(
    ("target", "min_blocks", "tried"),
    [
        ("sm_90", 3, ["3"]),
        ("sm_80", 3, ["3", "2", "1", "3 careful", "2 careful", "1 careful"]),
        ("sm_120", 1, ["1", "1 careful"]),
        ("sm_89", 0, ["0", "0 careful"]),
    ],
)
def test_only_the_tuned_target_insists_on_its_blocks(
    target: str, min_blocks: int, tried: list[str]
) -> None:
    found = recipes(kernel_with(min_blocks), target)

    assert [f"{r.min_blocks}{' careful' if r.options else ''}" for r in found] == tried


def test_recipes_are_tried_until_nothing_spills(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def compiled(kernel: Kernel, target: str, recipe: Recipe) -> kernel_module.Compiled:
        tried.append(recipe.min_blocks)
        figures = Figures(64, 8 if recipe.min_blocks > 2 else 0, 0, 0)
        return kernel_module.Compiled(kernel.name, target, b"", figures)

    monkeypatch.setattr(kernel_module, "_build", compiled)

    found = build(kernel_with(4), "sm_80")

    assert tried == [4, 3, 2]
    assert not found.figures.is_local


def make_shuffling_kernel() -> Kernel:
    """Every sum crosses lanes while 64 others wait in registers."""
    size = 64

    def probe(source: int, target: int) -> None:
        values = cuda.local.array(size, float32)
        for i in range(size):
            values[i] = ptx.load_f32(source + uint64(4 * i))
        for _ in range(ptx.load_i32(target)):
            for i in range(size):
                values[i] += cuda.shfl_xor_sync(0xFFFFFFFF, values[i], 1)
        for i in range(size):
            ptx.store_f32(target + uint64(4 * i), values[i])

    return Kernel("shuffling", probe, ADDRESSES, threads=32, max_registers=255)


@pytest.mark.parametrize("target", ["sm_80", "sm_89"])
def test_a_shuffle_calls_no_function_before_sm_90(target: str) -> None:
    compiled = build(make_shuffling_kernel(), target)

    assert b".text.shuffling\0" in compiled.cubin
    assert b"shflsync" not in compiled.cubin
    assert not compiled.figures.is_local


def test_bitcode_leaves_the_shared_text_as_it_was() -> None:
    kernel = make_kernel(1)
    alone = translation.ptx_text(make_kernel(1), (9, 0), 0)

    translation.bitcode(kernel, 2)
    text = translation.ptx_text(kernel, (9, 0), 0)

    assert b"griddepcontrol.wait" in text
    assert text == alone


def test_blocks_of_a_multiprocessor_follow_the_recipe() -> None:
    kernel = kernel_with(3)

    found = {count: translation.ptx_text(kernel, (9, 0), count) for count in (3, 2)}

    assert all(b".minnctapersm %d" % count in text for count, text in found.items())


@pytest.mark.parametrize("target", TARGETS)
def test_more_shared_memory_than_a_block_has_is_a_complaint(target: str) -> None:
    most, static = BLOCK_SHARED[target], 1024
    figures = Figures(32, 0, 0, static)

    assert complaints(kernel_with(1, most - static), figures, target) == []
    (found,) = complaints(kernel_with(1, most - static + 1), figures, target)
    assert f"a block has {most}" in found


@pytest.fixture
def _misfit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Behave like numba-cuda 0.30 beside NumPy 2.5, of which it misses a function."""

    imported = importlib.import_module

    def refuse(name: str) -> Any:
        if name.startswith("numba.cuda"):
            raise AttributeError("module 'numpy' has no attribute 'row_stack'")
        return imported(name)

    translation.expect_compiler.cache_clear()
    monkeypatch.setattr(importlib, "import_module", refuse)
    monkeypatch.setattr(translation, "version", lambda name: f"of-{name}")
    yield
    translation.expect_compiler.cache_clear()


@pytest.mark.usefixtures("_misfit")
def test_compiler_that_does_not_load_beside_numpy_names_both_and_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(DeviceUnavailable) as refused:
        KernelCache(tmp_path).compiled(make_kernel(77, name="misfit"), "sm_90")

    for part in ("numba-cuda of-numba-cuda", "NumPy of-numpy", "row_stack", ".[cuda]"):
        assert part in str(refused.value)


@pytest.mark.usefixtures("_misfit")
def test_command_that_compiles_says_that_the_compiler_does_not_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["compile", "--model-id", "qwen3.5-0.8b", "--output", str(tmp_path / "kernels")])

    assert code is ExitCode.DEVICE
    assert "error: numba-cuda of-numba-cuda compiles nothing" in capsys.readouterr().err
