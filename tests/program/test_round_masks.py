"""Masks of a round: each row's own, restored for free rows, copied only when they change."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.device import Stream, host_array
from ninfer.errors import ShapeError
from ninfer.generation import SamplingParams, TokenMask
from ninfer.host.device import HostDevice, HostStream
from ninfer.program.decode_header import DecodeRow
from ninfer.program.round_io import RoundIo, RoundShape
from ninfer.tensor import Tensor

SHAPE = RoundShape(max_rows=4, max_columns=8, table_rows=4, table_width=2, vocab_rows=70)
FREE = [0xFFFFFFFF] * SHAPE.mask_words
MASKS = st.none() | st.binary(max_size=12).map(lambda data: data[: len(data) // 4 * 4])


class CountingStream(HostStream):
    """Counts the copies."""

    def __init__(self) -> None:
        super().__init__(pool=None)  # type: ignore[arg-type]  # no kernel runs here
        self.num_uploads = 0

    def upload(self, destination: Tensor, source: Tensor) -> None:
        self.num_uploads += 1
        super().upload(destination, source)


@pytest.fixture(scope="module")
def device() -> Iterator[HostDevice]:
    with HostDevice() as device:
        yield device


@contextmanager
def open_io(device: HostDevice, stream: Stream) -> Iterator[RoundIo]:
    """A block whose arenas live as long as it is used."""
    arena = device.arena("round", RoundIo.device_bytes(SHAPE))
    pinned = device.pinned_arena("round", RoundIo.pinned_bytes(SHAPE))
    io = RoundIo(arena, pinned, SHAPE)
    io.start(stream)
    yield io
    pinned.close()
    arena.close()


def row(mask: TokenMask | None) -> DecodeRow:
    return DecodeRow(1, 2, (2, 2, 2), 0, 0, 0, False, SamplingParams(), mask)


def words(mask: TokenMask | None) -> list[int]:
    if mask is None:
        return FREE
    return [int(word) for word in np.frombuffer(mask.ljust(4 * SHAPE.mask_words, b"\0"), "<u4")]


def test_free_rows_need_no_copy_of_masks(device: HostDevice) -> None:
    stream = CountingStream()
    with open_io(device, stream) as io:
        stream.num_uploads = 0

        inputs = io.upload_decode(stream, [row(None), row(None)])

        assert stream.num_uploads == 1
        assert host_array(inputs.mask).tolist() == [FREE, FREE]


def test_a_constrained_row_costs_one_copy_and_its_end_another(device: HostDevice) -> None:
    stream = CountingStream()
    counts = []

    with open_io(device, stream) as io:
        for masks in ((None, b"\1\0\0\0"), (None, None), (None, None)):
            stream.num_uploads = 0
            io.upload_decode(stream, [row(mask) for mask in masks])
            counts.append(stream.num_uploads)

    assert counts == [2, 2, 1]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(MASKS, min_size=1, max_size=4), min_size=1, max_size=8))
def test_every_round_finds_the_masks_of_its_own_rows(
    device: HostDevice, rounds: list[list[TokenMask | None]]
) -> None:
    stream = CountingStream()

    with open_io(device, stream) as io:
        for masks in rounds:
            inputs = io.upload_decode(stream, [row(mask) for mask in masks])

            assert host_array(inputs.mask).tolist() == [words(mask) for mask in masks]


@pytest.mark.parametrize("size", [3, 4 * SHAPE.mask_words + 4])
def test_a_mask_that_is_no_row_is_refused(device: HostDevice, size: int) -> None:
    stream = CountingStream()

    with open_io(device, stream) as io, pytest.raises(ShapeError, match="mask"):
        io.upload_decode(stream, [row(bytes(size))])
