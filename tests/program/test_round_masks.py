"""Masks of a round: each row's own, restored for free rows, with its copy only when they change."""

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
from ninfer.program.round_io import PrefillChunk, RoundIo, RoundShape
from ninfer.tensor import Tensor

SHAPE = RoundShape(max_rows=4, max_columns=8, table_rows=4, table_width=2, vocab_rows=70)
FREE = [0xFFFFFFFF] * SHAPE.mask_words
MASKS = st.none() | st.binary(max_size=12).map(lambda data: data[: len(data) // 4 * 4])


class CountingStream(HostStream):
    """Remembers how many bytes each copy moved."""

    def __init__(self) -> None:
        super().__init__(pool=None)  # type: ignore[arg-type]  # no kernel runs here
        self.uploads: list[int] = []

    def upload(self, destination: Tensor, source: Tensor) -> None:
        self.uploads.append(source.nbytes)
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


def test_free_rows_bring_no_masks(device: HostDevice) -> None:
    stream = CountingStream()
    with open_io(device, stream) as io:
        stream.uploads.clear()

        inputs = io.upload_decode(stream, [row(None), row(None)])

        assert len(stream.uploads) == 1
        assert stream.uploads[0] < inputs.mask.address - inputs.columns.tokens.address
        assert host_array(inputs.mask).tolist() == [FREE, FREE]


def test_a_constrained_row_and_its_end_bring_masks_with_the_same_copy(device: HostDevice) -> None:
    stream = CountingStream()
    with open_io(device, stream) as io:
        stream.uploads.clear()

        for mask in (None, b"\1\0\0\0", None, None):
            io.upload_decode(stream, [row(mask), row(None)])
        inputs = io.decode_inputs(2)

    plain, masked, freed, later = stream.uploads
    assert later == plain
    assert masked == freed
    one_row = inputs.mask.rows(0, 1)
    assert masked == one_row.address + one_row.nbytes - inputs.columns.tokens.address


def test_masks_and_new_tables_travel_with_one_copy(device: HostDevice) -> None:
    stream = CountingStream()
    with open_io(device, stream) as io:
        stream.uploads.clear()
        io.table_mirror[:] = 7
        io.note_new_tables()

        inputs = io.upload_decode(stream, [row(None), row(b"\1\0\0\0")])

        assert len(stream.uploads) == 1
        assert (host_array(io.block_table) == 7).all()
        assert host_array(inputs.columns.tokens).tolist() == [1, 1]
        assert host_array(inputs.mask).tolist() == [FREE, words(b"\1\0\0\0")]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(MASKS, min_size=1, max_size=4), st.booleans(), st.integers(0, 8)),
        min_size=1,
        max_size=8,
    )
)
def test_every_round_finds_the_masks_of_its_own_rows(
    device: HostDevice, rounds: list[tuple[list[TokenMask | None], bool, int]]
) -> None:
    """Whatever units come between: chunks, and new block tables."""
    stream = CountingStream()

    with open_io(device, stream) as io:
        for turn, (masks, has_new_tables, chunk) in enumerate(rounds):
            if has_new_tables:
                io.table_mirror[:] = turn
                io.note_new_tables()
            wanted = io.table_mirror.tolist()
            if chunk:
                io.upload_prefill(stream, PrefillChunk([9] * chunk, 0, [range(chunk)] * 3, 0, 0, 0))
            stream.uploads.clear()
            inputs = io.upload_decode(stream, [row(mask) for mask in masks])

            assert len(stream.uploads) == 1
            assert host_array(inputs.mask).tolist() == [words(mask) for mask in masks]
            assert host_array(inputs.columns.tokens).tolist() == [1] * len(masks)
            assert host_array(inputs.sampler.top_p).tolist() == [1.0] * len(masks)
            assert host_array(io.block_table).tolist() == wanted


@pytest.mark.parametrize("size", [3, 4 * SHAPE.mask_words + 4])
def test_a_mask_that_is_no_row_is_refused(device: HostDevice, size: int) -> None:
    stream = CountingStream()

    with open_io(device, stream) as io, pytest.raises(ShapeError, match="mask"):
        io.upload_decode(stream, [row(bytes(size))])
