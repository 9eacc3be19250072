"""The ends of a choice by a cluster: few candidates that one block holds, or noise for many.

Few candidates are put in order by the first block, which applies the filters to them. Otherwise
every block scores its kept candidates: a warp puts them in a queue and takes random words for 32 of
them at a time. Whether a score can reach the best one that a warp knows is asked twice: before the
random word, by the largest noise there is, and before the logarithms, by u <= exp(-exp(-t)) and
1 - exp(-x) <= x. Both leave a margin, so that what they leave out could not win.
"""

import math
from typing import Any, Final

from numba import cuda, float32, uint32, uint64

from ninfer.cuda import cluster, ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda import choice_values as values
from ninfer.kernels.cuda.choice_gather import make_rank
from ninfer.kernels.cuda.choice_read import Slice, walk
from ninfer.kernels.cuda.choice_room import QUEUE, Room
from ninfer.kernels.cuda.choice_shares import (
    LN_2,
    LOG2_E,
    Scale,
    height_of,
    mass_at,
    random_word,
    share_at,
    word_height,
    word_id,
    word_of,
)
from ninfer.kernels.cuda.choice_tally import make_scan

_MOST_NOISE: Final = 16.7 * LOG2_E
"""More than any noise, in binary orders of magnitude: u is at most 1 - 2^-24."""

_MARGIN: Final = 1.001
"""Of shares that are compared: more than the rounding of scores."""

LOWEST_HEIGHT: Final = -1e38
"""Below that of every candidate that can win, and above what has left the distribution."""

Device = Any


@device_function
def _noisy(height: Any, token: Any, bits: Any) -> Any:
    """Word of a candidate's score; its random bits are the 23 of u."""
    u = (float32(bits) + float32(0.5)) * float32(2.0**-23)
    score = height * float32(LN_2) - math.log(-math.log(u))
    return uint64(values.score_word(score, token))


@device_function
def _bits_of(token: Any, table: Any) -> Any:
    """Random bits of an id."""
    return uint32(random_word(table, token)) >> uint32(9)


@device_function
def _height_of_score(word: Any) -> Any:
    """The lanes' best score as a height."""
    high = ptx.largest_of_warp(uint32(word >> uint64(32)))
    return values.word_value(uint64(high) << uint64(32)) * float32(LOG2_E)


@device_function
def _can_reach(height: Any, bits: Any, best: Any) -> Any:
    """Whether a candidate's score may be as good as one of the height ``best``."""
    distance = (float32(8388607.5) - float32(bits)) * float32(2.0**-23)  # 1 - u
    share = ptx.power_of_two(height - best)
    return distance <= share * float32(_MARGIN)


@device_function
def _take(
    mine: Slice, local: Any, end: Any, scale: Scale, table: Any, drawn: Any, best: Any, min_p: Any
) -> Any:
    """The better one of a score and a candidate's."""
    value = ptx.shared_f32(mine.shared + uint32(4) * local)
    token, height = uint32(mine.first + local), height_of(value, scale)
    bits = _bits_of(token, table)
    if _can_reach(height, bits, best) and word_of(value, token) >= end:
        if not min_p > float32(0.0) or share_at(height) >= min_p:
            drawn = max(drawn, _noisy(height, token, bits))
    return uint64(drawn)


@device_function
def _floor_of(end: Any, scale: Scale) -> Any:
    """Height below which no candidate is kept."""
    floor = float32(LOWEST_HEIGHT)
    if end != uint64(0):
        floor = max(floor, word_height(end, scale))
    return floor


def make_best_of_block(room: Room) -> Device:
    """Function that finds the largest word of a block, for its first warp."""
    warps, at_parts = room.warps, room.parts

    @device_function
    def best_of_block(shared: Any, word: Any) -> Any:
        tid = uint32(cuda.threadIdx.x)
        word = values.warp_largest(word)
        cuda.syncthreads()
        if tid & uint32(31) == uint32(0):
            ptx.put_shared_u64(shared + uint32(at_parts) + uint32(8) * (tid >> uint32(5)), word)
        cuda.syncthreads()
        if tid < uint32(32):
            word = uint64(0)
            if tid < uint32(warps):
                word = ptx.shared_u64(shared + uint32(at_parts) + uint32(8) * tid)
            word = values.warp_largest(word)
        return word

    return best_of_block


