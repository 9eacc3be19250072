"""Parts of the kernels of a token choice: the row's scratch, its slices, and passes over them.

A row is cut into `SLICES` slices of consecutive ids, one block each. The scratch of a row holds
what one kernel leaves for the next. Every function is called by all threads of a block.
"""

from typing import Any, Final

from numba import cuda, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda import choice_values as values
from ninfer.kernels.cuda.choice_operands import Operands
from ninfer.kernels.cuda.choice_selection import (
    BLOCK,
    MAX_IDS,
    block_total,
    find_place,
    load_weights,
    select_word,
    short_word,
)
from ninfer.kernels.cuda.choice_short import NUM_LISTS, ROW_WORDS
from ninfer.kernels.cuda.choice_values import NUM_BINS, Line

SLICES: Final = NUM_LISTS
STRIDE: Final = 4 * BLOCK
"""Ids of one step of a block: each thread has four loads under way."""

# Scratch of one row, in bytes.
BEST: Final = 0  # u64 [SLICES]
LOWEST: Final = 512  # u32 [SLICES]
DRAWN: Final = 768  # u64 [SLICES]
LENGTHS: Final = 1280  # u32: top_k list, top_p list, arrivals
CUTS: Final = 1296  # u64: short word where top_k ends, mass left for top_p
COUNTS: Final = 2048  # u64 [NUM_BINS]
MASSES: Final = COUNTS + 8 * NUM_BINS  # u64 [NUM_BINS]
TOP_IDS: Final = MASSES + 8 * NUM_BINS  # u32 [MAX_IDS]
NUCLEUS_IDS: Final = TOP_IDS + 4 * MAX_IDS  # u32 [MAX_IDS]
LISTS: Final = NUCLEUS_IDS + 4 * MAX_IDS  # u64 [SLICES][MOST]
ROW_BYTES: Final = LISTS + 8 * ROW_WORDS


Address = Any
Shared = Any


@device_function
def slice_bounds(addressable: Any) -> Any:
    """First id of the block's slice and the end of it."""
    span = (int32(addressable) + int32(SLICES - 1)) // int32(SLICES)
    first = int32(cuda.blockIdx.x) * int32(span)
    return int32(first), min(int32(first + span), int32(addressable))


@device_function
def row_word(table: Address, row: Any) -> Any:
    """Entry of a u32 or i32 table of rows."""
    return ptx.load_u32(table + uint64(row) * uint64(4))


@device_function
def row_value(table: Address, row: Any) -> Any:
    """Entry of an f32 table of rows."""
    return ptx.load_f32(table + uint64(row) * uint64(4))


@device_function
def row_line(given: Operands, row: Any) -> Any:
    """The `Line` of a row."""
    vocabulary = uint64(given.vocabulary)
    logits = given.logits + uint64(row) * vocabulary * uint64(4)
    mask = given.mask + uint64(row) * uint64(given.mask_words) * uint64(4)
    counts = given.counts + uint64(row_word(given.slots, row)) * vocabulary * uint64(4)
    once, each = row_value(given.presences, row), row_value(given.frequencies, row)
    return Line(logits, mask, counts, once, each)


@device_function
def fetch_four(line: Line, token: Any, stop: Any) -> Any:
    """Penalised logits of ids `BLOCK` apart from one on, then which of them are permitted."""
    v0, p0 = values.fetch(line, token, stop)
    v1, p1 = values.fetch(line, token + int32(BLOCK), stop)
    v2, p2 = values.fetch(line, token + int32(2 * BLOCK), stop)
    v3, p3 = values.fetch(line, token + int32(3 * BLOCK), stop)
    return v0, v1, v2, v3, p0, p1, p2, p3


@device_function
def best_of_row(scratch: Address) -> Any:
    """Best candidate of the row, from its slices; every warp works it out."""
    lane = uint64(cuda.threadIdx.x & 31)
    first = ptx.load_u64(scratch + uint64(BEST) + lane * uint64(8))
    second = ptx.load_u64(scratch + uint64(BEST) + (lane + uint64(32)) * uint64(8))
    return values.warp_best(max(first, second))


@device_function
def lowest_of_row(scratch: Address) -> Any:
    """Lowest permitted id of the row, all ones when there is none."""
    lane = uint64(cuda.threadIdx.x & 31)
    first = ptx.load_u32(scratch + uint64(LOWEST) + lane * uint64(4))
    second = ptx.load_u32(scratch + uint64(LOWEST) + (lane + uint64(32)) * uint64(4))
    return values.warp_lowest(min(first, second))


