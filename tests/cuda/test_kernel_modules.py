"""Modules that simulators find: all that a kernel is written in, and no more."""

import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.compilation import declared_kernels
from ninfer.cuda.kernel_source import Kernel
from ninfer.kernels.cuda import device_functions, few_walk, group_products, held_walk, pair_product
from ninfer.kernels.cuda.pair_product import make_pair
from ninfer.kernels.cuda.pointwise import make_swiglu
from ninfer.tensor import TensorFormat
from tests.support.kernel_modules import modules_of


def names(kernel: Kernel) -> set[str]:
    return {module.__name__.rpartition(".")[2] for module in modules_of(kernel)}


def test_modules_of_functions_that_functions_call_are_found() -> None:
    found = modules_of(make_pair(TensorFormat.Q5))

    assert found[0] is pair_product
    assert {device_functions, few_walk, group_products, held_walk} <= set(found)


def test_modules_of_other_kernels_are_not() -> None:
    assert names(make_swiglu(True, False)) <= {"pointwise", "device_functions", "fragments"}


def test_every_declared_kernel_has_modules_of_kernels_only() -> None:
    for kernel in declared_kernels(["qwen3.6-27b"]):
        places = {module.__name__.rpartition(".")[0] for module in modules_of(kernel)}
        assert "ninfer.kernels.cuda" in places
        assert places <= {"ninfer.kernels.cuda", "ninfer.cuda"}, kernel.name
