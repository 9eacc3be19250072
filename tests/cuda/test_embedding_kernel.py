import numpy as np
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.kernels.cuda.embedding import make_gather
from ninfer.kernels.cuda.weight_layout import WeightLayout, pack_weight
from ninfer.ops.linear_operands import WEIGHT_FORMATS
from ninfer.tensor import TensorFormat
from ninfer.tensor_formats import bf16_to_f32, f32_to_bf16
from tests.support.oracles.linear import random_payload, weight_values
from tests.support.warp_simulator import GLOBAL, WarpSimulator


@pytest.mark.parametrize("format", WEIGHT_FORMATS, ids=lambda f: f.name)
def test_kernel_text_decodes_rows_exactly(format: TensorFormat) -> None:
    rows, columns = 21, 264
    payload = random_payload(np.random.default_rng(rows), format, rows, columns)
    layout, tokens = WeightLayout(format, rows, columns), np.array([0, 7, 20, 9], np.int32)
    at_tokens = -(-layout.nbytes // 256) * 256
    at_out = at_tokens + 256
    octets = np.zeros(at_out + 2 * tokens.size * columns, np.uint8)
    octets[: layout.nbytes] = pack_weight(format, payload, rows, columns)
    octets[at_tokens : at_tokens + tokens.nbytes] = tokens.view(np.uint8)

    WarpSimulator(octets, lanes=1).launch(
        make_gather(format),
        (tokens.size, 1, 1),
        (GLOBAL, GLOBAL + at_tokens, GLOBAL + at_out, columns, layout.k_tiles, 0, rows),
    )

    got = octets[at_out:].view(np.uint16).reshape(tokens.size, columns)
    exact = weight_values(format, payload, rows, columns)[tokens].astype(np.float32)
    np.testing.assert_array_equal(bf16_to_f32(got), bf16_to_f32(f32_to_bf16(exact)))
