"""A page group is the same slice of every plane, and nothing else."""

import numpy as np
import pytest

from ninfer.config import KvDtype
from ninfer.device import host_array
from ninfer.errors import ConfigurationError
from ninfer.host.device import HostDevice
from ninfer.program.kv_planes import element_dtype, plane_shapes, take_planes
from ninfer.program.memory_plan import arena_bytes
from ninfer.tensor import DType, Tensor
from tests.support.model_cases import open_case

PAGES = 3


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.I8])
def test_a_copied_page_equals_its_source_in_every_plane(dtype: DType) -> None:
    with open_case("real-head-dense") as case, HostDevice() as device:
        geometry = case.bound.geometry
        arena = device.arena("kv", arena_bytes(plane_shapes(geometry, PAGES, dtype)) + 256)
        table = arena.take((1, PAGES), DType.I32)
        made = take_planes(arena, geometry, PAGES, dtype, table)
        planes = [
            plane
            for layer in made.layers
            for plane in (layer.keys, layer.values, layer.key_scales, layer.value_scales)
            if plane is not None
        ]
        for plane in planes:
            _bytes(plane)[:] = [[1], [2], [3]]

        made.copy_page(device.stream(), 2, 0)

        assert len(planes) == len(made.layers) * (4 if dtype is DType.I8 else 2)
        for plane in planes:
            assert [set(page) for page in _bytes(plane)] == [{3}, {2}, {3}]
        assert made.layers[0].keys.shape == (PAGES, 1, 64, 256)
        assert made.layers[0].block_table == table
        arena.close()


def test_int8_scales_stand_for_groups_of_64_dims() -> None:
    with open_case("real-head-dense") as case:
        shapes = plane_shapes(case.bound.geometry, PAGES, DType.I8)

    assert shapes[2] == ((PAGES, 1, 64, 4), DType.F16)


@pytest.mark.parametrize(
    ("asked", "dtype"),
    [
        (KvDtype.AUTO, DType.F32),
        (KvDtype.F32, DType.F32),
        (KvDtype.BF16, DType.BF16),
        (KvDtype.INT8_G64, DType.I8),
    ],
)
def test_the_host_has_every_kind_of_cache(asked: KvDtype, dtype: DType) -> None:
    assert element_dtype(asked, DType.F32, "host") is dtype


def test_only_the_host_has_a_float32_cache() -> None:
    assert element_dtype(KvDtype.AUTO, DType.BF16, "cuda") is DType.BF16
    with pytest.raises(ConfigurationError):
        element_dtype(KvDtype.F32, DType.BF16, "cuda")


def _bytes(plane: Tensor) -> np.ndarray:
    return host_array(Tensor(plane.address, DType.U8, (PAGES, plane.nbytes // PAGES)))
