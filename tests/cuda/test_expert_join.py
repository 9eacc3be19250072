"""Which mixtures of four to eight tokens take two launches."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.compilation import kernel_shapes
from ninfer.kernels.cuda import expert_join
from ninfer.tensor import DType, Matrix, Tensor, TensorFormat

HOPPER, SMALL = 227 << 10, 64 << 10
EXPERTS, CHOSEN, HIDDEN = 256, 8, 2048
Q4, Q5, W8 = TensorFormat.Q4, TensorFormat.Q5, TensorFormat.W8


def stream(shared_bytes: int) -> Any:
    """A stream of a device that gives a block so much shared memory."""
    return SimpleNamespace(shared_bytes=shared_bytes, scratch=Tensor(0, DType.U8, (1 << 28,)))


def matrix(format: TensorFormat, rows: int, width: int) -> Matrix:
    return Matrix(format, Tensor(0, DType.U8, (1,)), rows, width, 0, rows)


@pytest.mark.parametrize(
    ("shared_bytes", "width", "shared_width", "gate", "is_joined"),
    [
        (HOPPER, 512, 512, Q4, True),
        (HOPPER, 128, 512, Q4, True),
        (HOPPER, 112, 512, Q4, False),  # fewer tiles than a block has warps
        (HOPPER, 512, 1024, Q4, False),  # no room for two blocks
        (HOPPER, 512, 512, Q5, False),
        (SMALL, 512, 512, Q4, False),
    ],
)
def test_a_mixture_is_joined_where_its_blocks_find_room(
    shared_bytes: int, width: int, shared_width: int, gate: TensorFormat, is_joined: bool
) -> None:
    operands = (
        matrix(gate, EXPERTS * 2 * width, HIDDEN),
        matrix(Q5, EXPERTS * HIDDEN, width),
        matrix(W8, HIDDEN, shared_width),
    )
    shapes = replace(
        kernel_shapes("qwen3.6-35b-a3b"),
        expert_width=width,
        shared_width=shared_width,
        block_shared_bytes=shared_bytes,
    )

    found = [
        expert_join.is_joined(stream(shared_bytes), tokens, CHOSEN, *operands)
        for tokens in (3, 4, 8, 9)
    ]

    assert found == [False, is_joined, is_joined, False]
    if gate is Q4:
        assert bool(expert_join.declared(shapes)) is is_joined
