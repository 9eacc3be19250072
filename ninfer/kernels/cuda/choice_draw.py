"""The last kernel of a token choice: the end of the nucleus, min_p, noise and the argmax.

Each block scores the candidates of its slice that every filter has kept; the row's last block to
arrive takes the best of all slices, whatever the order of arrival, and writes the token. The other
kernels are in `choice_kernels`.
"""

from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel
from ninfer.kernels.cuda import choice_passes as passes
from ninfer.kernels.cuda import choice_short as short
from ninfer.kernels.cuda import choice_values as values
from ninfer.kernels.cuda.choice_operands import Operands, row_kernel
from ninfer.kernels.cuda.choice_passes import (
    CUTS,
    DRAWN,
    LENGTHS,
    LISTS,
    NUCLEUS_IDS,
    ROW_BYTES,
    SLICES,
    STRIDE,
)
from ninfer.kernels.cuda.choice_selection import BLOCK, select_word, short_word
from ninfer.kernels.cuda.choice_short import ROW_WORDS
from ninfer.kernels.cuda.choice_values import NUM_BINS

_WARPS: Final = BLOCK // 32
_PIECES: Final = 3 * 1024


@device_function
def _publish(scratch: int, mine: Any, parts: Any) -> Any:
    """Leave the block's best score in the scratch; whether the block is the row's last one.

    Thread 0 learns it; the others get 0.
    """
    tid = int32(cuda.threadIdx.x)
    mine = values.warp_best(mine)
    cuda.syncthreads()
    if tid & 31 == 0:
        parts[tid >> 5] = mine
    cuda.syncthreads()
    is_last = int32(0)
    if tid == 0:
        for i in range(1, _WARPS):
            mine = max(mine, parts[i])
        at = uint64(cuda.blockIdx.x) * uint64(8)
        ptx.store_u64(scratch + uint64(DRAWN) + at, mine)
        ptx.fence_gpu()
        arrived = ptx.fetch_add_release_u32(scratch + uint64(LENGTHS + 8), uint32(1))
        if arrived == uint32(SLICES - 1):
            is_last = int32(1)
    return is_last


@device_function
def _conclude(scratch: int, best: Any, target: int) -> None:
    """Write the row's token from what the blocks have left; called by one warp."""
    ptx.fence_gpu()
    lane = uint64(cuda.threadIdx.x)
    drawn = scratch + uint64(DRAWN)
    first = ptx.load_u64(drawn + lane * uint64(8))
    second = ptx.load_u64(drawn + (lane + uint64(32)) * uint64(8))
    word = values.warp_best(max(first, second))
    _write_token(word, best, passes.lowest_of_row(scratch), target)


@device_function
def _score(
    value: Any,
    token: Any,
    end: Any,
    largest: Any,
    temperature: Any,
    floor: Any,
    position: Any,
    seed_low: Any,
    seed_high: Any,
) -> Any:
    """Word of an id's score; 0 for one that a filter has taken out."""
    found = uint64(0)
    word = values.candidate_word(value, token)
    if word != uint64(0) and short_word(word) >= end:
        score = (value - largest) / temperature
        if not floor > float32(0.0) or values.share_of(score) >= floor:
            score += values.gumbel_noise(position, token, seed_low, seed_high)
            found = values.score_word(score, token)
    return found


@device_function
def _draw_short(
    word: Any,
    best: Any,
    temperature: Any,
    top_p: Any,
    min_p: Any,
    position: Any,
    seed: Any,
    lowest: Any,
    target: Any,
) -> None:
    """The end of a row with a small top_k: each lane of a warp has a candidate, in order."""
    largest = values.word_value(best)
    mass = short.mass_of_word(word, largest, temperature)
    is_kept = word != uint64(0)
    if top_p < float32(1.0):
        is_kept = short.is_in_nucleus(mass, top_p) and is_kept
    score = uint64(0)
    if is_kept:
        score = _score(
            values.word_value(word),
            values.word_token(word),
            uint64(0),
            largest,
            temperature,
            min(min_p, float32(1.0)),
            position,
            ptx.load_u32(seed),
            ptx.load_u32(seed + uint64(4)),
        )
    _write_token(values.warp_best(score), best, lowest, target)


