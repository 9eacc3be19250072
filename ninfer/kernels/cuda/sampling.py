"""Token choice on CUDA: counting, the kernels of a choice, and scores of given tokens.

A choice is one launch of `choice_cluster` where blocks can start in clusters and hold a row
together, and elsewhere the five of `choice_kernels`, in groups of rows that the stream's scratch
memory has room for. A score is one block for each row: largest logit, then the sum of exponentials
in f64, whose order is a function of the vocabulary alone.
"""

import math
from functools import cache
from typing import Final

from numba import cuda, float32, float64, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.cuda.stream import CudaStream
from ninfer.errors import ShapeError
from ninfer.kernels.cuda import choice_kernels as choice
from ninfer.kernels.cuda import choice_values as values
from ninfer.kernels.cuda.choice_cluster import make_choose
from ninfer.kernels.cuda.choice_draw import make_draw
from ninfer.kernels.cuda.choice_passes import SLICES
from ninfer.kernels.cuda.choice_room import ROOM
from ninfer.kernels.cuda.choice_selection import MAX_IDS
from ninfer.kernels.cuda.choice_values import Line
from ninfer.kernels.cuda.device_functions import warp_sum
from ninfer.kernels.cuda.launch import RESERVED_SHARED, KernelShapes
from ninfer.kernels.operand_groups import SamplerSettings
from ninfer.tensor import Tensor

_COUNT_THREADS: Final = 32
_SCORE_THREADS: Final = 512
_SCORE_WARPS: Final = _SCORE_THREADS // 32


