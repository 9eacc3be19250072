import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.kernels.cuda.fragments import fragment_bytes, pack_columns
from ninfer.kernels.cuda.product_output import Output
from ninfer.kernels.cuda.skinny_product import make_skinny
from ninfer.kernels.cuda.skinny_shape import Skinny
from ninfer.kernels.cuda.weight_layout import WeightLayout, pack_weight
from ninfer.ops.linear_operands import WEIGHT_FORMATS
from ninfer.tensor import TensorFormat
from ninfer.tensor_formats import bf16_to_f32
from tests.support.oracles.linear import random_payload, weight_values
from tests.support.product_memory import bf16_words, bound
from tests.support.warp_simulator import GLOBAL, WarpSimulator

every_format = pytest.mark.parametrize("format", WEIGHT_FORMATS, ids=lambda f: f.name)


def simulate(
    format: TensorFormat,
    payload: npt.NDArray[np.uint8],
    shape: tuple[int, int],
    words: npt.NDArray[np.uint16],
    *,
    rows: slice,
    row_tiles: int = 1,
    column_tiles: int = 1,
    stages: int = 3,
) -> npt.NDArray[np.float32]:
    """Products of rows with columns as the kernel makes them, between guard columns of NaN."""
    weight, columns = pack_weight(format, payload, *shape), pack_columns(words)
    layout = WeightLayout(format, *shape)
    num_rows, num_columns = rows.stop - rows.start, len(words)
    out = np.full((num_columns, num_rows + 3), np.nan, np.float32)
    at_columns = -(-weight.size // 256) * 256
    at_out = at_columns + -(-columns.size // 256) * 256
    octets = np.full(at_out + out.nbytes, 0xA5, np.uint8)
    octets[: weight.size] = weight
    octets[at_columns : at_columns + columns.size] = columns
    octets[at_out:] = out.view(np.uint8).reshape(-1)
    simulator = WarpSimulator(octets)
    block = Skinny(format, row_tiles, column_tiles, stages, 2)
    first_tile, last_tile = rows.start // 16, (rows.stop - 1) // 16
    base = GLOBAL + at_columns

    simulator.launch(
        make_skinny(block),
        block.grid(last_tile - first_tile + 1, num_columns),
        (
            GLOBAL,
            GLOBAL + layout.high_offset,
            GLOBAL + layout.scale_offset,
            base,
            base + fragment_bytes(num_columns, shape[1]),
            GLOBAL + at_out,
            layout.k_tiles,
            layout.row_tiles,
            rows.start,
            num_rows,
            num_columns,
            num_rows + 3,
            1,
            int(Output.F32),
        ),
    )

    np.testing.assert_array_equal(octets[: weight.size], weight)
    got = octets[at_out:].view(np.float32).reshape(out.shape)
    assert np.all(np.isnan(got[:, [0, -2, -1]]))
    return got[:, 1 : 1 + num_rows]


@every_format
@pytest.mark.parametrize(
    ("shape", "columns", "row_tiles", "column_tiles"),
    [
        ((16, 128), 1, 1, 1),
        ((40, 1152), 3, 2, 1),
        ((17, 300), 11, 2, 2),
        pytest.param((33, 2050), 26, 1, 4, marks=pytest.mark.slow),
    ],
)
def test_kernel_text_multiplies_what_is_stored(
    format: TensorFormat, shape: tuple[int, int], columns: int, row_tiles: int, column_tiles: int
) -> None:
    rng = np.random.default_rng(columns)
    payload = random_payload(rng, format, *shape)
    words = bf16_words(rng.standard_normal((columns, shape[1])).astype(np.float32))

    got = simulate(
        format,
        payload,
        shape,
        words,
        rows=slice(0, shape[0]),
        row_tiles=row_tiles,
        column_tiles=column_tiles,
    )

    values, x = weight_values(format, payload, *shape), bf16_to_f32(words)
    assert np.all(np.abs(got - x.astype(np.float64) @ values.T) <= bound(values, x))


@every_format
def test_rows_and_columns_of_any_block_have_the_same_bits(format: TensorFormat) -> None:
    rng = np.random.default_rng(5)
    payload = random_payload(rng, format, 50, 1300)
    words = bf16_words(rng.standard_normal((10, 1300)).astype(np.float32))
    whole = simulate(format, payload, (50, 1300), words, rows=slice(0, 50))

    part = simulate(
        format, payload, (50, 1300), words[:9], rows=slice(21, 43),
        row_tiles=2, column_tiles=2, stages=4,
    )  # fmt: skip

    np.testing.assert_array_equal(part, whole[:9, 21:43])