def make_few(room: Room) -> Device:
    """Function by which the first block chooses among the candidates that it was sent."""
    at_ranked, at_words = room.ranked_words, room.words
    scan, rank, best_of_block = make_scan(room), make_rank(room), make_best_of_block(room)

    @device_function
    def choose_few(
        shared: Any,
        number: Any,
        scale: Scale,
        top_k: Any,
        target: Any,
        top_p: Any,
        min_p: Any,
    ) -> Any:
        """Word of the best score, for the first warp; ``target`` 0 is made from what top_k left."""
        tid = uint32(cuda.threadIdx.x)
        rank(shared, number)
        is_kept = tid < number and (top_k == uint32(0) or tid < top_k)
        word, height, mass = uint64(0), float32(0.0), uint64(0)
        if is_kept:
            word = ptx.shared_u64(shared + uint32(at_ranked) + uint32(8) * tid)
            height = word_height(word, scale)
            mass = uint64(mass_at(height))
        if top_p < float32(1.0):
            before, total = scan(shared, mass)
            if target == uint64(0):
                target = uint64(values.mass_target(total, top_p))
            is_kept = is_kept and before < target
        if min_p > float32(0.0):
            is_kept = is_kept and share_at(height) >= min_p
        score = uint64(0)
        if is_kept:
            token = word_id(word)
            score = _noisy(height, token, _bits_of(token, shared + uint32(at_words)))
        return best_of_block(shared, score)

    return choose_few


def make_many(room: Room) -> Device:
    """Function that finds the best score of the row's candidates from a word on.

    Every thread of the cluster takes part; the first warp of the first block gets the score's word.
    """
    threads, blocks, at_queues, at_drawn = room.threads, room.blocks, room.queues, room.drawn
    at_words = room.words
    best_of_block = make_best_of_block(room)

    @device_function
    def share_best(mine: Slice, drawn: Any) -> Any:
        drawn = best_of_block(mine.shared, drawn)
        if cuda.threadIdx.x == 0:
            to = cluster.map_shared(mine.shared + uint32(at_drawn), uint32(0))
            cluster.put_there_u64(to + uint32(8) * mine.block, drawn)
        cluster.release_cluster()
        cluster.wait_cluster()
        if mine.block == uint32(0):
            for i in range(blocks):
                drawn = max(drawn, ptx.shared_u64(mine.shared + uint32(at_drawn + 8 * i)))
        return drawn

    @device_function
    def choose_many(mine: Slice, first: Any, scale: Scale, end: Any, min_p: Any) -> Any:
        tid = uint32(cuda.threadIdx.x)
        lane = tid & uint32(31)
        below = uint32((uint32(1) << lane) - uint32(1))
        queue = uint32(mine.shared + uint32(at_queues) + (tid >> uint32(5)) * uint32(4 * QUEUE))
        floor = _floor_of(end, scale)
        table = uint32(mine.shared + uint32(at_words))
        drawn = _noisy(
            float32(0.0), values.word_token(first), _bits_of(values.word_token(first), table)
        )
        best = _height_of_score(drawn)
        length = uint32(0)
        at, token, stop = walk(mine, threads)
        while at < stop:
            height = height_of(ptx.shared_f32(at), scale)
            is_one = height >= max(best - float32(_MOST_NOISE), floor)
            votes = uint32(cuda.ballot_sync(0xFFFFFFFF, is_one))
            if votes != uint32(0):
                if is_one:
                    place = uint32(length + uint32(cuda.popc(votes & below)))
                    ptx.put_shared_u32(queue + uint32(4) * place, token - mine.first)
                length = uint32(length + uint32(cuda.popc(votes)))
                ptx.sync_warp()
                if length >= uint32(32):
                    length = uint32(length - uint32(32))
                    local = ptx.shared_u32(queue + uint32(4) * (length + lane))
                    drawn = _take(mine, local, end, scale, table, drawn, best, min_p)
                    best = _height_of_score(drawn)
                    ptx.sync_warp()
            at, token = uint32(at + uint32(4 * threads)), uint32(token + uint32(threads))
        if lane < length:
            local = ptx.shared_u32(queue + uint32(4) * lane)
            drawn = _take(mine, local, end, scale, table, drawn, best, min_p)
        return share_best(mine, drawn)

    return choose_many
