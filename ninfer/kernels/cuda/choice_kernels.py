"""The five kernels of a token choice over a large vocabulary, without a sort.

    survey    best candidate and lowest permitted id of each slice; clears the row's scratch; of
              a row with a small top_k the slice's best candidates (`choice_short`)
    weigh     histogram of counts and masses over bins of distance to the largest logit
    cut       lists the ids of the bin in which top_k ends
    narrow    selects the k-th candidate in that list; lists the bin in which top_p ends
    draw      selects the nucleus' last candidate; min_p and noise over what is left; argmax

A row is cut into `SLICES` slices of consecutive ids, one block each; grid (SLICES, rows), block
(256,). What every block needs of the row (where top_k ends, the total mass) each works out itself,
from integer sums that do not depend on the order of threads; so a row is the same alone and in any
batch. Kernels that a row's settings make idle return at once. Traffic: one pass over the logits for
each active kernel, from L2. Only one list is long, and only when very many logits are nearly equal.
"""

import math
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
    BEST,
    COUNTS,
    CUTS,
    LENGTHS,
    LISTS,
    LOWEST,
    MASSES,
    NUCLEUS_IDS,
    ROW_BYTES,
    STRIDE,
    TOP_IDS,
)
from ninfer.kernels.cuda.choice_selection import (
    BLOCK,
    find_place,
    load_weights,
)
from ninfer.kernels.cuda.choice_short import KEYS, SLICE_WORDS
from ninfer.kernels.cuda.choice_values import NUM_BINS

MAX_ROWS: Final = 8
"""Rows of one launch: the scratch memory has room for these."""

_WARPS: Final = BLOCK // 32
_PIECES: Final = 3 * 1024
_LOW_BITS: Final = 18  # of a mass; 4096 ids of a slice sum in 32 bits


@device_function
def _id_if(is_permitted: Any, token: Any) -> Any:
    """The id where it is permitted, all ones elsewhere."""
    found = uint32(0xFFFFFFFF)
    if is_permitted != uint32(0):
        found = uint32(token)
    return found


