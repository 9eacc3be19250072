"""Columns that an expert is multiplied with in decode: which they are, and their way to a warp.

A block stands for one choice of up to eight tokens: among the blocks of choices that named the same
expert the one of the first token works for all, which every warp finds out by itself from the
choices, one trip to memory, so that no list has to be made first. For more tokens a block stands
for an entry of a plan (`expert_plan`). Four columns are multiplied at a time; the other four of the
tensor cores repeat them. Lane l knows the choice of column l mod 4, -1 where there is none.

    stored    of one k tile: [slab][4 columns][4 chunks][16 bytes], then [group][4 columns] f32
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from numba import cuda, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.group_products import unit_groups
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.tensor import TensorFormat

COLUMNS: Final = 4
"""Columns that are multiplied at a time."""

UNIT_SLABS: Final = 2
"""Slabs of columns that a lane holds."""

STORED_BYTES: Final = COLUMNS * (256 + 8)
"""Bytes of the columns of one k tile, and of their sums."""

_SUMS_AT: Final = COLUMNS * 256
_LANES_A_TOKEN: Final = 4  # lanes that share the choices of a token

Address = Any
Array = Any
Index = Any


@dataclass(frozen=True, slots=True)
class Choose:
    """Device functions.

    Attributes:
        first: (experts, plan, num_tokens, chosen, lane): the block's expert, -1 where another block
            works or there is nothing to do; how many columns it has; what `choice` has to know.
        choice: (found, order, done, count, lane): the choice of column ``done + lane mod 4``.
    """

    first: Callable[..., Any]
    choice: Callable[..., Any]


def slot_steps(chosen: int) -> int:
    """Choices of one token that a lane looks at."""
    return -(-chosen // _LANES_A_TOKEN)


@cache
def make_choose(steps: int, is_listed: bool) -> Choose:
    """Make the functions of a kind of block.

    Args:
        steps: `slot_steps` of the most experts of a token.
        is_listed: columns come from a plan.
    """
    return Choose(_first_listed, _choice_listed) if is_listed else _make_found(steps)


@device_function
def _first_listed(
    experts: Address, plan: Address, num_tokens: Index, chosen: Index, lane: Index
) -> Any:
    entry = plan + uint64(cuda.blockIdx.y) * uint64(12)
    expert, start = ptx.fresh_i32(entry), ptx.fresh_i32(entry + uint64(4))
    count = ptx.fresh_i32(entry + uint64(8))
    if count == int32(0):
        expert = int32(-1)
    return int32(expert), int32(count), int32(start)


@device_function
def _choice_listed(found: Index, order: Address, done: Index, count: Index, lane: Index) -> Any:
    column = done + (int32(lane) & int32(COLUMNS - 1))
    place = found + min(column, count - int32(1))
    choice = ptx.fresh_i32(order + uint64(place) * uint64(4))
    if column >= count:
        choice = int32(-1)
    return int32(choice)


def _make_found(steps: int) -> Choose:
    """Functions of blocks that look for their columns themselves."""
    look, named_by, choice_of = _make_look(steps), _make_named_by(steps), _make_choice_of(steps)

    @device_function
    def first(
        experts: Address, plan: Address, num_tokens: Index, chosen: Index, lane: Index
    ) -> Any:
        seen = cuda.local.array(steps, int32)
        look(experts, num_tokens, chosen, lane, seen)
        own = uint32(cuda.blockIdx.y)
        own_token = ptx.divide_u32(own, uint32(chosen))
        expert = named_by(seen, int32(own_token), int32(own - own_token * uint32(chosen)))
        found = choice_of(seen, expert, chosen, lane)
        votes = uint32(cuda.ballot_sync(0xFFFFFFFF, found >= int32(0))) & uint32(0xFF)
        if votes & ((uint32(1) << own_token) - uint32(1)) != uint32(0):
            expert = int32(-1)
        return int32(expert), int32(cuda.popc(votes)), int32(found)

    return Choose(first, _choice_found)


def _make_look(steps: int) -> Any:
    @device_function
    def look(experts: Address, num_tokens: Index, chosen: Index, lane: Index, seen: Array) -> None:
        """Experts that token ``lane mod 8`` names in slots ``lane / 8 + 4 i``, -1 for none."""
        token = int32(lane) & int32(7)
        for i in range(steps):
            slot = (int32(lane) >> int32(3)) + int32(_LANES_A_TOKEN * i)
            is_there = int32(token < num_tokens) & int32(slot < chosen)
            choice = (token * int32(chosen) + slot) * is_there
            seen[i] = ptx.fresh_i32(experts + uint64(choice) * uint64(4))
            if is_there == int32(0):
                seen[i] = int32(-1)

    return look


def _make_named_by(steps: int) -> Any:
    @device_function
    def named_by(seen: Array, token: Index, slot: Index) -> Any:
        """Expert of a token's slot."""
        expert = int32(-1)
        for i in range(steps):
            named = cuda.shfl_sync(0xFFFFFFFF, seen[i], token + int32(8) * (slot & int32(3)))
            if slot >> int32(2) == int32(i):
                expert = int32(named)
        return int32(expert)

    return named_by