@device_function
def clear_scratch(scratch: Address) -> None:
    """Zero the block's share of the histograms, and the counters."""
    tid = int32(cuda.threadIdx.x)
    if tid < int32(NUM_BINS // SLICES):
        bin_index = uint64(cuda.blockIdx.x) * uint64(NUM_BINS // SLICES) + uint64(tid)
        ptx.store_u64(scratch + uint64(COUNTS) + bin_index * uint64(8), uint64(0))
        ptx.store_u64(scratch + uint64(MASSES) + bin_index * uint64(8), uint64(0))
    if cuda.blockIdx.x == 0 and tid < 3:
        ptx.store_u32(scratch + uint64(LENGTHS) + uint64(tid) * uint64(4), uint32(0))
        if tid < 2:
            ptx.store_u64(scratch + uint64(CUTS) + uint64(tid) * uint64(8), uint64(0))


@device_function
def append_id(is_wanted: Any, token: Any, length: Address, ids: Address) -> None:
    """Append the wanted ids of a warp to a list; all lanes take part."""
    votes = uint32(cuda.ballot_sync(0xFFFFFFFF, is_wanted))
    lane = uint32(cuda.threadIdx.x & 31)
    start = int32(0)
    if lane == uint32(0) and votes != uint32(0):
        start = int32(ptx.fetch_add_u32(length, uint32(cuda.popc(votes))))
    start = int32(cuda.shfl_sync(0xFFFFFFFF, start, 0))
    if is_wanted:
        before = votes & ((uint32(1) << lane) - uint32(1))
        place = uint64(start) + uint64(cuda.popc(before))
        ptx.store_u32(ids + place * uint64(4), uint32(token))


@device_function
def list_bin(
    line: Line,
    addressable: Any,
    largest: Any,
    end: Any,
    wanted_bin: Any,
    length: Address,
    ids: Address,
) -> None:
    """List the slice's candidates that lie in a bin and not behind ``end``."""
    first, stop = slice_bounds(addressable)
    mine = first + int32(cuda.threadIdx.x)
    for start in range(0, stop - first, STRIDE):
        t0 = mine + int32(start)
        t1, t2, t3 = t0 + int32(BLOCK), t0 + int32(2 * BLOCK), t0 + int32(3 * BLOCK)
        v0, v1, v2, v3, _, _, _, _ = fetch_four(line, t0, stop)
        append_id(_is_in_bin(v0, t0, largest, end, wanted_bin), t0, length, ids)
        append_id(_is_in_bin(v1, t1, largest, end, wanted_bin), t1, length, ids)
        append_id(_is_in_bin(v2, t2, largest, end, wanted_bin), t2, length, ids)
        append_id(_is_in_bin(v3, t3, largest, end, wanted_bin), t3, length, ids)


@device_function
def _is_in_bin(value: Any, token: Any, largest: Any, end: Any, wanted_bin: Any) -> Any:
    """Whether a candidate lies in a bin and not behind ``end``."""
    word = values.candidate_word(value, token)
    is_kept = word != uint64(0) and short_word(word) >= end
    return is_kept and values.bin_of(value, largest) == wanted_bin


@device_function
def end_of_top(
    scratch: Address,
    top_k: Any,
    line: Line,
    largest: Any,
    temperature: Any,
    pieces: Shared,
    weights: Shared,
    parts: Shared,
    found: Shared,
) -> Any:
    """Bin and short word in which top_k ends, and the mass it keeps of that bin.

    Without top_k, or with fewer candidates, the bin is `NUM_BINS` and the word 0.
    """
    last_bin, end, kept = int32(NUM_BINS), uint64(0), uint64(0)
    if top_k > 0:
        load_weights(scratch + uint64(COUNTS), weights)
        last_bin, before = find_place(weights, NUM_BINS, uint64(top_k), parts, found)
        if last_bin < int32(NUM_BINS):
            ids = scratch + uint64(TOP_IDS)
            num_ids = int32(ptx.load_u32(scratch + uint64(LENGTHS)))
            end = select_word(
                ids,
                num_ids,
                uint64(top_k) - before,
                False,
                line,
                largest,
                temperature,
                pieces,
                weights,
                parts,
                found,
            )
            for i in range(int32(cuda.threadIdx.x), num_ids, BLOCK):
                token = ptx.load_u32(ids + uint64(i) * uint64(4))
                value = values.penalised_logit(line, token)
                if short_word(values.candidate_word(value, token)) >= end:
                    kept += values.mass_of(value, largest, temperature)
            kept = block_total(kept, parts)
    return last_bin, end, kept


@device_function
def bin_of_nucleus(
    scratch: Address,
    top_p: Any,
    last_bin: Any,
    kept: Any,
    weights: Shared,
    parts: Shared,
    found: Shared,
) -> Any:
    """Bin in which top_p ends, and the mass that is left to reach in it."""
    tid = int32(cuda.threadIdx.x)
    cuda.syncthreads()
    load_weights(scratch + uint64(MASSES), weights)
    total = uint64(0)
    for i in range(tid, NUM_BINS, BLOCK):
        if i == last_bin:
            weights[i] = kept
        elif i > last_bin:
            weights[i] = uint64(0)
        total += weights[i]
    total = block_total(total, parts)
    target = values.mass_target(total, top_p)
    place, before = find_place(weights, NUM_BINS, target, parts, found)
    return int32(place), target - before