@cache
def make_survey() -> Kernel:
    """Best candidate and lowest permitted id of each slice; clears counters and histograms."""

    @device_function
    def survey(given: Operands) -> None:
        best = cuda.shared.array(_WARPS, uint64)
        lowest = cuda.shared.array(_WARPS, uint32)
        lists = cuda.shared.array(SLICE_WORDS, uint64)
        tid = int32(cuda.threadIdx.x)
        row = cuda.blockIdx.y
        scratch = given.scratches + uint64(row) * uint64(ROW_BYTES)
        passes.clear_scratch(scratch)
        temperature = passes.row_value(given.temperatures, row)
        top_k = passes.row_word(given.top_ks, row)
        line = passes.row_line(given, row)
        first_id = uint32(0xFFFFFFFF)
        keys = cuda.local.array(KEYS, uint32)
        first, stop = passes.slice_bounds(given.addressable)
        first += tid
        for step in range(KEYS // 4):
            t0 = first + int32(STRIDE * step)
            v0, v1, v2, v3, p0, p1, p2, p3 = passes.fetch_four(line, t0, stop)
            keys[4 * step], keys[4 * step + 1] = values.key_of(v0), values.key_of(v1)
            keys[4 * step + 2], keys[4 * step + 3] = values.key_of(v2), values.key_of(v3)
            first_id = min(first_id, _id_if(p3, t0 + int32(3 * BLOCK)))
            first_id = min(first_id, _id_if(p2, t0 + int32(2 * BLOCK)))
            first_id = min(first_id, _id_if(p1, t0 + int32(BLOCK)))
            first_id = min(first_id, _id_if(p0, t0))
        mine = uint64(0)
        for i in range(KEYS):
            mine = max(mine, values.word_of_key(keys[i], first + int32(BLOCK * i)))
        mine, first_id = values.warp_best(mine), values.warp_lowest(first_id)
        if tid & 31 == 0:
            best[tid >> 5] = mine
            lowest[tid >> 5] = first_id
        cuda.syncthreads()
        at = uint64(cuda.blockIdx.x)
        if tid == 0:
            for i in range(1, _WARPS):
                mine = max(mine, best[i])
                first_id = min(first_id, lowest[i])
            ptx.store_u64(scratch + uint64(BEST) + at * uint64(8), mine)
            ptx.store_u32(scratch + uint64(LOWEST) + at * uint64(4), first_id)
        if short.is_short(temperature, int32(top_k)):
            to = scratch + uint64(LISTS) + at * uint64(8 * short.MOST)
            short.list_best(keys, first, int32(top_k), to, lists)

    return row_kernel("choice_survey", survey, max_registers=64, min_blocks=4)


@device_function
def _weigh_one(
    number: Any, low: Any, high: Any, value: Any, largest: Any, temperature: Any, has_top_p: Any
) -> None:
    """Count a candidate in its shared bin; for top_p add its mass too, in two parts."""
    if value > float32(-math.inf):
        place = values.bin_of(value, largest)
        cuda.atomic.add(number, place, uint32(1))
        if has_top_p:
            mass = values.mass_of(value, largest, temperature)
            lower = uint32(mass & uint64((1 << _LOW_BITS) - 1))
            upper = uint32(mass >> uint64(_LOW_BITS))
            if lower != uint32(0):
                cuda.atomic.add(low, place, lower)
            if upper != uint32(0):
                cuda.atomic.add(high, place, upper)


@device_function
def _flush_bins(
    scratch: int, number: Any, low: Any, high: Any, has_top_k: Any, has_top_p: Any
) -> None:
    """Add what the row's filters need of the block's bins to the row's."""
    for i in range(int32(cuda.threadIdx.x), NUM_BINS, BLOCK):
        if number[i] != uint32(0):
            at = uint64(i) * uint64(8)
            if has_top_k:
                ptx.reduce_add_u64(scratch + uint64(COUNTS) + at, uint64(number[i]))
            if has_top_p:
                mass = uint64(low[i]) + (uint64(high[i]) << uint64(_LOW_BITS))
                ptx.reduce_add_u64(scratch + uint64(MASSES) + at, mass)


@cache
def make_weigh() -> Kernel:
    """Counts and masses of the row's bins; idle without top_k and top_p."""

    @device_function
    def weigh(given: Operands) -> None:
        number = cuda.shared.array(NUM_BINS, uint32)
        low = cuda.shared.array(NUM_BINS, uint32)
        high = cuda.shared.array(NUM_BINS, uint32)
        tid = int32(cuda.threadIdx.x)
        row = cuda.blockIdx.y
        temperature = passes.row_value(given.temperatures, row)
        has_top_k = int32(passes.row_word(given.top_ks, row)) > 0
        has_top_p = passes.row_value(given.top_ps, row) < float32(1.0)
        scratch = given.scratches + uint64(row) * uint64(ROW_BYTES)
        best = uint64(0)
        is_long = not short.is_short(temperature, int32(passes.row_word(given.top_ks, row)))
        if temperature > float32(0.0) and is_long and (has_top_k or has_top_p):
            best = passes.best_of_row(scratch)
        if best != uint64(0):
            for i in range(tid, NUM_BINS, BLOCK):
                number[i] = uint32(0)
                low[i] = uint32(0)
                high[i] = uint32(0)
            cuda.syncthreads()
            largest = values.word_value(best)
            line = passes.row_line(given, row)
            first, stop = passes.slice_bounds(given.addressable)
            for t0 in range(first + tid, stop, STRIDE):
                v0, v1, v2, v3, _, _, _, _ = passes.fetch_four(line, t0, stop)
                _weigh_one(number, low, high, v0, largest, temperature, has_top_p)
                _weigh_one(number, low, high, v1, largest, temperature, has_top_p)
                _weigh_one(number, low, high, v2, largest, temperature, has_top_p)
                _weigh_one(number, low, high, v3, largest, temperature, has_top_p)
            cuda.syncthreads()
            _flush_bins(scratch, number, low, high, has_top_k, has_top_p)

    return row_kernel("choice_weigh", weigh, max_registers=64)


@cache
def make_cut() -> Kernel:
    """Ids of the bin in which top_k ends; idle without top_k."""

    @device_function
    def cut(given: Operands) -> None:
        weights = cuda.shared.array(NUM_BINS, uint64)
        parts = cuda.shared.array(BLOCK, uint64)
        found = cuda.shared.array(2, uint64)
        row = cuda.blockIdx.y
        scratch = given.scratches + uint64(row) * uint64(ROW_BYTES)
        top_k = int32(passes.row_word(given.top_ks, row))
        is_sampled = passes.row_value(given.temperatures, row) > float32(0.0)
        best = uint64(0)
        if is_sampled and top_k > int32(short.MOST):
            best = passes.best_of_row(scratch)
        if best != uint64(0):
            load_weights(scratch + uint64(COUNTS), weights)
            last_bin, _ = find_place(weights, NUM_BINS, uint64(top_k), parts, found)
            if last_bin < int32(NUM_BINS):
                line = passes.row_line(given, row)
                passes.list_bin(
                    line,
                    given.addressable,
                    values.word_value(best),
                    uint64(0),
                    last_bin,
                    scratch + uint64(LENGTHS),
                    scratch + uint64(TOP_IDS),
                )

    return row_kernel("choice_cut", cut, max_registers=64)


@cache
def make_narrow() -> Kernel:
    """Where top_k ends, exactly; then the ids of the bin in which top_p ends."""

    @device_function
    def narrow(given: Operands) -> None:
        weights = cuda.shared.array(NUM_BINS, uint64)
        pieces = cuda.shared.array(_PIECES, uint32)
        parts = cuda.shared.array(BLOCK, uint64)
        found = cuda.shared.array(2, uint64)
        row = cuda.blockIdx.y
        scratch = given.scratches + uint64(row) * uint64(ROW_BYTES)
        top_k = int32(passes.row_word(given.top_ks, row))
        top_p = passes.row_value(given.top_ps, row)
        temperature = passes.row_value(given.temperatures, row)
        has_top_p = top_p < float32(1.0)
        is_writer = cuda.blockIdx.x == 0 and cuda.threadIdx.x == 0
        is_needed = has_top_p or (top_k > 0 and cuda.blockIdx.x == 0)
        best = uint64(0)
        is_long = not short.is_short(temperature, top_k)
        if temperature > float32(0.0) and is_long and is_needed:
            best = passes.best_of_row(scratch)
        if best != uint64(0):
            largest = values.word_value(best)
            line = passes.row_line(given, row)
            last_bin, end, kept = passes.end_of_top(
                scratch,
                top_k,
                line,
                largest,
                temperature,
                pieces,
                weights,
                parts,
                found,
            )
            if is_writer:
                ptx.store_u64(scratch + uint64(CUTS), end)
            if has_top_p:
                nucleus_bin, left = passes.bin_of_nucleus(
                    scratch, top_p, last_bin, kept, weights, parts, found
                )
                if is_writer:
                    ptx.store_u64(scratch + uint64(CUTS + 8), left)
                passes.list_bin(
                    line,
                    given.addressable,
                    largest,
                    end,
                    nucleus_bin,
                    scratch + uint64(LENGTHS + 4),
                    scratch + uint64(NUCLEUS_IDS),
                )

    return row_kernel("choice_narrow", narrow, max_registers=128)
