"""Products of many columns on a card: agreement with float64, and bits that nothing changes."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ninfer.ops import linear, pointwise
from ninfer.ops.linear_operands import WEIGHT_FORMATS
from ninfer.tensor import DType, TensorFormat
from ninfer.tensor_formats import bf16_to_f32, f32_to_bf16
from tests.support.cuda_bench import CudaBench
from tests.support.oracles.linear import random_payload, weight_values
from tests.support.tolerances import F32_UNIT

pytestmark = pytest.mark.gpu

Payload = npt.NDArray[np.uint8]

every_format = pytest.mark.parametrize("format", WEIGHT_FORMATS, ids=lambda f: f.name)
every_dtype = pytest.mark.parametrize("dtype", [DType.BF16, DType.F32], ids=lambda d: d.name)


def columns(seed: int, count: int, width: int) -> npt.NDArray[np.float32]:
    x = np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)
    return bf16_to_f32(f32_to_bf16(x))


def product(
    format: TensorFormat,
    payload: Payload,
    shape: tuple[int, int],
    x: npt.NDArray[np.float32],
    rows: slice | None = None,
    dtype: DType = DType.BF16,
    margin: int = 8,
) -> npt.NDArray[Any]:
    """Products between poisoned columns of the output, which stay poisoned."""
    with CudaBench(nbytes=1 << 28) as bench:
        weight = bench.matrix(format, payload, *shape)
        if rows is not None:
            weight = weight.rows(rows.start, rows.stop - rows.start)
        out = bench.out((len(x), weight.num_rows + 2 * margin), dtype)

        linear.project(bench.ctx, bench.in_columns(x), weight, out, first_column=margin)

        bench.check()
        read = bench.read_tensor(out) if dtype is DType.F32 else bench.read_activations(out)
    assert np.all(np.isnan(read[:, :margin]))
    assert np.all(np.isnan(read[:, margin + weight.num_rows :]))
    return np.asarray(read[:, margin : margin + weight.num_rows])


def expect_agreement(
    got: npt.NDArray[Any],
    format: TensorFormat,
    payload: Payload,
    shape: tuple[int, int],
    x: npt.NDArray[np.float32],
    dtype: DType,
) -> None:
    """Products of weights rounded to bf16, summed in binary32 and rounded to the output's type."""
    values = weight_values(format, payload, *shape)
    rounded = bf16_to_f32(f32_to_bf16(values.astype(np.float32))).astype(np.float64)
    exact = x.astype(np.float64) @ rounded.T
    magnitude = np.abs(x.astype(np.float64)) @ np.abs(rounded).T
    # Sums inside an instruction are cut off, not rounded, relative to their largest term.
    bound = magnitude * (shape[1] / 16 + 16) * F32_UNIT * 4
    if dtype is DType.BF16:
        bound += np.abs(exact) * 2.0**-8
    assert np.all(np.abs(got - exact) <= bound)
    # The contract: an error small against the norms, though weights were rounded.
    plain = x.astype(np.float64) @ values.T
    norms = np.outer(np.linalg.norm(x, axis=1), np.linalg.norm(values, axis=1))
    assert np.all(np.abs(got - plain) <= norms * 2.0**-8 + np.abs(plain) * 2.0**-8)


@every_format
@every_dtype
@pytest.mark.parametrize("num_columns", [129, 1000, 2048])
def test_products_agree_with_the_formula(
    format: TensorFormat, dtype: DType, num_columns: int
) -> None:
    shape = (520, 1160)
    payload = random_payload(np.random.default_rng(num_columns), format, *shape)
    x = columns(1, num_columns, shape[1])

    got = product(format, payload, shape, x, dtype=dtype)

    expect_agreement(got, format, payload, shape, x, dtype)


@every_format
@pytest.mark.parametrize("shape", [(1, 1), (96, 640), (257, 128), (130, 2100)])
def test_ragged_matrices_agree_with_the_formula(
    format: TensorFormat, shape: tuple[int, int]
) -> None:
    payload = random_payload(np.random.default_rng(3), format, *shape)
    x = columns(2, 300, shape[1])

    for dtype in (DType.F32, DType.BF16):
        got = product(format, payload, shape, x, dtype=dtype, margin=5)
        expect_agreement(got, format, payload, shape, x, dtype)


@every_format
def test_columns_do_not_depend_on_their_company(format: TensorFormat) -> None:
    shape = (776, 1024)
    payload = random_payload(np.random.default_rng(4), format, *shape)
    x = columns(3, 4097, shape[1])
    together = product(format, payload, shape, x)

    for first, stop in ((0, 129), (5, 200), (1000, 2024), (1, 4097), (3968, 4097)):
        some = product(format, payload, shape, x[first:stop])
        np.testing.assert_array_equal(some, together[first:stop])


@every_format
@pytest.mark.parametrize("rows", [slice(0, 16), slice(32, 80), slice(7, 8), slice(21, 700)])
def test_rows_do_not_depend_on_their_view(format: TensorFormat, rows: slice) -> None:
    shape = (776, 384)
    payload = random_payload(np.random.default_rng(5), format, *shape)
    x = columns(4, 200, shape[1])

    view = product(format, payload, shape, x, rows)

    np.testing.assert_array_equal(view, product(format, payload, shape, x)[:, rows])