def _make_choice_of(steps: int) -> Any:
    @device_function
    def choice_of(seen: Array, expert: Index, chosen: Index, lane: Index) -> Any:
        """Choice with which token ``lane mod 8`` names an expert, -1 where it does not."""
        found = int32(-1)
        for i in range(steps):
            if seen[i] == expert:
                slot = (int32(lane) >> int32(3)) + int32(_LANES_A_TOKEN * i)
                found = (int32(lane) & int32(7)) * int32(chosen) + slot
        found = max(found, int32(cuda.shfl_xor_sync(0xFFFFFFFF, found, 8)))
        return int32(max(found, int32(cuda.shfl_xor_sync(0xFFFFFFFF, found, 16))))

    return choice_of


@device_function
def _choice_found(found: Index, order: Address, done: Index, count: Index, lane: Index) -> Any:
    """Choice of the so-manieth token that has one."""
    column = done + (int32(lane) & int32(COLUMNS - 1))
    votes = uint32(cuda.ballot_sync(0xFFFFFFFF, found >= int32(0))) & uint32(0xFF)
    for i in range(7):
        if int32(i) < column:
            votes &= votes - uint32(1)
    token = int32(cuda.ffs(votes)) - int32(1)
    value = int32(cuda.shfl_sync(0xFFFFFFFF, found, max(token, int32(0))))
    if column >= count:
        value = int32(-1)
    return int32(value)


def make_bring(format: TensorFormat) -> Any:
    """Function that asks for the columns of one k tile; empty ones become zeros."""
    has_sums = PAIR_FORMATS[format].offset > 0

    @device_function
    def bring(
        to: Address,
        base: Address,
        sums: Address,
        choice: Index,
        chosen: Index,
        k_tiles: Index,
        k: Index,
        lane: Index,
    ) -> None:
        lane = uint32(lane)
        column = (lane >> uint32(2)) & uint32(3)
        mine = int32(cuda.shfl_sync(0xFFFFFFFF, choice, int32(column)))
        token = ptx.divide_u32(uint32(max(mine, int32(0))), uint32(chosen))
        tile = uint64(token >> uint32(3)) * uint64(k_tiles) + uint64(uint32(k))
        inside = ((token & uint32(7)) << uint32(6)) + ((lane & uint32(3)) << uint32(4))
        at = base + tile * uint64(2048) + uint64(inside + ((lane >> uint32(4)) << uint32(9)))
        size = uint32(16) * uint32(mine >= int32(0))
        place = to + lane * uint32(16)  # half of the warp has the next slab
        ptx.copy_async_16(place, at, size)
        ptx.copy_async_16(place + uint32(512), at + uint64(1024), size)
        if has_sums and lane < uint32(2 * COLUMNS):
            token = ptx.divide_u32(uint32(max(choice, int32(0))), uint32(chosen))
            tile = uint64(token >> uint32(3)) * uint64(k_tiles) + uint64(uint32(k))
            inside = ((lane >> uint32(2)) << uint32(5)) + ((token & uint32(7)) << uint32(2))
            size = uint32(4) * uint32(choice >= int32(0))
            place = to + uint32(_SUMS_AT) + lane * uint32(4)
            ptx.copy_async_4(place, sums + tile * uint64(64) + uint64(inside), size)

    return bring


def make_load(format: TensorFormat) -> Any:
    """Function that loads a lane's chunks of one unit, and the sums of its products' columns."""
    has_sums, groups = PAIR_FORMATS[format].offset > 0, unit_groups(format, UNIT_SLABS)

    @device_function
    def load(stored: Address, lane: Index, unit: int, x: Array, s: Array) -> None:
        at = stored + (uint32(lane) & uint32(15)) * uint32(16)
        for slab in range(UNIT_SLABS):
            i = 4 * slab
            place = at + uint32((unit * UNIT_SLABS + slab) * 256)
            x[i], x[i + 1], x[i + 2], x[i + 3] = ptx.shared_u32x4(place)
        if has_sums:
            at = stored + uint32(_SUMS_AT) + (uint32(lane) & uint32(1)) * uint32(8)
            for g in range(groups):
                place = at + uint32((unit * groups + g) * 16)
                s[2 * g], s[2 * g + 1] = ptx.shared_f32x2(place)

    return load


def make_load_alone(format: TensorFormat, unit_slabs: int) -> Any:
    """Function that loads a unit of one column, and its sums, for all eight of a product.

    It takes (chunks of a k tile, sums, bytes to those of this tile, lane, unit, x, s).
    """
    has_sums, groups = PAIR_FORMATS[format].offset > 0, unit_groups(format, unit_slabs)

    @device_function
    def load(
        column: Address, sums: Address, sums_at: int, lane: Index, unit: int, x: Array, s: Array
    ) -> None:
        at = column + (uint32(lane) & uint32(3)) * uint32(16)
        for slab in range(unit_slabs):
            i = 4 * slab
            place = at + uint32((unit * unit_slabs + slab) * 64)
            x[i], x[i + 1], x[i + 2], x[i + 3] = ptx.shared_u32x4(place)
        if has_sums:
            for g in range(groups):
                value = ptx.shared_f32(sums + uint32(sums_at + (unit * groups + g) * 4))
                s[2 * g], s[2 * g + 1] = value, value

    return load
