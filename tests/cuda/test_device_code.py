"""Functions that mean the same are compiled once, others by themselves."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from numba import uint32
from numba.cuda import compiler

from ninfer.cuda import device_code, ptx, translation
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param

step = 5


def make_scaled(factor: Any) -> Any:
    @device_function
    def scaled(word: Any) -> Any:
        return word * factor

    return scaled


def make_outer(inner: Any) -> Any:
    @device_function
    def outer(word: Any) -> Any:
        return inner(word) + uint32(1)

    return outer


def make_stepped() -> Any:
    @device_function
    def stepped(word: Any) -> Any:
        return word + uint32(step)

    return stepped


def make_kernel(function: Any) -> Kernel:
    def probe(source: int, target: int) -> None:
        ptx.store_u32(target, function(ptx.load_u32(source)))

    return Kernel("probe", probe, (Param.ADDRESS, Param.ADDRESS), threads=32, max_registers=32)


def code_of(function: Any) -> bytes:
    """PTX but for the number that the compiler gives to the kernel's module."""
    text = translation.ptx_text(make_kernel(function), (9, 0), 0)
    return b"\n".join(line for line in text.splitlines() if line)


def make_defaulted(default: int) -> Any:
    @device_function
    def defaulted(word: Any, factor: Any = default, *, added: Any = default) -> Any:
        return word * factor + added

    return defaulted


def test_functions_with_other_defaults_are_no_twins() -> None:
    assert make_defaulted(1).twin is make_defaulted(1).twin
    assert make_defaulted(1).twin is not make_defaulted(2).twin


@pytest.mark.parametrize(
    "factor", [3, -0.5, True, None, "word", (1, 2.5), np.float32(3), np.arange(3)]
)
def test_functions_of_one_text_and_equal_values_are_twins(factor: Any) -> None:
    made = make_scaled(factor), make_scaled(factor)

    assert made[0] is not made[1]
    assert made[0].twin is made[1].twin
    assert make_outer(made[0]).twin is make_outer(made[1]).twin


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        (1, 1.0),
        (1, True),
        (0, False),
        (0.0, -0.0),
        (1.0, np.float32(1)),
        (np.int32(1), np.int64(1)),
        ((1, 2), (1, 2.0)),
        ((1, 2), [1, 2]),
        (np.zeros(2, np.int32), np.zeros(2, np.uint32)),
        (np.array([0.0]), np.array([-0.0])),
        (np.zeros((2, 1)), np.zeros((1, 2))),
    ],
    ids=repr,
)
def test_functions_of_other_values_are_no_twins(one: Any, other: Any) -> None:
    first, second = make_scaled(one), make_scaled(other)

    assert first.twin is not second.twin
    assert make_outer(first).twin is not make_outer(second).twin


def test_the_same_words_elsewhere_are_no_twin() -> None:
    @device_function
    def scaled(word: Any) -> Any:
        return word * step

    assert scaled.twin is not make_scaled(step).twin


def test_a_constant_of_the_module_is_one_of_the_values(monkeypatch: pytest.MonkeyPatch) -> None:
    before = code_of(make_stepped())
    monkeypatch.setattr("tests.cuda.test_device_code.step", 7)

    after = code_of(make_stepped())

    assert b", 5;" in before
    assert b", 7;" in after


def test_twins_are_compiled_once_and_give_the_same_code(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def compile_cuda(function: Any, *args: Any, **options: Any) -> Any:
        compiled.append(function.__name__)
        return compiler.compile_cuda(function, *args, **options)

    monkeypatch.setattr(device_code, "compile_cuda", compile_cuda)

    codes = [code_of(make_outer(make_scaled(factor))) for factor in (1001, 1001, 1002)]

    assert codes[0] == codes[1]
    assert b"1001" in codes[1]
    assert b"1002" in codes[2]
    assert compiled == ["outer", "scaled", "outer", "scaled"]
