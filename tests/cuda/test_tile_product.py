import numpy as np
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.kernels.cuda.fragments import fragment_bytes, pack_columns
from ninfer.kernels.cuda.product_output import Output
from ninfer.kernels.cuda.tile_product import make_tile_product, tile_grid, tile_shape
from ninfer.kernels.cuda.weight_layout import WeightLayout, pack_weight
from ninfer.ops.linear_operands import WEIGHT_FORMATS
from ninfer.tensor import TensorFormat
from ninfer.tensor_formats import bf16_to_f32
from tests.support.oracles.linear import random_payload, weight_values
from tests.support.product_memory import bf16_words, bound
from tests.support.warp_simulator import GLOBAL, WarpSimulator


@pytest.mark.slow
@pytest.mark.parametrize("format", WEIGHT_FORMATS, ids=lambda f: f.name)
def test_kernel_text_multiplies_what_is_stored(format: TensorFormat) -> None:
    rng = np.random.default_rng(1)
    shape, columns, first_row, num_rows = (150, 700), 131, 19, 120
    payload = random_payload(rng, format, *shape)
    words = bf16_words(rng.standard_normal((columns, shape[1])).astype(np.float32))
    weight, block = pack_weight(format, payload, *shape), pack_columns(words)
    layout = WeightLayout(format, *shape)
    out = np.full((columns, num_rows + 3), np.nan, np.float32)
    at = -(-weight.size // 256) * 256
    at_out = at + -(-block.size // 256) * 256
    octets = np.full(at_out + out.nbytes, 0xA5, np.uint8)
    octets[: weight.size] = weight
    octets[at : at + block.size] = block
    octets[at_out:] = out.view(np.uint8).reshape(-1)

    tiles = tile_shape(format)
    assert tiles is not None
    WarpSimulator(octets).launch(
        make_tile_product(tiles),
        tile_grid(-(-(first_row + num_rows) // 16) - first_row // 16, columns),
        (
            GLOBAL,
            GLOBAL + layout.high_offset,
            GLOBAL + layout.scale_offset,
            GLOBAL + at,
            GLOBAL + at + fragment_bytes(columns, shape[1]),
            GLOBAL + at_out,
            layout.k_tiles,
            layout.row_tiles,
            first_row,
            num_rows,
            columns,
            num_rows + 3,
            2,
            int(Output.F32),
        ),
    )

    got = octets[at_out:].view(np.float32).reshape(out.shape)
    assert np.all(np.isnan(got[:, [0, 1, -1]]))
    values = weight_values(format, payload, *shape)[first_row : first_row + num_rows]
    x = bf16_to_f32(words)
    error = np.abs(got[:, 2:-1] - x.astype(np.float64) @ values.T)
    assert np.all(error <= bound(values, x))
