"""Gated DeltaNet on CUDA: launchers of decode and prefill.

Decode is one kernel (`delta_round`), and a gated norm where heads are small. Prefill goes over its
columns in pieces that fit the stream's scratch memory, with three kernels each. Large heads take
chunks of 64 columns: operands (`delta_chunks`), state (`delta_scan_wide`, or `delta_scan` where
there are no warpgroups), gated norm; chunks and pieces end at multiples of 64 from the first column
of the call, so that its numbers depend on that column and on nothing else. What has been recorded
is folded first, by decode's arithmetic. Other heads advance column by column, by decode's
arithmetic too: columns, state (`delta_prefill`), gated norm.
"""

from collections.abc import Sequence
from typing import Final

from ninfer.config import MAX_CONCURRENCY
from ninfer.cuda.kernel_source import Kernel
from ninfer.cuda.stream import CudaStream
from ninfer.errors import ShapeError
from ninfer.kernels.cuda.column_image import expect_fragments, is_image
from ninfer.kernels.cuda.delta_blocks import CHUNK_FACTORS, CHUNK_ROWS, POSITIONS, WIDTH
from ninfer.kernels.cuda.delta_chunks import MAX_SHARING, make_chunk_operands
from ninfer.kernels.cuda.delta_columns import DeltaHeads, make_columns, make_window
from ninfer.kernels.cuda.delta_output import THREADS, make_gated_norm
from ninfer.kernels.cuda.delta_prefill import make_prefill_state
from ninfer.kernels.cuda.delta_round import can_stage, is_direct, make_decode
from ninfer.kernels.cuda.delta_scan import make_scan
from ninfer.kernels.cuda.delta_scan_wide import COLUMNS as WIDE_COLUMNS
from ninfer.kernels.cuda.delta_scan_wide import make_wide_scan
from ninfer.kernels.cuda.delta_step import COLUMNS, PARTS, num_slices
from ninfer.kernels.cuda.fragments import CHUNK
from ninfer.kernels.cuda.launch import (
    MULTIPROCESSOR_SHARED,
    KernelShapes,
    block_parts,
    blocks_for,
    orders,
)
from ninfer.kernels.operand_groups import MixerDims, MixerState, MixerWeights
from ninfer.tensor import DType, LinearInput, Tensor

_MAX_VALUE_DIM: Final = 256  # the chunks of a head are lanes of one warp
_ALIGNMENT: Final = 256
_MULTIPROCESSORS: Final = 132  # of an H200; any number is right