@device_function
def _write_token(word: Any, best: Any, lowest: Any, target: Any) -> None:
    """Write the id of the best score, of the best candidate, or the lowest one permitted."""
    if word == uint64(0):
        word = best
    chosen = values.word_token(word)
    if word == uint64(0):
        chosen = lowest
    if cuda.threadIdx.x == 0:
        ptx.store_u32(target, uint32(chosen))


@cache
def make_draw() -> Kernel:
    """Where top_p ends, exactly; min_p, noise and argmax; the last block writes the token."""

    @device_function
    def draw(given: Operands) -> None:
        weights = cuda.shared.array(NUM_BINS, uint64)
        pieces = cuda.shared.array(_PIECES, uint32)
        parts = cuda.shared.array(BLOCK, uint64)
        found = cuda.shared.array(2, uint64)
        lists = cuda.shared.array(ROW_WORDS, uint64)
        tid = int32(cuda.threadIdx.x)
        row = cuda.blockIdx.y
        scratch = given.scratches + uint64(row) * uint64(ROW_BYTES)
        temperature = passes.row_value(given.temperatures, row)
        top_p = passes.row_value(given.top_ps, row)
        best = passes.best_of_row(scratch)
        mine = uint64(0)
        is_short = short.is_short(temperature, int32(passes.row_word(given.top_ks, row)))
        if is_short:
            if cuda.blockIdx.x == 0:
                word = short.merge_lists(
                    scratch + uint64(LISTS), int32(passes.row_word(given.top_ks, row)), lists
                )
                if tid < 32:
                    _draw_short(
                        word,
                        best,
                        temperature,
                        top_p,
                        passes.row_value(given.min_ps, row),
                        passes.row_word(given.positions, row),
                        given.seeds + uint64(row) * uint64(8),
                        passes.lowest_of_row(scratch),
                        given.tokens + uint64(row) * uint64(4),
                    )
        elif temperature > float32(0.0) and best != uint64(0):
            largest = values.word_value(best)
            line = passes.row_line(given, row)
            end = ptx.load_u64(scratch + uint64(CUTS))
            if top_p < float32(1.0):
                nucleus_end = select_word(
                    scratch + uint64(NUCLEUS_IDS),
                    int32(ptx.load_u32(scratch + uint64(LENGTHS + 4))),
                    ptx.load_u64(scratch + uint64(CUTS + 8)),
                    True,
                    line,
                    largest,
                    temperature,
                    pieces,
                    weights,
                    parts,
                    found,
                )
                end = max(end, nucleus_end)
            floor = min(passes.row_value(given.min_ps, row), float32(1.0))
            row_settings = (
                end,
                largest,
                temperature,
                floor,
                passes.row_word(given.positions, row),
                ptx.load_u32(given.seeds + uint64(row) * uint64(8)),
                ptx.load_u32(given.seeds + uint64(row) * uint64(8) + uint64(4)),
            )
            first, stop = passes.slice_bounds(given.addressable)
            for t0 in range(first + tid, stop, STRIDE):
                t1, t2, t3 = t0 + int32(BLOCK), t0 + int32(2 * BLOCK), t0 + int32(3 * BLOCK)
                v0, v1, v2, v3, _, _, _, _ = passes.fetch_four(line, t0, stop)
                mine = max(mine, _score(v0, t0, *row_settings))
                mine = max(mine, _score(v1, t1, *row_settings))
                mine = max(mine, _score(v2, t2, *row_settings))
                mine = max(mine, _score(v3, t3, *row_settings))
        is_last = int32(0)
        if not is_short:
            is_last = _publish(scratch, mine, parts)
        if tid < 32 and cuda.shfl_sync(0xFFFFFFFF, is_last, 0) != 0:
            _conclude(scratch, best, given.tokens + uint64(row) * uint64(4))

    return row_kernel("choice_draw", draw, max_registers=128)
