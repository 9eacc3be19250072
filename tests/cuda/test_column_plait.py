"""The image of columns, and the kernel that makes it, on the CPU."""

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.kernels.cuda import column_image, column_plait, device_functions, product_output
from ninfer.kernels.cuda.column_image import image_bytes, image_of
from ninfer.kernels.cuda.column_plait import make_plait, plait_grid
from ninfer.kernels.cuda.fragments import pack_columns
from ninfer.tensor_formats import f32_to_bf16
from tests.support import warpgroup_simulator as simulator

MODULES = (column_plait, column_image, device_functions, product_output)
POISON = 0xA5


def words(seed: int, *shape: int) -> npt.NDArray[np.uint16]:
    return f32_to_bf16(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def test_pairs_of_a_slab_lie_where_the_documentation_says() -> None:
    columns = np.arange(131 * 128, dtype=np.uint16).reshape(131, 128)
    image = image_of(columns).view(np.uint16)

    for column, slab, chunk, pair in ((0, 0, 0, 0), (5, 1, 2, 3), (127, 3, 1, 2), (130, 2, 3, 1)):
        block = column // 128 * 2 + slab // 2
        piece = 4 * (slab % 2) + pair
        at = block * 8192 + column % 128 * 64 + (piece ^ column % 8) * 8 + 2 * chunk
        first = 32 * slab + 8 * chunk + pair
        assert list(image[at : at + 2]) == [columns[column, first], columns[column, first + 4]]


def test_plaited_columns_are_the_image() -> None:
    x = words(2, 21, 200)
    block = pack_columns(x)
    at = -(-block.size // 256) * 256
    octets = np.full(at + image_bytes(len(x), 200), POISON, np.uint8)
    octets[: block.size] = block

    simulator.launch(
        MODULES,
        octets,
        make_plait(),
        plait_grid(len(x), 2),
        (simulator.GLOBAL, simulator.GLOBAL + at, 2),
    )

    touched = image_of(np.full((len(x), 256), 1, np.uint16)).view(np.uint16) == 1
    got = octets[at:].view(np.uint16)
    np.testing.assert_array_equal(got[touched], image_of(x).view(np.uint16)[touched])
