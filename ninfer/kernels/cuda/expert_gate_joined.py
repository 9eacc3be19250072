"""First half of a few tokens' mixture in one launch: ranking, gate and up, the shared expert.

    active[choice, i] = bf16(silu(W_e[i] . x) * (W_e[I + i] . x))       x: column of the choice
    shared[t] = bf16(W_shared . bf16(silu(gate) * up))

The same as the launches of ranking, of the shared expert and `expert_gate`, bit for bit. A block
stands for one choice and eight tiles of sixteen features: it asks for the columns of all tokens and
finds its expert meanwhile (`expert_found`). There eight warps share sixteen features and meet at
each; here a warp has features of its own, gate and up rows: it makes the eight parts of their sums
over K one after another and adds them in its registers, in order. So warps wait for nobody, a ring
of pairs of weight tiles is refilled at every k tile, and SwiGLU takes what a lane holds. That needs
many experts: a warp takes a while for its 32 rows, and all warps of the card should be busy.

A few blocks more have rows of the shared expert, and one writes the ranking: it lets the successor
start only then, so that `expert_down` finds the choices complete when it starts.

Traffic: gate and up rows of each chosen expert once, 2 bytes a choice and feature of results.
"""

from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda import expert_shared
from ninfer.kernels.cuda.expert_found import FOUND_BYTES, FOUND_TOKENS, make_find
from ninfer.kernels.cuda.expert_rank import make_rank_warp, store_ranking
from ninfer.kernels.cuda.expert_shared import make_shared_block, shared_block_bytes
from ninfer.kernels.cuda.group_products import make_load_stored, make_multiply, unit_groups
from ninfer.kernels.cuda.launch import WARP
from ninfer.kernels.cuda.pointwise import gated
from ninfer.kernels.cuda.skinny_shape import CHUNK_BYTES, PARTS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS, make_masks
from ninfer.tensor import TensorFormat

WARPS: Final = FOUND_TOKENS
"""Warps of a block, and tiles of sixteen features."""

THREADS: Final = WARPS * WARP

BLOCKS: Final = 2
"""Blocks of a multiprocessor."""

_STAGES: Final = 4
_UNIT_SLABS: Final = 2
_SUM_BYTES: Final = 64  # of a k tile: two groups of eight columns
_STORED_BYTES: Final = CHUNK_BYTES + _SUM_BYTES

Address = Any
Array = Any
Index = Any


def joined_bytes(
    format: TensorFormat, k_tiles: int, shared_format: TensorFormat, shared_tiles: int
) -> int:
    """Shared memory of a block: rings, columns and what is found; or the shared expert's."""
    own = WARPS * _STAGES * _pair_bytes(format) + k_tiles * _STORED_BYTES + FOUND_BYTES
    return max(own, shared_block_bytes(shared_format, shared_tiles))


