import numpy as np
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.kernels.cuda.weight_layout import WeightLayout, pack_weight
from ninfer.kernels.cuda.weight_repack import TILES, make_repack
from ninfer.ops.linear_operands import WEIGHT_FORMATS
from ninfer.tensor import TensorFormat
from ninfer.tensor_formats.geometry import RowSplitGeometry
from tests.support.oracles.linear import random_payload
from tests.support.warp_simulator import GLOBAL, WarpSimulator


@pytest.mark.parametrize("format", WEIGHT_FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize("shape", [(1, 1), (16, 128), (21, 333), (40, 130)])
def test_repacked_encoding_is_the_documented_layout(
    format: TensorFormat, shape: tuple[int, int]
) -> None:
    rows, columns = shape
    payload = random_payload(np.random.default_rng(rows), format, rows, columns)
    layout = WeightLayout(format, rows, columns)
    tiles = layout.row_tiles * layout.k_tiles
    at = -(-payload.size // 256) * 256
    octets = np.zeros(at + layout.nbytes, np.uint8)
    octets[: payload.size] = payload
    args: tuple[int, ...]
    if format is TensorFormat.BF16:
        args = (GLOBAL, GLOBAL + at, rows, layout.k_tiles, tiles, columns)
    else:
        geometry = RowSplitGeometry(format, rows, columns)
        planes = [GLOBAL, GLOBAL + geometry.high_offset, GLOBAL + geometry.scale_offset]
        args = (*planes, GLOBAL + at, rows, layout.k_tiles, tiles)

    WarpSimulator(octets, lanes=1).launch(make_repack(format), (-(-tiles // TILES), 1, 1), args)

    np.testing.assert_array_equal(octets[at:], pack_weight(format, payload, rows, columns))
