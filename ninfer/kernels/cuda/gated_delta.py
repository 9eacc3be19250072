"""Gated DeltaNet on CUDA: launchers of decode and prefill.

Decode is two kernels: state (`delta_decode`, with its own convolution) and the end of the round
(`delta_output`). Prefill goes over its columns in pieces that fit the stream's scratch memory, with
three kernels each: columns, state, gated norm. Where pieces end changes no bit, because the state
advances column by column in every case; so a prefill equals any mix of rounds and chunks.
"""

from collections.abc import Sequence
from typing import Final

from ninfer.cuda.kernel_source import Kernel
from ninfer.cuda.stream import CudaStream
from ninfer.errors import ShapeError
from ninfer.kernels.cuda.delta_columns import DeltaHeads, make_columns, make_window
from ninfer.kernels.cuda.delta_decode import make_decode_state
from ninfer.kernels.cuda.delta_output import THREADS, make_gated_norm, make_round_end
from ninfer.kernels.cuda.delta_prefill import make_prefill_state
from ninfer.kernels.cuda.delta_step import COLUMNS, num_slices
from ninfer.kernels.cuda.fragments import CHUNK
from ninfer.kernels.cuda.launch import KernelShapes, block_parts, blocks_for
from ninfer.kernels.operand_groups import MixerDims, MixerState, MixerWeights
from ninfer.tensor import DType, LinearInput, Tensor

_MAX_VALUE_DIM: Final = 256  # the chunks of a head are lanes of one warp
_ALIGNMENT: Final = 256


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
        ShapeError: the heads cannot be split over warps, or the rows need more scratch memory.
    """
    heads = delta_heads(dims)
    num_rows, num_records = slots.shape[0], state.record_x.shape[1]
    sizes = (heads.key_width, heads.value_width, 2 * heads.num_value_heads, heads.value_width)
    keys, values, gates, outputs = _scratch(stream, [4 * num_rows * size for size in sizes])
    rings = (state.record_x, state.record_k, state.record_v, state.record_g, state.record_beta)
    records = tuple(plane.address for plane in rings)
    stream.launch(
        make_decode_state(heads, ab.dtype is DType.F32),
        (num_slices(heads), heads.num_value_heads, num_rows),
        (
            projected.address,
            ab.address,
            weights.convolution.address,
            weights.a_log.address,
            weights.dt_bias.address,
            state.matrices.address,
            state.window.address,
            *records,
            slots.address,
            fold.address,
            keys,
            values,
            gates,
            outputs,
            num_records,
        ),
    )
    base, sums, padded = block_parts(out)
    stream.launch(
        make_round_end(heads),
        (num_rows, blocks_for(max(heads.channels, padded // CHUNK), THREADS), 1),
        (
            outputs,
            weights.norm.address,
            projected.address,
            base,
            sums,
            state.window.address,
            *records,
            slots.address,
            fold.address,
            keys,
            values,
            gates,
            num_records,
            eps,
        ),
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
    sizes = (
        heads.key_width,
        heads.key_width,
        heads.value_width,
        2 * heads.num_value_heads,
        heads.value_width,
    )
    piece = max(1, (stream.scratch.nbytes - len(sizes) * _ALIGNMENT) // (4 * sum(sizes)))
    first = 0
    while first == 0 or first < num_columns:
        count = min(piece, num_columns - first)
        parts = _scratch(stream, [4 * count * size for size in sizes])
        _advance(stream, heads, projected, ab, weights, state, slot, fold, first, count, parts)
        base, sums, padded = block_parts(out)
        stream.launch(
            make_gated_norm(heads),
            (count, blocks_for(padded // CHUNK, THREADS), 1),
            (parts[4], weights.norm.address, projected.address, base, sums, first, eps),
        )
        first += piece
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
    return kernels_of(heads)


def kernels_of(heads: DeltaHeads) -> tuple[Kernel, ...]:
    """Kernels of one mixer, with decay inputs in f32."""
    return (
        make_columns(heads, True),
        make_window(heads),
        make_decode_state(heads, True),
        make_prefill_state(heads),
        make_gated_norm(heads),
        make_round_end(heads),
    )


def delta_heads(dims: MixerDims) -> DeltaHeads:
    """Heads of a mixer that the kernels can split.

    Raises:
        ShapeError: they cannot.
    """
    heads = DeltaHeads(dims.num_key_heads, dims.num_value_heads, dims.key_dim, dims.value_dim)
    size = heads.value_dim
    is_split = size % COLUMNS == 0 and size & (size - 1) == 0 and size <= _MAX_VALUE_DIM
    if not is_split or heads.key_dim % COLUMNS or heads.sharing > 32:
        raise ShapeError(f"CUDA kernels do not split heads of {heads.key_dim} x {size}")
    return heads


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
    parts: Sequence[int],
) -> None:
    """Launch columns ``[first, first + count)`` up to the output of the recurrence."""
    queries, keys, values, gates, outputs = parts
    num_records = state.record_x.shape[1]
    stream.launch(
        make_columns(heads, ab.dtype is DType.F32),
        (count, heads.num_key_heads, 1),
        (
            projected.address,
            ab.address,
            weights.convolution.address,
            weights.a_log.address,
            weights.dt_bias.address,
            state.window.address,
            state.record_x.address,
            slot.address,
            fold.address,
            queries,
            keys,
            values,
            gates,
            first,
            num_records,
        ),
    )
    stream.launch(
        make_prefill_state(heads),
        (heads.num_value_heads, num_slices(heads), 1),
        (
            queries,
            keys,
            values,
            gates,
            state.matrices.address,
            state.record_k.address,
            state.record_v.address,
            state.record_g.address,
            state.record_beta.address,
            slot.address,
            fold.address,
            outputs,
            count,
            num_records,
            int(first == 0),
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
