"""A token choice by one cluster of blocks a row: everything in one launch.

    read      values of the row's candidates into shared memory, the best of each warp; greedy rows
              and rows without candidates are done
    shortcut  the first block gets what is at least as good as the k-th best warp; where that is
              few, and enough for the filters, it chooses among them alone: most rows end here
    top_k     a tally by depth, then what it points at; where that is many, further tallies
    top_p     the same by mass, over what top_k has left
    draw      noise for what is left; the best score

What a row's settings do not need is left out by all threads at once. Every sum is of integers and
every block decides from the same totals, so that a row's token is the same alone and in any batch.
Grid (8, rows), clusters of 8 blocks of 1,024 threads. Source: `ninfer.ops.sampling`.
"""

from functools import cache
from typing import Any, NamedTuple

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel
from ninfer.kernels.cuda import choice_values as values
from ninfer.kernels.cuda.choice_ends import make_few, make_many
from ninfer.kernels.cuda.choice_gather import make_gather, make_top_key, mass_kept
from ninfer.kernels.cuda.choice_operands import Operands, cluster_kernel
from ninfer.kernels.cuda.choice_passes import row_line, row_value, row_word
from ninfer.kernels.cuda.choice_read import (
    Slice,
    make_agree,
    make_ask,
    make_lowest,
    make_read,
    make_slice,
)
from ninfer.kernels.cuda.choice_room import ROOM, Room
from ninfer.kernels.cuda.choice_search import make_search
from ninfer.kernels.cuda.choice_shares import Scale, prepare_words, scale_of


class _Settings(NamedTuple):
    """What a row is chosen by.

    Attributes:
        temperature, top_p, min_p: as in `ninfer.ops.sampling.SamplerRows`; min_p is at most 1.
        top_k: at least 0.
        position, seed_low, seed_high: what random words are addressed by, beside ids.
    """

    temperature: Any
    top_p: Any
    min_p: Any
    top_k: Any
    position: Any
    seed_low: Any
    seed_high: Any


@device_function
def _settings_of(given: Operands, row: Any) -> _Settings:
    seed = given.seeds + uint64(row) * uint64(8)
    return _Settings(
        row_value(given.temperatures, row),
        row_value(given.top_ps, row),
        min(row_value(given.min_ps, row), float32(1.0)),
        uint32(max(int32(row_word(given.top_ks, row)), int32(0))),
        row_word(given.positions, row),
        ptx.load_u32(seed),
        ptx.load_u32(seed + uint64(4)),
    )


def make_shortcut(room: Room) -> Any:
    """Function that gathers the best candidates where they are likely to be all that is kept."""
    few = room.few
    most = few // 2
    gather, top_key = make_gather(room), make_top_key(room)

    @device_function
    def shortcut(mine: Slice, scale: Scale, top_k: Any, top_p: Any) -> Any:
        """How many candidates the first block was sent, 0 where they do not suffice.

        Also the mass that top_p keeps, 0 where it is a share of what top_k keeps.
        """
        number, target = uint32(0), uint64(0)
        wanted = min(top_k - uint32(1), uint32(most - 1)) + uint32(1)  # top_k 0 is off
        if top_k <= uint32(most) and (top_k > uint32(0) or top_p < float32(1.0)):
            by_mass = top_k == uint32(0)
            low = uint64(top_key(mine.shared, wanted)) << uint64(18)
            high = (uint64(scale.key) << uint64(18)) | uint64(0x3FFFF)
            gathered = gather(mine, low, high, scale, by_mass)
            if by_mass:
                target = mass_kept(gathered, top_p)
            if gathered.number <= uint32(few) and gathered.mass_within >= target:
                number = gathered.number
        return number, target

    return shortcut


def make_filter(room: Room) -> Any:
    """Function that finds the last word which top_k and top_p keep."""
    search = make_search(room)

    @device_function
    def filtered(mine: Slice, scale: Scale, top_k: Any, top_p: Any) -> Any:
        end = uint64(0)
        # One text for both filters: the number of turns is hidden from the compiler.
        for turn in range(int32(ptx.kept_u32(uint32(2)))):
            by_mass = turn == 1
            is_asked, target = top_k > uint32(0), uint64(top_k)
            if by_mass:
                is_asked, target = top_p < float32(1.0), uint64(0)
            if is_asked:
                end = search(mine, scale, end, by_mass, target, top_p)
        return end

    return filtered


@cache
def make_choose(room: Room = ROOM) -> Kernel:
    """The kernel of one shape."""
    blocks, at_words = room.blocks, room.words
    slice_of, ask, read, agree = make_slice(room), make_ask(room), make_read(room), make_agree(room)
    lowest_of, shortcut, filtered = make_lowest(room), make_shortcut(room), make_filter(room)
    choose_few, choose_many = make_few(room), make_many(room)

    @device_function
    def drawn(mine: Slice, best: Any, settings: _Settings) -> Any:
        """Word of the best score; the first block's is the row's."""
        scale = scale_of(best, settings.temperature)
        top_k, top_p, min_p = settings.top_k, settings.top_p, settings.min_p
        if cuda.threadIdx.x == 0:
            table = mine.shared + uint32(at_words)
            prepare_words(table, settings.position, settings.seed_low, settings.seed_high)
        score = uint64(0)
        number, target = shortcut(mine, scale, top_k, top_p)
        if number != uint32(0):
            if mine.block == uint32(0):
                score = choose_few(mine.shared, number, scale, top_k, target, top_p, min_p)
        else:
            end = filtered(mine, scale, top_k, top_p)
            cuda.syncthreads()  # the table of random words is there
            score = choose_many(mine, best, scale, end, min_p)
        return score

    @device_function
    def choose(given: Operands) -> None:
        shared = ptx.shared_address(cuda.shared.array(0, uint64))
        row = cuda.blockIdx.y
        is_wide = int32(given.vocabulary) & int32(3) == int32(0)
        mine = slice_of(shared, uint32(cuda.blockIdx.x) % uint32(blocks), given.addressable)
        ask(mine, given.logits + uint64(row) * uint64(given.vocabulary) * uint64(4), is_wide)
        settings, line = _settings_of(given, row), row_line(given, row)
        best = agree(mine, *read(line, mine, is_wide))
        chosen = values.word_token(best)
        if best == uint64(0):
            chosen = lowest_of(line, mine)
        elif settings.temperature > float32(0.0):
            chosen = values.word_token(drawn(mine, best, settings))
        if mine.block == uint32(0) and cuda.threadIdx.x == 0:
            ptx.store_u32(given.tokens + uint64(row) * uint64(4), uint32(chosen))

    return cluster_kernel("choice_cluster", choose, room)
