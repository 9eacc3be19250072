"""The text schedule of real models as a card would launch it: operands, room and kernels fit."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

import ninfer.kernels.cuda as table
from ninfer.compilation import declared_kernels
from ninfer.cuda.kernel_source import Kernel
from ninfer.models.package import GROUPWISE_INT
from ninfer.models.qwen_hybrid import text
from ninfer.models.qwen_hybrid.activations import activation_bytes, carve_activations
from ninfer.models.qwen_hybrid.inventory import ExpectedObject, ObjectGroup
from ninfer.models.qwen_hybrid.residency import (
    direct_dtype,
    is_matrix,
    resident_bytes,
    stored_format,
)
from ninfer.models.qwen_hybrid.synthetic import synthetic_model
from ninfer.models.qwen_hybrid.text import TextCaches, TextColumns, TextModel
from ninfer.models.qwen_hybrid.weights import text_weights
from ninfer.ops.context import OpContext
from ninfer.program import kv_planes, state_planes
from ninfer.tensor import DType, Matrix, Tensor

MODELS = ("qwen3.6-27b", "qwen3.6-35b-a3b")
TARGETS = {True: "sm_90", False: "sm_80"}
LAYERS = 4  # three of a kind, one of the other
PAGES = 128


class Card:
    """A device of nothing but addresses, and its stream, which notes what is launched."""

    num_multiprocessors = 132
    activation_dtype = DType.BF16

    def __init__(self, *, has_warpgroups: bool) -> None:
        self.has_warpgroups = self.has_clusters = has_warpgroups
        self.shared_bytes = (227 if has_warpgroups else 163) << 10
        self.names: set[str] = set()
        self._next = 1 << 30
        self.scratch = self.take((384 << 20,), DType.U8)
        self.counters = self.take((1 << 14,), DType.U32)

    def take(self, shape: Any, dtype: DType) -> Tensor:
        tensor = Tensor(self._next, dtype, tuple(shape))
        self._next += -(-tensor.nbytes // 256) * 256
        return tensor

    def num_clusters(self, kernel: Kernel) -> int:
        return self.num_multiprocessors // kernel.cluster_blocks

    def launch(self, kernel: Kernel, grid: Any, args: Any, **options: Any) -> None:
        assert len(args) == len(kernel.params)
        assert min(grid) > 0
        self.names.add(kernel.name)


contract = cache(synthetic_model)


def make_model(
    ctx: OpContext,
    card: Any,
    model_id: str,
    weights_id: str = GROUPWISE_INT,
    kv_dtype: DType = DType.BF16,
) -> TextModel:
    """A registered model of few layers on the card."""
    bound = contract(model_id, weights_id)
    matrices: dict[str, Matrix] = {}
    tensors: dict[str, Tensor] = {}
    for stored in bound.objects[ObjectGroup.TEXT]:
        place(ctx, card, stored, matrices, tensors)
    geometry = replace(bound.geometry, layers=bound.geometry.layers[:LAYERS])
    weights = text_weights(replace(bound, geometry=geometry), matrices, tensors)
    table_of_pages = card.take((8, PAGES), DType.I32)
    kv = kv_planes.take_planes(card, geometry, PAGES, kv_dtype, table_of_pages)
    state = state_planes.take_planes(card, geometry, 9, 1, DType.BF16)
    return TextModel(geometry, weights, TextCaches(kv.layers, state.layers))


def place(
    ctx: OpContext,
    card: Card,
    stored: ExpectedObject,
    matrices: dict[str, Matrix],
    tensors: dict[str, Tensor],
) -> None:
    if not is_matrix(stored):
        tensors[stored.name] = card.take(stored.shape, direct_dtype(stored))
        return
    rows, width = stored.shape
    octets = card.take((resident_bytes(ctx, stored),), DType.U8)
    matrices[stored.name] = Matrix(stored_format(stored), octets, rows, width, 0, rows)


def run(model_id: str, count: int, schedule: Any, *, has_warpgroups: bool) -> set[str]:
    """Names of the kernels of a chunk or a round of so many columns."""
    card: Any = Card(has_warpgroups=has_warpgroups)
    ctx = OpContext(card, card, table)
    model = make_model(ctx, card, model_id)
    sequences = count if schedule is text.decode_columns else 1
    columns = TextColumns(
        tokens=card.take((count,), DType.I32),
        positions=card.take((count,), DType.I32),
        rope_positions=card.take((3, count), DType.I32),
        table_rows=card.take((count,), DType.I32),
        slots=card.take((sequences,), DType.I32),
        fold=card.take((sequences,), DType.I32),
    )
    nbytes = activation_bytes(ctx, model.geometry, model.weights, count)
    storage = card.take((nbytes,), DType.U8)
    activations = carve_activations(ctx, model.geometry, model.weights, count, storage)

    schedule(ctx, model, columns, activations)
    text.output_logits(
        ctx, model, activations, card.take((1, model.geometry.vocab_rows), DType.F32)
    )
    return set(card.names)


@cache
def declared(model_id: str, target: str) -> frozenset[str]:
    return frozenset(kernel.name for kernel in declared_kernels([model_id], target))


@pytest.mark.parametrize("has_warpgroups", [True, False])
@pytest.mark.parametrize("model_id", MODELS)
@pytest.mark.parametrize(
    ("count", "schedule"),
    [
        (1, text.decode_columns),
        (8, text.decode_columns),
        (1, text.prefill_columns),
        (9, text.prefill_columns),
        (128, text.prefill_columns),
        (129, text.prefill_columns),
        (4096, text.prefill_columns),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_a_model_launches_is_declared_and_its_operands_are_what_ops_expect(
    model_id: str, count: int, schedule: Any, has_warpgroups: bool
) -> None:
    names = run(model_id, count, schedule, has_warpgroups=has_warpgroups)

    assert len(names) > 5
    assert names <= declared(model_id, TARGETS[has_warpgroups])


def test_no_bytes_lie_between_products_of_many_columns_and_their_gating() -> None:
    """Of 4,096 columns of the 27B, gates and ups alone were 285 MB."""
    card: Any = Card(has_warpgroups=True)
    ctx = OpContext(card, card, table)
    model = make_model(ctx, card, MODELS[0])

    nbytes = activation_bytes(ctx, model.geometry, model.weights, 4096)

    assert nbytes < 320e6
