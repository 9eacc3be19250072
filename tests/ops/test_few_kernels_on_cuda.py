"""Every kernel of one to eight columns on a card, whichever counts of rows would choose it."""

from typing import Any

import numpy as np
import pytest

from ninfer.kernels.cuda import few_linear, few_product, pair_shape
from ninfer.kernels.cuda.few_shape import (
    RINGED_COLUMNS,
    Places,
    choose_places,
    shapes_for,
    shared_bytes,
)
from ninfer.kernels.cuda.held_product import HELD
from ninfer.kernels.cuda.launch import blocks_for
from ninfer.ops import linear
from ninfer.ops.linear_operands import WEIGHT_FORMATS
from ninfer.tensor import DType, TensorFormat
from tests.ops.test_linear_on_devices import columns, exact_and_bound
from tests.support.cuda_bench import CudaBench
from tests.support.oracles.linear import random_payload

pytestmark = pytest.mark.gpu

FORMATS = [*((format,) for format in WEIGHT_FORMATS), *few_product.TOGETHER]


@pytest.mark.parametrize("formats", FORMATS, ids=lambda formats: "+".join(f.name for f in formats))
@pytest.mark.parametrize("row_tiles", [1, 2])
@pytest.mark.parametrize("num_columns", [1, 3, 4, 5, 8])
def test_products_of_a_forced_shape_agree_with_the_formula(
    formats: tuple[TensorFormat, ...],
    row_tiles: int,
    num_columns: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if num_columns > RINGED_COLUMNS[-1] and len(formats) > 1 and formats in HELD:
        pytest.skip("their columns are held")

    def forced(tiles: Any, count: int, *device: int) -> Places:
        chosen = choose_places(tiles, count, *device)
        shapes = shapes_for(tuple(dict.fromkeys(f for f, _ in tiles)), row_tiles, count)
        tall = {shape.format: shape.row_tiles for shape in shapes}
        blocks = sum(blocks_for(number, tall[format]) for format, number in tiles)
        ring = shared_bytes(formats, row_tiles, count)
        return Places(row_tiles, blocks, max(ring, chosen.shared_bytes))

    monkeypatch.setattr(few_product, "choose_places", forced)
    monkeypatch.setattr(few_linear, "is_worth_holding", lambda *counts: False)
    monkeypatch.setattr(pair_shape, "is_worth_pairing", lambda *counts: False)
    rng, width = np.random.default_rng(num_columns), 1160
    rows = [57 + 16 * place for place in range(len(formats))]
    payloads = [random_payload(rng, f, n, width) for f, n in zip(formats, rows, strict=True)]
    x = columns(7, num_columns, width)

    with CudaBench() as bench:
        outs = [bench.out((num_columns, count), DType.F32) for count in rows]
        weights = [
            bench.matrix(format, payload, count, width)
            for format, payload, count in zip(formats, payloads, rows, strict=True)
        ]
        products = [(weight, out, 0) for weight, out in zip(weights, outs, strict=True)]
        linear.project_all(bench.ctx, bench.in_columns(x), products)
        bench.check()
        results = [bench.read_tensor(out) for out in outs]

    for format, payload, count, got in zip(formats, payloads, rows, results, strict=True):
        exact, bound = exact_and_bound(format, payload, (count, width), x)
        assert np.all(np.abs(got - exact) <= bound)
