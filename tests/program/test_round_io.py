"""The block of everything that varies: what arrives on the device, and with how many copies."""

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.device import host_array
from ninfer.errors import ShapeError
from ninfer.generation import SamplingParams
from ninfer.host.device import HostDevice, HostStream
from ninfer.program.decode_header import DecodeRow
from ninfer.program.round_io import PrefillChunk, RoundIo, RoundShape
from ninfer.tensor import DType, Tensor

SHAPE = RoundShape(max_rows=4, max_columns=200, table_rows=4, table_width=5, vocab_rows=70)
SAMPLING = SamplingParams(
    temperature=0.5,
    top_p=0.75,
    min_p=0.25,
    presence_penalty=1.5,
    frequency_penalty=-0.5,
    top_k=9,
    seed=-2,
)


class _CountingStream(HostStream):
    """Remembers how many bytes each upload moved."""

    def __init__(self) -> None:
        super().__init__(pool=None)  # type: ignore[arg-type]  # no kernel runs here
        self.uploads: list[int] = []

    def upload(self, destination: Tensor, source: Tensor) -> None:
        self.uploads.append(source.nbytes)
        super().upload(destination, source)


@pytest.fixture
def stream() -> _CountingStream:
    return _CountingStream()


@pytest.fixture
def io() -> Iterator[RoundIo]:
    with HostDevice() as device:
        arena = device.arena("round", RoundIo.device_bytes(SHAPE))
        pinned = device.pinned_arena("round", RoundIo.pinned_bytes(SHAPE))
        host_array(Tensor(arena.take((0,), DType.U8).address, DType.U8, (arena.nbytes,)))[:] = 0xEE
        yield RoundIo(arena, pinned, SHAPE)
        assert arena.used_bytes <= arena.nbytes
        pinned.close()
        arena.close()


def _row(token: int, **changes: Any) -> DecodeRow:
    row = DecodeRow(token, 10 * token, (10 * token - 3, 9, 4), 2, 1, 1, True, SAMPLING)
    return dataclasses.replace(row, **changes)


def _values(tensor: Tensor) -> list[Any]:
    return host_array(tensor).tolist()  # type: ignore[no-any-return]  # nested lists


def _tensors(value: object) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    parts = [getattr(value, field.name) for field in dataclasses.fields(value)]  # type: ignore[arg-type]  # a dataclass
    return [tensor for part in parts for tensor in _tensors(part)]


def test_a_round_s_header_arrives_with_one_copy(io: RoundIo, stream: _CountingStream) -> None:
    io.start(stream)
    stream.uploads.clear()

    inputs = io.upload_decode(stream, [_row(7), _row(8, is_uncounted=False, fold=0)])

    columns, sampler = inputs.columns, inputs.sampler
    assert len(stream.uploads) == 1
    assert _values(columns.tokens) == [7, 8]
    assert _values(columns.positions) == [70, 80]
    assert _values(columns.rope_positions) == [[67, 77], [9, 9], [4, 4]]
    assert _values(columns.table_rows) == [2, 2]
    assert _values(columns.slots) == [1, 1]
    assert _values(columns.fold) == [1, 0]
    assert _values(inputs.count_flags) == [1, 0]
    assert _values(sampler.temperature) == [0.5, 0.5]
    assert _values(sampler.top_p) == [0.75, 0.75]
    assert _values(sampler.min_p) == [0.25, 0.25]
    assert _values(sampler.presence) == [1.5, 1.5]
    assert _values(sampler.frequency) == [-0.5, -0.5]
    assert _values(sampler.top_k) == [9, 9]
    assert _values(sampler.seeds) == [[0xFFFFFFFE, 0xFFFFFFFF]] * 2
    assert _values(sampler.positions) == [71, 81]


def test_a_temperature_that_counts_as_greedy_arrives_as_zero(
    io: RoundIo, stream: _CountingStream
) -> None:
    inputs = io.upload_decode(
        stream, [_row(1, sampling=dataclasses.replace(SAMPLING, temperature=1e-6))]
    )

    assert _values(inputs.sampler.temperature) == [0.0]


def test_a_chunk_s_header_arrives_with_one_copy(io: RoundIo, stream: _CountingStream) -> None:
    io.start(stream)
    stream.uploads.clear()

    inputs = io.upload_prefill(
        stream,
        PrefillChunk([3, 4, 5], 20, ([1, 2, 3], [4, 5, 6], [7, 8, 9]), 3, 2, 1, num_counted=2),
    )

    columns = inputs.columns
    assert len(stream.uploads) == 1
    assert _values(columns.tokens) == [3, 4, 5]
    assert _values(columns.positions) == [20, 21, 22]
    assert _values(columns.rope_positions) == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert _values(columns.table_rows) == [3, 3, 3]
    assert _values(columns.slots) == [2]
    assert _values(columns.fold) == [1]
    assert _values(inputs.count_slots) == [2, 2, 2]
    assert _values(inputs.count_flags) == [0, 1, 1]