def count_tokens(
    stream: CudaStream, counts: Tensor, slots: Tensor, tokens: Tensor, flags: Tensor
) -> None:
    """Add 1 to ``counts[slots[b], tokens[b]]`` where ``flags[b]``; outside the table it traps."""
    num_rows = slots.size
    stream.launch(
        make_count(),
        (-(-num_rows // _COUNT_THREADS), 1, 1),
        (
            counts.address,
            slots.address,
            tokens.address,
            flags.address,
            num_rows,
            *counts.shape,
        ),
    )


def sample(
    stream: CudaStream,
    logits: Tensor,
    rows: SamplerSettings,
    counts: Tensor,
    slots: Tensor,
    mask: Tensor,
    addressable: int,
    tokens: Tensor,
) -> None:
    """Choose ``tokens[b]``.

    Raises:
        ShapeError: the vocabulary is larger than candidate words have room for.
    """
    num_rows, vocabulary = logits.shape
    if addressable > MAX_IDS:
        raise ShapeError(f"{addressable} ids, the CUDA choice takes up to {MAX_IDS}")
    is_together = has_room(stream.has_clusters, stream.shared_bytes)
    most = max(1, num_rows) if is_together else choice.MAX_ROWS
    for first in range(0, num_rows, most):
        count = min(most, num_rows - first)
        row_tensors = (
            rows.temperature,
            rows.top_p,
            rows.min_p,
            rows.presence,
            rows.frequency,
            rows.top_k,
            rows.seeds,
            rows.positions,
        )
        args = (
            logits.rows(first, count).address,
            *(tensor.rows(first, count).address for tensor in row_tensors),
            counts.address,
            slots.rows(first, count).address,
            mask.rows(first, count).address,
            stream.scratch.address,
            vocabulary,
            mask.shape[1],
            addressable,
            tokens.rows(first, count).address,
        )
        if is_together:
            stream.launch(make_choose(), (ROOM.blocks, count, 1), args)
            continue
        for kernel in slice_kernels():
            stream.launch(kernel, (SLICES, count, 1), args)


def score(
    stream: CudaStream,
    logits: Tensor,
    targets: Tensor,
    addressable: int,
    logprobs: Tensor,
    argmax: Tensor,
) -> None:
    """Write the log-probability of ``targets[t]`` and the most probable id."""
    num_rows, vocabulary = logits.shape
    stream.launch(
        make_score(),
        (num_rows, 1, 1),
        (
            logits.address,
            targets.address,
            logprobs.address,
            argmax.address,
            vocabulary,
            addressable,
        ),
    )


def declared(shapes: KernelShapes) -> tuple[Kernel, ...]:
    """Kernels a model needs: the same for every vocabulary."""
    is_together = has_room(shapes.has_clusters, shapes.block_shared_bytes)
    chosen = (make_choose(),) if is_together else slice_kernels()
    return (make_count(), *chosen, make_score())


def has_room(has_clusters: bool, block_shared_bytes: int) -> bool:
    """Whether a device chooses tokens by clusters."""
    return has_clusters and ROOM.nbytes + RESERVED_SHARED <= block_shared_bytes


def slice_kernels() -> tuple[Kernel, ...]:
    """The kernels of a choice without clusters, in order."""
    return (
        choice.make_survey(),
        choice.make_weigh(),
        choice.make_cut(),
        choice.make_narrow(),
        make_draw(),
    )


@cache
def make_count() -> Kernel:
    """One thread per row; rows may name the same slot, integer additions commute."""

    def count(
        counts: int,
        slots: int,
        tokens: int,
        flags: int,
        num_rows: int,
        num_slots: int,
        vocabulary: int,
    ) -> None:
        ptx.release_successor()
        ptx.wait_for_predecessor()
        row = int32(cuda.blockIdx.x * _COUNT_THREADS + cuda.threadIdx.x)
        if row < num_rows and ptx.load_i32(flags + uint64(row) * uint64(4)) != 0:
            slot = ptx.load_i32(slots + uint64(row) * uint64(4))
            token = ptx.load_i32(tokens + uint64(row) * uint64(4))
            if slot < 0 or slot >= num_slots or token < 0 or token >= vocabulary:
                ptx.trap()
            else:
                at = uint64(slot) * uint64(vocabulary) + uint64(token)
                ptx.reduce_add_u32(counts + at * uint64(4), uint32(1))

    params = (Param.ADDRESS,) * 4 + (Param.I32,) * 3
    return Kernel("count_tokens", count, params, threads=_COUNT_THREADS, max_registers=32)


@cache
def make_score() -> Kernel:
    """One block per row; grid (rows,), block (512,)."""

    def score_row(
        logits: int, targets: int, logprobs: int, argmax: int, vocabulary: int, addressable: int
    ) -> None:
        words = cuda.shared.array(_SCORE_WARPS, uint64)
        sums = cuda.shared.array(_SCORE_WARPS, float64)
        ptx.release_successor()
        ptx.wait_for_predecessor()
        tid = int32(cuda.threadIdx.x)
        row = uint64(cuda.blockIdx.x)
        none, zero = uint64(0), float32(0.0)
        line = Line(logits + row * uint64(vocabulary) * uint64(4), none, none, zero, zero)
        best = uint64(0)
        for token in range(tid, addressable, _SCORE_THREADS):
            value = values.penalised_logit(line, token)
            best = max(best, values.candidate_word(value, token))
        best = values.warp_best(best)
        if tid & 31 == 0:
            words[tid >> 5] = best
        cuda.syncthreads()
        best = words[0]
        for i in range(1, _SCORE_WARPS):
            best = max(best, words[i])
        largest = values.word_value(best)
        total = float64(0.0)
        if best != uint64(0):
            for token in range(tid, addressable, _SCORE_THREADS):
                value = values.penalised_logit(line, token)
                total += float64(math.exp(value - largest))
        total = warp_sum(total)
        if tid & 31 == 0:
            sums[tid >> 5] = total
        cuda.syncthreads()
        if tid == 0:
            total = float64(0.0)
            for i in range(_SCORE_WARPS):
                total += sums[i]
            chosen = uint32(0)
            result = float32(-math.inf)
            target = ptx.load_i32(targets + row * uint64(4))
            if best != uint64(0):
                chosen = values.word_token(best)
                if target >= 0 and target < addressable:
                    value = values.penalised_logit(line, target)
                    result = float32(float64(value - largest) - math.log(total))
            ptx.store_u32(argmax + row * uint64(4), chosen)
            ptx.store_f32(logprobs + row * uint64(4), result)

    params = (Param.ADDRESS,) * 4 + (Param.I32,) * 2
    return Kernel("score_rows", score_row, params, threads=_SCORE_THREADS, max_registers=64)