def rows_beyond(hidden_tiles: int, grid_x: int) -> int:
    """Rows of the grid beside those of choices: of the ranking, and of the shared expert."""
    return -(-(1 + -(-hidden_tiles // expert_shared.WARPS)) // grid_x)


@cache
def make_gate_joined(
    format: TensorFormat,
    k_tiles: int,
    num_experts: int,
    shared_format: TensorFormat,
    shared_tiles: int,
) -> Kernel:
    """Grid (width / 16 / 8, choices and `rows_beyond`), block (256,).

    Args:
        format: of the chosen experts' weights.
        k_tiles: tiles along K.
        num_experts: of the router.
        shared_format: of the shared expert's second weight, one without sums of columns.
        shared_tiles: tiles along its K.
    """
    shared_block = make_shared_block(shared_format, shared_tiles)
    rank_block, chosen_block = (
        _make_rank_block(num_experts),
        _make_chosen(format, k_tiles, num_experts),
    )

    def gate(
        codes: int,
        base: int,
        sums: int,
        router: int,
        gate_up: int,
        shared_codes: int,
        experts: int,
        weights: int,
        shared_gate: int,
        shared: int,
        out: int,
        width: int,
        num_tokens: int,
        chosen: int,
        out_width: int,
        hidden: int,
        shared_width: int,
    ) -> None:
        memory = cuda.shared.array(0, uint64)
        block = ptx.shared_address(memory)
        beyond = int32(int32(cuda.blockIdx.y) - num_tokens * chosen) * int32(cuda.gridDim.x)
        beyond = int32(beyond + int32(cuda.blockIdx.x))
        if int32(cuda.blockIdx.y) < num_tokens * chosen:
            ptx.release_successor()
            ptx.wait_for_predecessor()
            chosen_block(
                block, codes, base, sums, router, out, width, num_tokens, chosen, out_width
            )
        elif beyond == int32(0):
            ptx.wait_for_predecessor()
            rank_block(router, experts, weights, shared_gate, num_tokens, chosen)
            ptx.release_successor()
        else:
            ptx.release_successor()
            number = int32(beyond - int32(1))
            shared_block(
                block, shared_codes, gate_up, shared, number, num_tokens, hidden, shared_width
            )

    name = f"{format.name}_{k_tiles}_{num_experts}_{shared_format.name}_{shared_tiles}"
    return Kernel(
        f"expert_gate_joined_{name.lower()}",
        gate,
        (Param.ADDRESS,) * 11 + (Param.I32,) * 6,
        threads=THREADS,
        max_registers=65536 // (THREADS * BLOCKS),
        dynamic_shared_bytes=joined_bytes(format, k_tiles, shared_format, shared_tiles),
        min_blocks=BLOCKS,
    )


def _make_rank_block(num_experts: int) -> Any:
    """A warp ranks a token; complete for all when the block goes on."""
    rank_warp = make_rank_warp(num_experts)

    @device_function
    def rank_block(
        router: Address,
        experts: Address,
        weights: Address,
        shared_gate: Address,
        num_tokens: Index,
        chosen: Index,
    ) -> None:
        lane, warp = int32(cuda.threadIdx.x & 31), int32(cuda.threadIdx.x >> 5)
        if warp < num_tokens:
            token = uint64(uint32(warp))
            line = router + token * uint64(4 * (num_experts + 1))
            gate = ptx.load_f32(line + uint64(4 * num_experts))
            expert, share = rank_warp(line, chosen, lane)
            store_ranking(experts, weights, shared_gate, token, chosen, lane, expert, share, gate)
            ptx.fence_gpu()
        cuda.syncthreads()

    return rank_block


def _make_chosen(format: TensorFormat, k_tiles: int, num_experts: int) -> Any:
    """Eight tiles of features of a choice's expert, for all tokens that chose it."""
    ring_bytes, row_bytes = _STAGES * _pair_bytes(format), k_tiles * PAIR_FORMATS[format].tile_bytes
    columns_at = WARPS * ring_bytes
    found_at = columns_at + k_tiles * _STORED_BYTES
    bring, find = _make_bring(k_tiles), make_find(num_experts)
    ask_first, multiply = _make_ask_first(format, k_tiles), _make_multiply(format, k_tiles)
    make_own_masks = make_masks(format, keeps=True)

    @device_function
    def chosen_block(
        block: Address,
        codes: Address,
        base: Address,
        sums: Address,
        router: Address,
        out: Address,
        width: Index,
        num_tokens: Index,
        chosen: Index,
        out_width: Index,
    ) -> None:
        lane, warp = int32(cuda.threadIdx.x & 31), int32(cuda.threadIdx.x >> 5)
        columns = uint32(block + uint32(columns_at))
        bring(columns, base, sums, num_tokens, warp, lane)
        scratch = uint32(block + uint32(found_at))
        expert, found = find(router, num_tokens, chosen, warp, lane, scratch)
        if expert >= int32(0):
            ring = uint32(block + uint32(warp) * uint32(ring_bytes))
            up = int32(width >> int32(4))
            tile = int32(int32(cuda.blockIdx.x) * int32(WARPS) + warp)
            is_mine = uint32(tile < up)
            row = uint64(int32(expert * int32(2) * up + tile)) * uint64(row_bytes)
            first = codes + row + uint64(uint32(lane) * uint32(16))
            upper = uint64(uint32(up)) * uint64(row_bytes)
            value = cuda.local.array(8, float32)
            ask_first(ring, first, upper, is_mine, lane)
            masks = make_own_masks()
            ptx.wait_copies_3()  # columns, which were asked for before the stages
            cuda.syncthreads()
            multiply(ring, columns, first, upper, is_mine, lane, masks, value)
            _write(out, found, out_width, tile, is_mine, lane, value)
        else:
            ptx.wait_copies_0()

    return chosen_block


def _pair_bytes(format: TensorFormat) -> int:
    """Gate and up rows of a k tile."""
    return 2 * PAIR_FORMATS[format].tile_bytes


def _make_bring(k_tiles: int) -> Any:
    """Ask for the columns that exist: (columns, base, sums, num_tokens, warp, lane)."""

    @device_function
    def bring(
        columns: Address,
        base: Address,
        sums: Address,
        num_tokens: Index,
        warp: Index,
        lane: Index,
    ) -> None:
        exists = uint32(int32(lane >> int32(2)) < num_tokens)
        inside = uint32(lane) * uint32(16)
        for i in range(-(-k_tiles // WARPS)):
            k = uint32(warp) + uint32(WARPS * i)
            if k < uint32(k_tiles):
                to = columns + k * uint32(_STORED_BYTES) + inside
                at = base + uint64(k) * uint64(CHUNK_BYTES) + uint64(inside)
                for slab in range(4):
                    ptx.copy_weights_16_if(to + uint32(slab * 512), at + uint64(slab * 512), exists)
                at = sums + uint64(k) * uint64(_SUM_BYTES) + uint64(inside)
                has_sums = uint32(lane < int32(_SUM_BYTES // 16))
                ptx.copy_weights_16_if(to + uint32(CHUNK_BYTES), at, has_sums)
        ptx.close_copies()

    return bring


def _make_ask_first(format: TensorFormat, k_tiles: int) -> Any:
    """Ask for all stages but one: (ring, first, upper, is_mine, lane)."""
    ask, each, pair_bytes = _make_ask(format), -(-k_tiles // PARTS), _pair_bytes(format)
    tile_bytes = PAIR_FORMATS[format].tile_bytes

    @device_function
    def ask_first(ring: Address, first: Address, upper: Any, is_mine: Any, lane: Index) -> None:
        for n in range(_STAGES - 1):
            k = n // each + PARTS * (n % each)
            is_there = is_mine & uint32(n < PARTS * each) & uint32(k < k_tiles)
            to = uint32(ring + uint32(n * pair_bytes))
            ask(to, first + uint64(k * tile_bytes), upper, is_there, lane)

    return ask_first


def _make_multiply(format: TensorFormat, k_tiles: int) -> Any:
    """Sums over K of a warp's rows: (ring, columns, first, upper, is_mine, lane, masks, value)."""
    pair_bytes, tile_bytes = _pair_bytes(format), PAIR_FORMATS[format].tile_bytes
    each, ask = -(-k_tiles // PARTS), _make_ask(format)
    num_words, num_sums = 4 * _UNIT_SLABS, 2 * unit_groups(format, _UNIT_SLABS)
    load = make_load_stored(format, 1, _UNIT_SLABS, CHUNK_BYTES)
    products = make_multiply(format, 2, 1, _UNIT_SLABS)

    @device_function
    def multiply(
        ring: Address,
        columns: Address,
        first: Address,
        upper: Any,
        is_mine: Any,
        lane: Index,
        masks: Any,
        value: Array,
    ) -> None:
        x = cuda.local.array(num_words, uint32)
        s = cuda.local.array(num_sums, float32)
        total = cuda.local.array(8, float32)
        end = uint32(ring + uint32(_STAGES * pair_bytes))
        slot, last = ring, uint32(end - uint32(pair_bytes))
        for i in range(8):
            value[i] = float32(-0.0)  # to which adding anything gives that
        part = int32(0)
        while part < int32(PARTS):
            for i in range(8):
                total[i] = float32(0.0)
            for i in range(each):
                ptx.wait_copies_2()  # all but the newest stages
                ptx.sync_warp()
                n = i + _STAGES - 1
                k = n // each + PARTS * (n % each)
                is_there = is_mine & uint32(part < int32(PARTS - n // each))
                is_there &= uint32(part < int32(k_tiles - k))
                ask(last, first + uint64(k * tile_bytes), upper, is_there, lane)
                if part < int32(k_tiles - PARTS * i):
                    here = uint32(columns + uint32(PARTS * i * _STORED_BYTES))
                    for unit in range(4 // _UNIT_SLABS):
                        load(here, uint32(0), lane, unit, x, s)
                        products(slot, lane, unit, x, s, total, masks)
                last = slot
                slot = uint32(slot + uint32(pair_bytes))
                if slot == end:
                    slot = ring
            for i in range(8):
                value[i] += total[i]
            columns = uint32(columns + uint32(_STORED_BYTES))
            first = first + uint64(tile_bytes)
            part = int32(part + int32(1))

    return multiply


def _make_ask(format: TensorFormat) -> Any:
    """Ask for a k tile of gate and up rows, if it is there: (to, source, upper, is_there, lane).

    ``source`` is where the lane's first sixteen bytes of the gate rows lie, ``upper`` how far the
    up rows are from them.
    """
    tile_bytes = PAIR_FORMATS[format].tile_bytes
    steps, rest = tile_bytes // 512, tile_bytes % 512 // 16

    @device_function
    def ask(to: Address, source: Address, upper: Any, is_there: Any, lane: Index) -> None:
        here = to + uint32(lane) * uint32(16)
        for m in range(2):
            for step in range(steps):
                place = uint32(m * tile_bytes + step * 512)
                at = source + uint64(step * 512)
                ptx.copy_weights_16_if(here + place, at, is_there)
            if rest > 0:
                is_rest = is_there & uint32(lane < int32(rest))
                at = source + uint64(steps * 512)
                ptx.copy_weights_16_if(here + uint32(m * tile_bytes + steps * 512), at, is_rest)
            source = source + upper
        ptx.close_copies()

    return ask


@device_function
def _write(
    out: Address,
    found: Index,
    out_width: Index,
    tile: Index,
    is_mine: Index,
    lane: Index,
    value: Array,
) -> None:
    """SwiGLU, two bf16 at a time to a choice's row; a lane has two columns of two features."""
    for j in range(2):
        column = int32((lane & int32(3)) * int32(2) + int32(j))
        mine = int32(cuda.shfl_sync(0xFFFFFFFF, found, column))
        for half in range(2):
            active = gated(value[2 * half + j], value[4 + 2 * half + j])
            other = cuda.shfl_xor_sync(0xFFFFFFFF, active, 16)
            # Features i and i + 4 of a chunk are one word, the i-th.
            if int32(mine >= int32(0)) & int32(is_mine) & int32(lane < int32(16)):
                word = int32(tile * int32(8) + int32(4 * half) + (lane >> int32(2)))
                place = uint64(mine) * uint64(out_width * int32(2)) + uint64(word * int32(4))
                ptx.store_u32(out + place, ptx.bf16x2_of_f32(active, other))