def test_new_tables_travel_with_the_next_header_and_only_then(
    io: RoundIo, stream: _CountingStream
) -> None:
    io.start(stream)
    stream.uploads.clear()

    io.table_mirror[1] = [4, 3, 2, 1, 0]
    io.upload_decode(stream, [_row(1)])
    before = _values(io.block_table)[1]
    io.note_new_tables()
    io.upload_decode(stream, [_row(1)])
    io.upload_decode(stream, [_row(1)])

    assert before == [0] * 5
    assert _values(io.block_table)[1] == [4, 3, 2, 1, 0]
    assert stream.uploads[1] > stream.uploads[0] == stream.uploads[2]


def test_new_tables_travel_with_a_chunk_and_leave_rounds_alone(
    io: RoundIo, stream: _CountingStream
) -> None:
    io.start(stream)
    inputs = io.upload_decode(stream, [_row(7)])
    stream.uploads.clear()

    io.table_mirror[1] = [4, 3, 2, 1, 0]
    io.note_new_tables()
    io.upload_prefill(stream, PrefillChunk([3], 20, ([1], [4], [7]), 3, 2, 1))

    assert len(stream.uploads) == 1
    assert _values(io.block_table)[1] == [4, 3, 2, 1, 0]
    assert _values(inputs.columns.tokens) == [7]


def test_a_round_brings_as_much_however_long_chunks_are(stream: _CountingStream) -> None:
    with HostDevice() as device:
        for max_columns in (1, 4096):
            shape = dataclasses.replace(SHAPE, max_columns=max_columns)
            arena = device.arena("round", RoundIo.device_bytes(shape))
            made = RoundIo(arena, device.pinned_arena("p", RoundIo.pinned_bytes(shape)), shape)
            made.note_new_tables()
            made.upload_decode(stream, [_row(1)])
            made.upload_decode(stream, [_row(1)])
            arena.close()

    assert stream.uploads[:2] == stream.uploads[2:]
    assert stream.uploads[1] < 4096


def test_every_token_is_allowed_from_the_start(io: RoundIo, stream: _CountingStream) -> None:
    io.start(stream)
    io.note_new_tables()
    io.upload_prefill(stream, PrefillChunk([1] * 200, 0, [range(200)] * 3, 0, 0, 0))

    mask = host_array(io.decode_inputs(4).mask)

    assert mask.shape == (4, 3)
    assert (mask == 0xFFFFFFFF).all()


@given(rows=st.integers(1, 4), columns=st.integers(1, 200))
def test_fields_never_overlap_and_lie_inside_the_block(rows: int, columns: int) -> None:
    with HostDevice() as device:
        arena = device.arena("round", RoundIo.device_bytes(SHAPE))
        made = RoundIo(arena, device.pinned_arena("p", RoundIo.pinned_bytes(SHAPE)), SHAPE)

        fields = [made.block_table, made.sampled, made.logits]
        fields += _tensors(made.decode_inputs(rows)) + _tensors(made.prefill_inputs(columns))
        _assert_disjoint(fields)
        first = arena.take((0,), DType.U8).address - arena.used_bytes
        assert all(first <= field.address for field in fields)
        assert all(field.address + field.nbytes <= first + arena.nbytes for field in fields)
        arena.close()


def _assert_disjoint(tensors: Sequence[Tensor]) -> None:
    spans = sorted((tensor.address, tensor.address + tensor.nbytes) for tensor in tensors)
    assert all(stop <= start for (_, stop), (start, _) in pairwise(spans))


def test_a_round_s_addresses_depend_on_its_rows_alone(io: RoundIo, stream: _CountingStream) -> None:
    first = io.upload_decode(stream, [_row(1), _row(2)])
    io.upload_decode(stream, [_row(1), _row(2), _row(3)])

    assert io.upload_decode(stream, [_row(5), _row(6)]) == first


@pytest.mark.parametrize("columns", [0, 201])
def test_a_chunk_that_was_not_planned_is_refused(io: RoundIo, columns: int) -> None:
    with pytest.raises(ShapeError):
        io.prefill_inputs(columns)


def test_chosen_tokens_and_logits_are_read_back(io: RoundIo, stream: _CountingStream) -> None:
    host_array(io.sampled)[:] = [5, 6, 7, 8]
    host_array(io.logits)[:] = np.arange(4 * 70).reshape(4, 70)

    assert io.download_sampled(stream, 3).wait() == (5, 6, 7)
    assert np.array_equal(io.download_logits(stream, 2), np.arange(140).reshape(2, 70))
