"""Activation buffers: disjoint while alive together, inside the storage, at any token count."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer.errors import ShapeError
from ninfer.host.device import HostDevice
from ninfer.models.package import DenseGeometry, Geometry
from ninfer.models.qwen_hybrid.activations import (
    DenseActivations,
    TextActivations,
    activation_bytes,
    carve_activations,
)
from ninfer.models.qwen_hybrid.weights import DenseFfn, MoeFfn, TextWeights
from ninfer.ops import linear
from ninfer.ops.context import OpContext, make_context
from ninfer.tensor import DType, LinearInput, Matrix, Tensor, TensorFormat
from tests.support.model_cases import open_case

BASE = 1 << 20
MOST_BETWEEN = 16
"""Columns that the device of these tests multiplies before it gates them."""


@pytest.fixture(scope="module", params=["tiny-dense", "real-head-moe"])
def geometry(request: pytest.FixtureRequest) -> Geometry:
    with open_case(request.param) as case:
        return case.bound.geometry


@pytest.fixture(scope="module")
def ctx() -> Iterator[OpContext]:
    with HostDevice(num_threads=1) as device:
        yield make_context(device, device.stream())


def gating(ctx: OpContext, *formats: TensorFormat) -> OpContext:
    """The same on a device that gates many columns of some formats in the product."""

    def gates_at_once(stream: object, num_columns: int, gate_up: Matrix) -> bool:
        return num_columns > MOST_BETWEEN and gate_up.format in formats

    table = SimpleNamespace(input_bytes=linear_inputs(ctx), gates_at_once=gates_at_once)
    return replace(ctx, kernels=cast(Any, SimpleNamespace(linear=table)))


def linear_inputs(ctx: OpContext) -> Any:
    return ctx.kernels.linear.input_bytes


def weights_of(geometry: Geometry, *formats: TensorFormat) -> TextWeights:
    """Layers with gates and ups of these formats in turn."""
    layers = []
    for index in range(len(geometry.layers)):
        ffn: Any = object.__new__(MoeFfn)
        if isinstance(geometry.mlp, DenseGeometry):
            rows, one = 2 * geometry.mlp.intermediate, formats[index % len(formats)]
            nowhere = Tensor(index, DType.U8, (1,))
            ffn = DenseFfn(Matrix(one, nowhere, rows, geometry.hidden, 0, rows), cast(Any, None))
        layers.append(SimpleNamespace(ffn=ffn))
    return cast(TextWeights, SimpleNamespace(layers=tuple(layers)))


def carve(
    ctx: OpContext, geometry: Geometry, weights: TextWeights, columns: int, nbytes: int
) -> TextActivations:
    storage = Tensor(BASE, DType.U8, (nbytes,))
    return carve_activations(ctx, geometry, weights, columns, storage)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(columns=st.integers(1, 700), gates=st.booleans())
def test_buffers_alive_together_are_disjoint_and_inside(
    ctx: OpContext, geometry: Geometry, columns: int, gates: bool
) -> None:
    ctx, weights = gating(ctx, *[TensorFormat.Q4] * gates), weights_of(geometry, TensorFormat.Q4)
    nbytes = activation_bytes(ctx, geometry, weights, columns)
    made = carve(ctx, geometry, weights, columns, nbytes)

    lasting = [made.residual, made.normed.storage]
    for phase in (made.attention, made.gated_delta, made.ffn):
        own = [getattr(phase, name) for name in phase.__dataclass_fields__]
        tensors = [one.storage if isinstance(one, LinearInput) else one for one in own]
        spans = sorted((one.address, one.address + one.nbytes) for one in [*lasting, *tensors])
        assert all(stop <= start for (_, stop), (start, _) in pairwise(spans))
        assert spans[0][0] >= BASE
        assert spans[-1][1] <= BASE + nbytes


@pytest.mark.parametrize("formats", [(), (TensorFormat.Q4,)])
@pytest.mark.parametrize("most", [MOST_BETWEEN, MOST_BETWEEN + 1, 60])
def test_fewer_columns_fit_the_storage_of_more(
    ctx: OpContext, geometry: Geometry, formats: tuple[TensorFormat, ...], most: int
) -> None:
    ctx, weights = gating(ctx, *formats), weights_of(geometry, TensorFormat.Q4)
    nbytes = activation_bytes(ctx, geometry, weights, most)

    for columns in range(1, most + 1):
        carve(ctx, geometry, weights, columns, nbytes)
    with pytest.raises(ShapeError):
        carve(ctx, geometry, weights, 2 * most + MOST_BETWEEN, nbytes)


def test_products_that_are_gated_at_once_have_no_bytes_between(ctx: OpContext) -> None:
    with open_case("tiny-dense") as case:
        geometry = case.bound.geometry
    weights = weights_of(geometry, TensorFormat.Q4, TensorFormat.BF16)
    partly, wholly = gating(ctx, TensorFormat.Q4), gating(ctx, TensorFormat.Q4, TensorFormat.BF16)

    def rows(ctx: OpContext, columns: int) -> int:
        made = carve(ctx, geometry, weights, columns, 1 << 24)
        assert isinstance(made.ffn, DenseActivations)
        assert made.ffn.gate_up.shape[1] == 2 * made.ffn.hidden.width
        return made.ffn.gate_up.shape[0]

    assert [rows(partly, columns) for columns in (MOST_BETWEEN, 60)] == [MOST_BETWEEN, 60]
    assert [rows(wholly, columns) for columns in (MOST_BETWEEN, 60)] == [MOST_BETWEEN, 0]


def test_storage_has_products_between_for_few_columns_and_not_for_many(ctx: OpContext) -> None:
    with open_case("tiny-dense") as case:
        geometry = case.bound.geometry
    assert isinstance(geometry.mlp, DenseGeometry)
    wide = replace(geometry, mlp=replace(geometry.mlp, intermediate=1 << 14))
    weights, gated = weights_of(wide, TensorFormat.Q4), gating(ctx, TensorFormat.Q4)
    between = 4 * MOST_BETWEEN * 2 * (1 << 14)
    features = linear.input_bytes(ctx, MOST_BETWEEN + 1, 1 << 14)

    few = activation_bytes(gated, wide, weights, MOST_BETWEEN)

    assert few == activation_bytes(ctx, wide, weights, MOST_BETWEEN) > between
    assert activation_bytes(gated, wide, weights, MOST_BETWEEN + 1) == few
    assert features < activation_bytes(gated, wide, weights, 1024) - few < 1024 * features
    assert activation_bytes(gated, wide, weights, 1024) < 4 * 1024 * 2 * (1 << 14)


def test_storage_that_is_too_small_is_refused(ctx: OpContext, geometry: Geometry) -> None:
    weights = weights_of(geometry, TensorFormat.Q4)
    nbytes = activation_bytes(ctx, geometry, weights, 16)

    with pytest.raises(ShapeError):
        carve(ctx, geometry, weights, 17, nbytes)


def test_the_ffn_phase_follows_the_geometry(ctx: OpContext, geometry: Geometry) -> None:
    weights = weights_of(geometry, TensorFormat.Q4)
    nbytes = activation_bytes(ctx, geometry, weights, 1)

    made = carve(ctx, geometry, weights, 1, nbytes)

    assert isinstance(made.ffn, DenseActivations) != geometry.is_moe