@every_format
@pytest.mark.parametrize("num_rows", [512, 50])
@pytest.mark.parametrize("num_columns", [130, 1027])
def test_sums_are_added_to_the_residual_once(
    format: TensorFormat, num_rows: int, num_columns: int
) -> None:
    shape = (num_rows, 384)
    payload = random_payload(np.random.default_rng(6), format, *shape)
    x, before = columns(5, num_columns, shape[1]), columns(6, num_columns, num_rows)
    with CudaBench(nbytes=1 << 28) as bench:
        residual = bench.inout(f32_to_bf16(before))

        linear.project_add(
            bench.ctx, bench.in_columns(x), bench.matrix(format, payload, *shape), residual
        )

        bench.check()
        got, rounded = bench.read_activations(residual), bench.rounded
    alone = product(format, payload, shape, x, dtype=DType.F32)
    np.testing.assert_array_equal(got, rounded(before + alone))


@every_format
def test_cut_products_have_the_same_bits(
    format: TensorFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ninfer.kernels.cuda import coded_linear
    from ninfer.kernels.cuda.coded_turns import Part, tiles_of

    shape = (1104, 512)  # 69 stored tiles of rows
    payload = random_payload(np.random.default_rng(7), format, *shape)
    x = columns(8, 700, shape[1])
    whole = product(format, payload, shape, x)
    large, small, narrow = (tiles_of(format, wide) for wide in (256, 128, 64))
    plans = (
        *((Part(tiles, 0, 69),) for tiles in (large, small, narrow)),
        (Part(large, 0, 32), Part(narrow, 32, 37)),
        (Part(narrow, 0, 8), Part(large, 8, 8), Part(small, 16, 53)),
    )

    for parts in plans:
        monkeypatch.setattr(coded_linear, "plan", lambda *sizes, parts=parts: (parts,))
        np.testing.assert_array_equal(product(format, payload, shape, x), whole)


@every_format
@pytest.mark.parametrize("num_columns", [300, 513])
def test_every_tile_ends_every_product_in_the_same_bits(
    format: TensorFormat, num_columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles are chosen by counts of rows and columns that only published matrices have."""
    from ninfer.kernels.cuda import coded_linear
    from ninfer.kernels.cuda.coded_output import Ending
    from ninfer.kernels.cuda.coded_turns import Part, shapes_for

    shape = (512, 512)
    payload = random_payload(np.random.default_rng(11), format, *shape)
    x, before = columns(12, num_columns, shape[1]), columns(13, num_columns, shape[0])
    plain = product(format, payload, shape, x, dtype=DType.F32)
    rounded = bf16_to_f32(f32_to_bf16(plain))
    with CudaBench() as bench:
        gated = bench.out_columns(num_columns, shape[0] // 2)
        pointwise.swiglu(bench.ctx, bench.activations(rounded), gated)
        expected = {
            Ending.ANY: rounded,
            Ending.BF16: rounded,
            Ending.ADD: bf16_to_f32(f32_to_bf16(before + plain)),
            Ending.GATED: bench.read_columns(gated),
        }

    for ending in Ending:
        for tiles in shapes_for(format, ending):
            parts = (Part(tiles, 0, shape[0] // 16),)
            monkeypatch.setattr(coded_linear, "plan", lambda *sizes, parts=parts: (parts,))
            got = _ended(ending, format, payload, shape, x, before)
            np.testing.assert_array_equal(got, expected[ending], str((ending, tiles)))


def _ended(
    ending: Any,
    format: TensorFormat,
    payload: Payload,
    shape: tuple[int, int],
    x: npt.NDArray[np.float32],
    before: npt.NDArray[np.float32],
) -> npt.NDArray[Any]:
    """Products by the op that asks for an ending."""
    margin = {"ANY": 3, "BF16": 8}
    if ending.name in margin:
        return product(format, payload, shape, x, margin=margin[ending.name])
    with CudaBench() as bench:
        packed, weight = bench.in_columns(x), bench.matrix(format, payload, *shape)
        if ending.name == "ADD":
            residual = bench.inout(f32_to_bf16(before))
            linear.project_add(bench.ctx, packed, weight, residual)
            bench.check()
            return bench.read_activations(residual)
        gated = bench.out_columns(len(x), shape[0] // 2)
        products = bench.out_activations((len(x), shape[0]))
        linear.project_gated(bench.ctx, packed, weight, products, gated)
        bench.check()
        return bench.read_columns(gated)


@pytest.mark.parametrize("num_columns", [300, 2048])
def test_products_that_follow_one_another_are_complete_and_have_the_bits_of_those_alone(
    num_columns: int,
) -> None:
    width, formats = 1024, (TensorFormat.BF16, TensorFormat.W8, TensorFormat.Q4, TensorFormat.BF16)
    rows, rng = (40, 1024, 9216, 257), np.random.default_rng(9)
    payloads = [random_payload(rng, f, n, width) for f, n in zip(formats, rows, strict=True)]
    x = columns(10, num_columns, width)
    alone = [
        product(format, payload, (count, width), x, dtype=DType.BF16, margin=0)
        for format, payload, count in zip(formats, payloads, rows, strict=True)
    ]
    with CudaBench(nbytes=1 << 28) as bench:
        weights = [
            bench.matrix(format, payload, count, width)
            for format, payload, count in zip(formats, payloads, rows, strict=True)
        ]
        outs = [bench.out((num_columns, count), DType.BF16) for count in rows]
        # What reads an output next waits for the last product of the group only.
        read = bench.out_columns(num_columns, rows[2])

        products = [(weight, out, 0) for weight, out in zip(weights, outs, strict=True)]
        linear.project_all(bench.ctx, bench.in_columns(x), products)
        linear.pack(bench.ctx, outs[2], read)

        bench.check()
        for out, expected in zip(outs, alone, strict=True):
            np.testing.assert_array_equal(bench.read_activations(out), expected)
        np.testing.assert_array_equal(bench.read_columns(read), alone[2])
