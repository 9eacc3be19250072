"""A state slot is the same slice of every plane, and nothing else."""

from collections.abc import Iterator
from dataclasses import fields

import numpy as np
import pytest

from ninfer.device import host_array
from ninfer.host.device import HostDevice, HostStream
from ninfer.ops.gated_delta import GatedDeltaState
from ninfer.program.memory_plan import arena_bytes
from ninfer.program.state_planes import StatePlanes, plane_shapes, take_planes
from ninfer.tensor import DType, Tensor
from tests.support.model_cases import open_case

SLOTS = 3


@pytest.fixture
def made() -> Iterator[tuple[StatePlanes, HostStream]]:
    with open_case("tiny-dense") as case, HostDevice() as device:
        geometry = case.bound.geometry
        shapes = plane_shapes(geometry, SLOTS, 2, DType.F32)
        arena = device.arena("state", arena_bytes(shapes))
        planes = take_planes(arena, geometry, SLOTS, 2, DType.F32)
        # Each element tells its slot: distinct bytes, none of them zero.
        for plane in _all_planes(planes):
            _bytes(plane)[:] = [[1], [2], [3]]
        yield planes, device.stream()
        arena.close()


def _all_planes(planes: StatePlanes) -> list[Tensor]:
    names = [field.name for field in fields(GatedDeltaState)]
    return [getattr(layer, name) for layer in planes.layers for name in names] + [planes.counts]


def _bytes(plane: Tensor) -> np.ndarray:
    return host_array(Tensor(plane.address, DType.U8, (SLOTS, plane.nbytes // SLOTS)))


def test_a_copied_slot_equals_its_source_in_every_plane(
    made: tuple[StatePlanes, HostStream],
) -> None:
    planes, stream = made

    planes.copy(stream, 0, 2)

    assert len(_all_planes(planes)) == 6 * 7 + 1
    for plane in _all_planes(planes):
        assert [set(_bytes(plane)[slot]) for slot in range(SLOTS)] == [{1}, {2}, {1}]


def test_a_cleared_slot_is_empty_and_the_others_are_untouched(
    made: tuple[StatePlanes, HostStream],
) -> None:
    planes, stream = made

    planes.clear(stream, 1)

    for layer in planes.layers:
        for plane in (layer.matrices, layer.window):
            assert [set(_bytes(plane)[slot]) for slot in range(SLOTS)] == [{1}, {0}, {3}]
    assert [set(_bytes(planes.counts)[slot]) for slot in range(SLOTS)] == [{1}, {0}, {3}]


def test_planes_have_the_extents_of_the_geometry(made: tuple[StatePlanes, HostStream]) -> None:
    planes, _ = made

    layer = planes.layers[0]

    assert layer.matrices.shape == (SLOTS, 4, 32, 32)
    assert layer.window.shape == (SLOTS, 3, 256)
    assert layer.record_x.shape == (SLOTS, 2, 256)
    assert layer.record_k.shape == (SLOTS, 2, 64)
    assert layer.record_v.shape == (SLOTS, 2, 128)
    assert layer.record_g.shape == layer.record_beta.shape == (SLOTS, 2, 4)
    assert planes.counts.shape == (SLOTS, 544)
