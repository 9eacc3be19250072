"""Activation buffers: disjoint while alive together, inside the storage, at any token count."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer.errors import ShapeError
from ninfer.host.device import HostDevice
from ninfer.models.package import Geometry
from ninfer.models.qwen_hybrid.activations import (
    DenseActivations,
    activation_bytes,
    carve_activations,
)
from ninfer.ops.context import OpContext, make_context
from ninfer.tensor import DType, LinearInput, Tensor
from tests.support.model_cases import open_case

BASE = 1 << 20


@pytest.fixture(scope="module", params=["tiny-dense", "real-head-moe"])
def geometry(request: pytest.FixtureRequest) -> Geometry:
    with open_case(request.param) as case:
        return case.bound.geometry


@pytest.fixture(scope="module")
def ctx() -> Iterator[OpContext]:
    with HostDevice(num_threads=1) as device:
        yield make_context(device, device.stream())


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(columns=st.integers(1, 700))
def test_buffers_alive_together_are_disjoint_and_inside(
    ctx: OpContext, geometry: Geometry, columns: int
) -> None:
    nbytes = activation_bytes(ctx, geometry, columns)
    made = carve_activations(ctx, geometry, columns, Tensor(BASE, DType.U8, (nbytes,)))

    lasting = [made.residual, made.normed.storage]
    for phase in (made.attention, made.gated_delta, made.ffn):
        own = [getattr(phase, name) for name in phase.__dataclass_fields__]
        tensors = [one.storage if isinstance(one, LinearInput) else one for one in own]
        spans = sorted((one.address, one.address + one.nbytes) for one in [*lasting, *tensors])
        assert all(stop <= start for (_, stop), (start, _) in pairwise(spans))
        assert spans[0][0] >= BASE
        assert spans[-1][1] <= BASE + nbytes


def test_fewer_columns_fit_the_storage_of_more(ctx: OpContext, geometry: Geometry) -> None:
    sizes = [activation_bytes(ctx, geometry, columns) for columns in (1, 8, 128, 1024)]

    assert sizes == sorted(sizes)


def test_storage_that_is_too_small_is_refused(ctx: OpContext, geometry: Geometry) -> None:
    nbytes = activation_bytes(ctx, geometry, 16)

    with pytest.raises(ShapeError):
        carve_activations(ctx, geometry, 17, Tensor(BASE, DType.U8, (nbytes,)))


def test_the_ffn_phase_follows_the_geometry(ctx: OpContext, geometry: Geometry) -> None:
    nbytes = activation_bytes(ctx, geometry, 1)

    made = carve_activations(ctx, geometry, 1, Tensor(BASE, DType.U8, (nbytes,)))

    assert isinstance(made.ffn, DenseActivations) != geometry.is_moe
