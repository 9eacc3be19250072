"""Which mixtures of up to three tokens take two launches, by what a block may hold."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.compilation import kernel_shapes
from ninfer.kernels.cuda import expert_mix
from ninfer.tensor import DType, Matrix, Tensor, TensorFormat

HOPPER, SMALL = 227 << 10, 99 << 10
EXPERTS, CHOSEN, HIDDEN, SHARED = 256, 8, 2048, 512


def stream(shared_bytes: int) -> Any:
    """A stream of a device that gives a block so much shared memory."""
    return SimpleNamespace(shared_bytes=shared_bytes, scratch=Tensor(0, DType.U8, (1 << 28,)))


def matrix(format: TensorFormat, rows: int, width: int) -> Matrix:
    return Matrix(format, Tensor(0, DType.U8, (1,)), rows, width, 0, rows)


@pytest.mark.parametrize(
    ("shared_bytes", "width", "down", "is_mixed"),
    [
        (SMALL, 512, TensorFormat.Q5, True),
        (SMALL, 512, TensorFormat.Q6, True),
        (SMALL, 1024, TensorFormat.Q5, False),
        (SMALL, 1024, TensorFormat.Q6, False),
        (HOPPER, 1024, TensorFormat.Q6, True),
        (HOPPER, 2048, TensorFormat.Q6, False),
    ],
)
def test_a_mixture_of_larger_blocks_than_the_device_has_is_composed(
    shared_bytes: int, width: int, down: TensorFormat, is_mixed: bool
) -> None:
    gate_up = matrix(TensorFormat.Q4, EXPERTS * 2 * width, HIDDEN)
    shared_down = matrix(TensorFormat.W8, HIDDEN, SHARED)
    shapes = replace(
        kernel_shapes("qwen3.6-35b-a3b"), expert_width=width, block_shared_bytes=shared_bytes
    )

    operands = (gate_up, matrix(down, EXPERTS * HIDDEN, width), shared_down)
    found = [
        expert_mix.is_mixed(stream(shared_bytes), tokens, CHOSEN, *operands)
        for tokens in (1, 2, 3, 4)
    ]
    names = {kernel.name for kernel in expert_mix.declared(shapes)}

    assert found == [is_mixed, is_mixed, is_mixed, False]
    assert any(f"_down_ranked_{down.name.lower()}_" in name for name in names) is is_mixed
    assert all(k.dynamic_shared_bytes <= shared_bytes for k in expert_mix.declared(shapes))
