"""Kernels that write linear inputs in either order, and the way back, on the CPU."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.cuda.kernel_source import Kernel
from ninfer.kernels.cuda import (
    fragments,
)
from ninfer.kernels.cuda.column_fragments import fragments_grid, make_fragments
from ninfer.kernels.cuda.column_image import image_of, input_bytes, words_of
from ninfer.kernels.cuda.column_pack import make_pack
from ninfer.kernels.cuda.delta_columns import DeltaHeads
from ninfer.kernels.cuda.delta_output import make_gated_norm
from ninfer.kernels.cuda.fragments import fragment_bytes, pack_columns, unpack_columns
from ninfer.kernels.cuda.pointwise import make_swiglu
from ninfer.tensor_formats import bf16_to_f32, f32_to_bf16
from tests.support import warpgroup_simulator as simulator
from tests.support.mixer_simulator import lay_out

POISON = 0xA5
HEADS = DeltaHeads(1, 3, 32, 64)
EPS = np.float32(1e-6)

Words = npt.NDArray[np.uint16]


def words(seed: int, *shape: int) -> Words:
    return f32_to_bf16(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def poison(nbytes: int) -> npt.NDArray[np.uint8]:
    return np.full(nbytes, POISON, np.uint8)


def expect_only_columns(out: npt.NDArray[np.uint8], expected: Words, width: int) -> None:
    """Require an image of some columns, and poison elsewhere; padding is part of a column."""
    is_column = image_of(np.ones((len(expected), -(-width // 128) * 128), np.uint16))
    is_column = is_column.view(np.uint16) == 1
    image = image_of(expected)
    np.testing.assert_array_equal(
        out[: image.size].view(np.uint16)[is_column], image.view(np.uint16)[is_column]
    )
    assert (out[: image.size].view(np.uint16)[~is_column] == POISON * 257).all()
    assert (out[image.size :] == POISON).all()


@pytest.mark.parametrize("is_f32", [False, True])
def test_packed_columns_are_an_image(is_f32: bool) -> None:
    x = words(2, 11, 200)
    octets, at, views = lay_out(
        {"x": bf16_to_f32(x) if is_f32 else x, "out": poison(input_bytes(129, 200))}
    )

    args: Any = (np.uint64(at["x"]), np.uint64(at["out"]), np.uint64(0), 200, 256)
    simulator.launch(octets, make_pack(is_f32, True), (11, 1, 1), args)

    expect_only_columns(views["out"], x, 200)


def test_gated_columns_are_the_same_in_both_orders() -> None:
    x = words(3, 9, 2 * 136)
    found = []
    for to_image in (False, True):
        octets, at, views = lay_out({"x": x, "out": poison(input_bytes(129, 136))})
        sums = np.uint64(at["out"] + fragment_bytes(9, 136))
        args: Any = (np.uint64(at["x"]), np.uint64(at["out"]), sums, 136, 256)
        simulator.launch(octets, make_swiglu(True, to_image), (9, 1, 1), args)
        found.append(views["out"])

    expected, _ = unpack_columns(found[0][: fragments.input_bytes(9, 136)], 9, 136)
    expect_only_columns(found[1], expected[:, :136], 136)


def normed(kernel: Kernel, first: int, count: int) -> npt.NDArray[np.uint8]:
    """Outputs of the mixer's norm, from column ``first`` on."""
    rng, width = np.random.default_rng(4), HEADS.value_width
    octets, at, views = lay_out(
        {
            "outputs": rng.standard_normal((count, width)).astype(np.float32),
            "norm": words(5, HEADS.value_dim),
            "projected": np.concatenate(
                [
                    np.full((first, HEADS.channels + width), 0xFFFF, np.uint16),
                    words(6, count, HEADS.channels + width),
                ]
            ),
            "out": poison(input_bytes(131, width)),
        }
    )
    sums = at["out"] + fragment_bytes(first + count, width)
    addresses = [at[name] for name in ("outputs", "norm", "projected", "out")]
    args: Any = (*(np.uint64(address) for address in (*addresses, sums)), first, EPS)
    simulator.launch(octets, kernel, (count, 1, 1), args)
    return views["out"]


@pytest.mark.parametrize("first", [0, 126])  # inside a block of columns, and over its end
def test_normed_columns_are_the_same_in_both_orders(first: int) -> None:
    width, count = HEADS.value_width, 5
    stop = first + count

    plain = normed(make_gated_norm(HEADS, False), first, count)
    image = normed(make_gated_norm(HEADS, True), first, count)

    expected, _ = unpack_columns(plain[: fragments.input_bytes(stop, width)], stop, width)
    np.testing.assert_array_equal(words_of(image, stop, width), expected)
    assert (expected[:first] == POISON * 257).all()
    assert (expected[first:, width:] & 0x7FFF == 0).all()  # of either sign


def test_an_image_comes_back_as_fragments_with_their_sums() -> None:
    x = words(7, 10, 200)
    octets, at, views = lay_out(
        {"image": image_of(x), "out": poison(fragments.input_bytes(10, 200))}
    )
    sums = np.uint64(at["out"] + fragment_bytes(10, 200))

    args: Any = (np.uint64(at["image"]), np.uint64(at["out"]), sums, 256)
    simulator.launch(octets, make_fragments(), fragments_grid(10, 256), args)

    found, expected = (unpack_columns(block, 10, 200) for block in (views["out"], pack_columns(x)))
    for part, exact in zip(found, expected, strict=True):
        np.testing.assert_array_equal(part, exact)