def decode(
    stream: CudaStream,
    projected: Tensor,
    ab: Tensor,
    weights: MixerWeights,
    dims: MixerDims,
    state: MixerState,
    slots: Tensor,
    fold: Tensor,
    eps: float,
    out: LinearInput,
) -> None:
    """Fold accepted columns, compute one column of each row and record it.

    Raises:
        ShapeError: the heads cannot be split over warps, or there are too many rows.
    """
    heads = delta_heads(dims)
    num_rows = slots.shape[0]
    expect_fragments(num_rows, stream.has_warpgroups)
    if num_rows * heads.num_key_heads > stream.counters.shape[0]:
        raise ShapeError(f"counters: {num_rows} rows of {heads.num_key_heads} key heads")
    (outputs,) = _scratch(stream, [4 * num_rows * heads.value_width])
    base, sums, padded = block_parts(out)
    rings = (state.record_x, state.record_k, state.record_v, state.record_g, state.record_beta)
    is_staged = can_stage(heads) and not _is_held(heads.num_value_heads * num_rows)
    stream.launch(
        make_decode(heads, ab.dtype is DType.F32, is_staged),
        (heads.num_value_heads, num_rows, 1),
        (
            projected.address,
            ab.address,
            weights.convolution.address,
            weights.a_log.address,
            weights.dt_bias.address,
            weights.norm.address,
            state.matrices.address,
            state.window.address,
            *(plane.address for plane in rings),
            slots.address,
            fold.address,
            outputs,
            base,
            sums,
            stream.counters.address,
            state.record_x.shape[1],
            eps,
        ),
    )
    if not is_direct(heads):
        stream.launch(
            make_gated_norm(heads, False),
            (num_rows, blocks_for(padded // CHUNK, THREADS), 1),
            (outputs, weights.norm.address, projected.address, base, sums, 0, eps),
        )


def prefill(
    stream: CudaStream,
    projected: Tensor,
    ab: Tensor,
    weights: MixerWeights,
    dims: MixerDims,
    state: MixerState,
    slot: Tensor,
    fold: Tensor,
    eps: float,
    out: LinearInput,
) -> None:
    """Fold accepted columns, then advance one slot over a chunk.

    Raises:
        ShapeError: the heads cannot be split over warps.
    """
    heads = delta_heads(dims)
    num_columns = projected.shape[0]
    by_chunks = _goes_by_chunks(heads, stream.shared_bytes, stream.has_warpgroups)
    advance = _advance_chunks if by_chunks else _advance
    piece = _piece(stream, heads, by_chunks=by_chunks)
    gated_norm = make_gated_norm(heads, is_image(num_columns, stream.has_warpgroups))
    base, sums, padded = block_parts(out)
    for first in range(0, max(num_columns, 1), piece):
        count = min(piece, num_columns - first)
        outputs = advance(stream, heads, projected, ab, weights, state, slot, fold, first, count)
        stream.launch(
            gated_norm,
            (count, blocks_for(padded // CHUNK, THREADS), 1),
            (outputs, weights.norm.address, projected.address, base, sums, first, eps),
        )
    stream.launch(
        make_window(heads),
        (blocks_for(heads.channels, 128), 1, 1),
        (
            projected.address,
            state.window.address,
            state.record_x.address,
            slot.address,
            fold.address,
            num_columns,
            state.record_x.shape[1],
        ),
    )


def declared(shapes: KernelShapes) -> tuple[Kernel, ...]:
    """Kernels a model needs."""
    heads = DeltaHeads(
        shapes.num_key_heads, shapes.num_value_heads, shapes.key_dim, shapes.value_dim
    )
    return kernels_of(heads, shapes.block_shared_bytes, shapes.has_warpgroups, orders(shapes))


def kernels_of(
    heads: DeltaHeads,
    block_shared_bytes: int = MULTIPROCESSOR_SHARED,
    has_warpgroups: bool = True,
    orders_written: Sequence[bool] = (False, True),
) -> tuple[Kernel, ...]:
    """Kernels of one mixer, with decay inputs in f32."""
    by_chunks = _goes_by_chunks(heads, block_shared_bytes, has_warpgroups)
    made: tuple[Kernel, ...] = (make_columns(heads, True),)
    if by_chunks:
        made = (make_chunk_operands(heads, True), _scan(heads, has_warpgroups)[0])
    most = [heads.num_value_heads * count for count in range(1, MAX_CONCURRENCY + 1)]
    is_ever_staged = can_stage(heads) and not all(map(_is_held, most))
    ways = (False, True) if is_ever_staged else (False,)
    return (
        *made,
        make_window(heads),
        *(make_decode(heads, True, is_staged) for is_staged in ways),
        make_prefill_state(heads),
        *(make_gated_norm(heads, to_image) for to_image in orders_written),
    )


def delta_heads(dims: MixerDims) -> DeltaHeads:
    """Heads of a mixer that the kernels can split.

    Raises:
        ShapeError: they cannot.
    """
    heads = DeltaHeads(dims.num_key_heads, dims.num_value_heads, dims.key_dim, dims.value_dim)
    size = heads.value_dim
    is_split = size % COLUMNS == 0 and size & (size - 1) == 0 and size <= _MAX_VALUE_DIM
    if not is_split or heads.key_dim % PARTS or heads.sharing > 32:
        raise ShapeError(f"CUDA kernels do not split heads of {heads.key_dim} x {size}")
    return heads


def _is_held(blocks: int) -> bool:
    """Whether blocks of a decode round have their state in registers; both ways have equal bits.

    Such a block has a multiprocessor to itself: measured best for one turn of them and for nearly
    two whole ones; three that stage their state share a multiprocessor.
    """
    idle = 2 * _MULTIPROCESSORS - blocks
    return blocks <= _MULTIPROCESSORS or 0 <= idle <= _MULTIPROCESSORS // 8


def is_chunked(heads: DeltaHeads) -> bool:
    """Whether a prefill of these heads goes by chunks, where a block has enough shared memory."""
    return heads.key_dim == heads.value_dim == WIDTH and heads.sharing <= MAX_SHARING


def _goes_by_chunks(heads: DeltaHeads, block_shared_bytes: int, has_warpgroups: bool) -> bool:
    if not is_chunked(heads):
        return False
    return _scan(heads, has_warpgroups)[0].dynamic_shared_bytes <= block_shared_bytes


def _scan(heads: DeltaHeads, has_warpgroups: bool) -> tuple[Kernel, int]:
    """Kernel that advances a state over chunks, and the columns of the state that a block owns.

    Without warpgroups narrow blocks serve where they find a multiprocessor each.
    """
    if has_warpgroups:
        return make_wide_scan(heads), WIDE_COLUMNS
    columns = 32 if heads.num_value_heads * (WIDTH // 32) <= _MULTIPROCESSORS else 64
    return make_scan(heads, columns), columns


def _column_sizes(heads: DeltaHeads) -> tuple[int, ...]:
    """Scratch floats of a column: queries, keys, values, gates, outputs."""
    key_width, value_width = heads.key_width, heads.value_width
    return key_width, key_width, value_width, 2 * heads.num_value_heads, value_width


def _chunk_sizes(heads: DeltaHeads) -> tuple[int, ...]:
    """Scratch bytes of a chunk: rows, factors, values that become outputs."""
    rows, factors = heads.num_key_heads * CHUNK_ROWS, heads.num_value_heads * CHUNK_FACTORS
    return rows, factors, 4 * POSITIONS * heads.value_width


def _piece(stream: CudaStream, heads: DeltaHeads, *, by_chunks: bool) -> int:
    """Columns whose intermediate results fit the stream's scratch memory."""
    sizes = _chunk_sizes(heads) if by_chunks else [4 * size for size in _column_sizes(heads)]
    fitting = (stream.scratch.nbytes - len(sizes) * _ALIGNMENT) // sum(sizes)
    return max(1, fitting) * (POSITIONS if by_chunks else 1)


def _advance_chunks(
    stream: CudaStream,
    heads: DeltaHeads,
    projected: Tensor,
    ab: Tensor,
    weights: MixerWeights,
    state: MixerState,
    slot: Tensor,
    fold: Tensor,
    first: int,
    count: int,
) -> int:
    """Launch columns ``[first, first + count)`` by chunks; returns the address of the outputs."""
    chunks = blocks_for(count, POSITIONS)
    rows, factors, values = _scratch(stream, [chunks * size for size in _chunk_sizes(heads)])
    if first == 0:
        _advance_state(stream, heads, state, slot, fold, (rows, rows, rows, rows, values), 0, 1)
    stream.launch(
        make_chunk_operands(heads, ab.dtype is DType.F32),
        (chunks, heads.num_key_heads, 1),
        (
            *_column_operands(projected, ab, weights, state, slot, fold),
            rows,
            factors,
            values,
            first,
            projected.shape[0],
            state.record_x.shape[1],
        ),
    )
    if chunks:
        kernel, columns = _scan(heads, stream.has_warpgroups)
        stream.launch(
            kernel,
            (heads.num_value_heads, WIDTH // columns, 1),
            (rows, factors, values, state.matrices.address, slot.address, chunks),
        )
    return values


def _advance(
    stream: CudaStream,
    heads: DeltaHeads,
    projected: Tensor,
    ab: Tensor,
    weights: MixerWeights,
    state: MixerState,
    slot: Tensor,
    fold: Tensor,
    first: int,
    count: int,
) -> int:
    """Launch columns ``[first, first + count)`` one by one; returns the address of the outputs."""
    parts = _scratch(stream, [4 * count * size for size in _column_sizes(heads)])
    queries, keys, values, gates, outputs = parts
    num_records = state.record_x.shape[1]
    stream.launch(
        make_columns(heads, ab.dtype is DType.F32),
        (count, heads.num_key_heads, 1),
        (
            *_column_operands(projected, ab, weights, state, slot, fold),
            queries,
            keys,
            values,
            gates,
            first,
            num_records,
        ),
    )
    _advance_state(stream, heads, state, slot, fold, parts, count, int(first == 0))
    return outputs


def _column_operands(
    projected: Tensor,
    ab: Tensor,
    weights: MixerWeights,
    state: MixerState,
    slot: Tensor,
    fold: Tensor,
) -> tuple[int, ...]:
    """Addresses of what columns of a prefill are made from."""
    own = weights.convolution, weights.a_log, weights.dt_bias
    tensors = projected, ab, *own, state.window, state.record_x, slot, fold
    return tuple(tensor.address for tensor in tensors)


def _advance_state(
    stream: CudaStream,
    heads: DeltaHeads,
    state: MixerState,
    slot: Tensor,
    fold: Tensor,
    parts: Sequence[int],
    count: int,
    folds: int,
) -> None:
    """Launch the recurrence over ``count`` columns, and over the records before if ``folds``."""
    *inputs, outputs = parts
    stream.launch(
        make_prefill_state(heads),
        (heads.num_value_heads, num_slices(heads), 1),
        (
            *inputs,
            state.matrices.address,
            state.record_k.address,
            state.record_v.address,
            state.record_g.address,
            state.record_beta.address,
            slot.address,
            fold.address,
            outputs,
            count,
            state.record_x.shape[1],
            folds,
        ),
    )


def _scratch(stream: CudaStream, sizes: Sequence[int]) -> list[int]:
    """Addresses of parts of the stream's scratch memory.

    Raises:
        ShapeError: it is too small.
    """
    found, end = [], stream.scratch.address
    for size in sizes:
        found.append(end)
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    if end > stream.scratch.address + stream.scratch.nbytes:
        raise ShapeError(f"scratch: {sum(sizes)} bytes needed, {stream.scratch.nbytes} there")
    return found
