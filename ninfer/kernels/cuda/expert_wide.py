"""Products of sorted columns with experts on Hopper: weights are decoded into the left operand.

    out[place, n] = W_e[n] . x[column of the place]        e the expert of the plan's entry

One block multiplies 128 rows of one expert with the columns of one entry of the plan. Two
warpgroups have 64 rows each; a warp decodes the 16 rows of its own, a group of features after the
other, into registers as the exact bf16 integers of the codes, and the tensor cores multiply them
with columns that lie in shared memory. A group's sums begin at zero and end in
``total += scale * sums`` in f32. So nothing is rounded but columns and results, and weights are
read as they are stored. The bits of a column depend on (format, K) only.

Columns are rows of K features (`expert_rows`), gathered by 16-byte copies into a ring of stages of
128 features: 64 features are 128 bytes, chunk c of column n at ``128 n + 16 (c xor n mod 8)``, the
swizzle that `warpgroup.DESCRIPTOR` names. A warp's 16 rows are two records of `weight_layout`,
upper and lower, which need not be halves of one tile: for gate and up the upper eight are gate
rows and the lower eight the up rows of the same features, so that a lane holds both.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx, warpgroup
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.cuda.warpgroup_registers import multiply_registers
from ninfer.kernels.cuda.expert_plan import ENTRY_BYTES
from ninfer.kernels.cuda.expert_wide_output import STAGING_BYTES, make_write
from ninfer.kernels.cuda.launch import WARP
from ninfer.kernels.cuda.skinny_shape import WAITS, advance
from ninfer.kernels.cuda.weight_layout import TILE_ROWS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.kernels.cuda.weight_tiles import tile_functions
from ninfer.tensor import TensorFormat

WARPS: Final = 8
THREADS: Final = WARPS * WARP
BLOCK_ROWS: Final = WARPS * TILE_ROWS

_ALIGNMENT: Final = 1024  # of a swizzled block in shared memory
_SHARED: Final = 224 << 10
_MOST_STAGES: Final = 4
_MINUS_OFFSETS: Final = {0: 0, 136: 0xC308C308, 144: 0xC310C310, 160: 0xC320C320}  # two bf16
_ONES: Final = 0x3F803F80  # two bf16

Address = Any
Array = Any
Index = Any


def most_columns(format: TensorFormat) -> int:
    """Columns that registers have room for: the groups of W8, twice as many, take some."""
    return 32 if format is TensorFormat.W8 else 128


@dataclass(frozen=True, slots=True)
class ExpertWide:
    """What a block multiplies.

    Attributes:
        format: of the weights.
        columns: most columns of an entry, the n of the products: a multiple of 32.
        is_gate: gate and up with SwiGLU, of columns named by ``order``; otherwise down, of columns
            that lie in the order of the plan.
    """

    format: TensorFormat
    columns: int
    is_gate: bool

    @property
    def column_bytes(self) -> int:
        """Columns of a stage: two blocks of 64 features."""
        return self.columns * 256

    @property
    def warp_bytes(self) -> int:
        """A warp's rows of a stage."""
        return PAIR_FORMATS[self.format].tile_bytes

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage: whole kilobytes, so that every stage is aligned."""
        return -(-(self.column_bytes + WARPS * self.warp_bytes) // _ALIGNMENT) * _ALIGNMENT

    @property
    def stages(self) -> int:
        """Stages of the ring."""
        return min(_MOST_STAGES, (_SHARED - _ALIGNMENT) // self.stage_bytes)

    @property
    def shared_bytes(self) -> int:
        """The ring, or what results pass through behind it, and room to align it."""
        staging = STAGING_BYTES[self.is_gate] * self.columns
        return _ALIGNMENT + max(self.stages * self.stage_bytes, staging)


@cache
def make_expert_wide(shape: ExpertWide) -> Kernel:
    """Grid (rows / 128, entries), block (256,); gate and up: (width / 64, entries)."""
    columns, is_gate, num_sums = shape.columns, shape.is_gate, shape.columns // 2
    stages, stage_bytes = shape.stages, shape.stage_bytes
    ring_bytes = stages * stage_bytes
    rows_of_thread = columns // WARP
    locate_rows, locate_columns = _make_locate_rows(shape), _make_locate_columns(shape)
    ask, multiply, write = _make_ask(shape), _make_multiply(shape), make_write(columns, is_gate)
    wait_copies = WAITS[stages]

    def expert_wide(
        weights: int,
        x: int,
        plan: int,
        order: int,
        out: int,
        k_tiles: int,
        num_rows: int,
        chosen: int,
    ) -> None:
        memory = cuda.shared.array(0, uint64)
        ptx.release_successor()
        ptx.wait_for_predecessor()
        entry = plan + uint64(cuda.blockIdx.y) * uint64(ENTRY_BYTES)
        expert = ptx.load_i32(entry)
        start, count = ptx.load_i32(entry + uint64(4)), ptx.load_i32(entry + uint64(8))
        if count > int32(0):
            ring = (ptx.shared_address(memory) + uint32(_ALIGNMENT - 1)) & uint32(0xFFFFFC00)
            thread = int32(cuda.threadIdx.x)
            lane = thread & int32(31)
            warp = int32(cuda.shfl_sync(0xFFFFFFFF, thread >> int32(5), 0))
            upper, lower = locate_rows(weights, expert, k_tiles, num_rows, warp)
            rows = cuda.local.array(rows_of_thread, uint64)
            sizes = cuda.local.array(rows_of_thread, uint32)
            locate_columns(x, order, start, count, k_tiles, chosen, rows, sizes)
            for stage in range(stages - 1):
                if stage < k_tiles:
                    to = ring + uint32(stage * stage_bytes)
                    ask(to, rows, sizes, upper, lower, int32(stage), warp, lane)
                ptx.close_copies()
            total = cuda.local.array(num_sums, float32)
            for i in range(num_sums):
                total[i] = float32(0.0)
            slot, free = uint32(0), uint32((stages - 1) * stage_bytes)
            for k in range(k_tiles):
                wait_copies()
                ptx.fence_shared_async()
                cuda.syncthreads()
                ahead = int32(k) + int32(stages - 1)
                if ahead < k_tiles:
                    ask(ring + free, rows, sizes, upper, lower, ahead, warp, lane)
                ptx.close_copies()
                multiply(ring + slot, warp, lane, total)
                slot = advance(slot, stage_bytes, ring_bytes)
                free = advance(free, stage_bytes, ring_bytes)
            ptx.wait_copies_0()
            cuda.syncthreads()
            write(ring, out, order, start, count, num_rows, warp, lane, total)

    kind = "gate" if is_gate else "down"
    return Kernel(
        f"expert_wide_{kind}_{shape.format.name.lower()}_{columns}",
        expert_wide,
        (Param.ADDRESS,) * 5 + (Param.I32,) * 3,
        threads=THREADS,
        max_registers=255,
        dynamic_shared_bytes=shape.shared_bytes,
        min_blocks=1,
        is_warpgroup=True,
    )


def _make_locate_rows(shape: ExpertWide) -> Any:
    """Addresses of the first records of a warp's upper and lower rows."""
    is_gate, tile_bytes = shape.is_gate, PAIR_FORMATS[shape.format].tile_bytes
    record = tile_bytes // 2

    @device_function
    def locate_rows(
        weights: Address, expert: Index, k_tiles: Index, num_rows: Index, warp: Index
    ) -> Any:
        row_tile = expert * (num_rows >> int32(4))
        pitch = uint64(k_tiles) * uint64(tile_bytes)
        if is_gate:
            row_tile += int32(cuda.blockIdx.x) * int32(WARPS // 2) + (warp >> int32(1))
            upper = weights + uint64(row_tile) * pitch + uint64(warp & int32(1)) * uint64(record)
            lower = upper + uint64(num_rows >> int32(5)) * pitch
        else:
            row_tile += int32(cuda.blockIdx.x) * int32(WARPS) + warp
            upper = weights + uint64(row_tile) * pitch
            lower = upper + uint64(record)
        return upper, lower

    return locate_rows


def _make_locate_columns(shape: ExpertWide) -> Any:
    """Addresses of a thread's pieces of columns, and their sizes: 0 behind the last column."""
    is_gate, rows_of_thread = shape.is_gate, shape.columns // WARP

    @device_function
    def locate_columns(
        x: Address,
        order: Address,
        start: Index,
        count: Index,
        k_tiles: Index,
        chosen: Index,
        rows: Array,
        sizes: Array,
    ) -> None:
        thread = int32(cuda.threadIdx.x)
        for i in range(rows_of_thread):
            column = int32(32 * i) + (thread >> int32(3))
            row = start + min(column, count - int32(1))
            if is_gate:
                choice = ptx.load_u32(order + uint64(row) * uint64(4))
                row = int32(ptx.divide_u32(choice, uint32(chosen)))
            rows[i] = x + uint64(row) * uint64(k_tiles) * uint64(256)
            rows[i] += uint64(thread & int32(7)) * uint64(16)
            sizes[i] = uint32(16) * uint32(column < count)

    return locate_columns


def _make_ask(shape: ExpertWide) -> Any:
    """A thread's share of one stage: pieces of its columns, and of its warp's records."""
    column_bytes, warp_bytes = shape.column_bytes, shape.warp_bytes
    rows_of_thread, half_bytes = shape.columns // WARP, shape.column_bytes // 2
    record_chunks = warp_bytes // 32
    steps = -(-2 * record_chunks // WARP)

    @device_function
    def ask(
        to: Address,
        rows: Array,
        sizes: Array,
        upper: Address,
        lower: Address,
        k: Index,
        warp: Index,
        lane: Index,
    ) -> None:
        thread = uint32(cuda.threadIdx.x)
        # Row 32 i + thread / 8 has the same place in the swizzle for every i.
        inside = ((thread & uint32(7)) ^ ((thread >> uint32(3)) & uint32(7))) << uint32(4)
        at = to + (thread >> uint32(3)) * uint32(128) + inside
        for i in range(rows_of_thread):
            source = rows[i] + uint64(k) * uint64(256)
            ptx.copy_async_16(at + uint32(4096 * i), source, sizes[i])
            there = at + uint32(4096 * i + half_bytes)
            ptx.copy_async_16(there, source + uint64(128), sizes[i])
        to += uint32(column_bytes) + uint32(warp) * uint32(warp_bytes)
        for step in range(steps):
            chunk = int32(lane) + int32(WARP * step)
            source = upper + uint64(chunk * int32(16))
            if chunk >= int32(record_chunks):
                source = lower + uint64((chunk - int32(record_chunks)) * int32(16))
            source += uint64(k) * uint64(warp_bytes)
            is_there = uint32(chunk < int32(2 * record_chunks))
            ptx.copy_async_16_if(to + uint32(chunk) * uint32(16), source, is_there)

    return ask


def _make_multiply(shape: ExpertWide) -> Any:
    """Products of one stage: groups of features, decoded, multiplied, scaled."""
    format, num_sums = shape.format, shape.columns // 2
    column_bytes, half_bytes = shape.column_bytes, shape.column_bytes // 2
    warp_bytes = shape.warp_bytes
    layout, functions = PAIR_FORMATS[format], tile_functions(format)
    load_codes, load_high = functions.load_codes, functions.load_high
    load_scales, pairs, scale = functions.load_scales, functions.pairs, functions.scale
    is_scaled, offset = layout.group_slabs > 0, _MINUS_OFFSETS[layout.offset]
    unit_slabs = layout.unit_slabs
    group_slabs = layout.group_slabs or 2
    groups, left_words = 4 // group_slabs, 8 * group_slabs
    products = multiply_registers(shape.columns, 2 * group_slabs, is_added=not is_scaled)

    @device_function
    def multiply(stage: Address, warp: Index, lane: Index, total: Array) -> None:
        words = cuda.local.array(8, uint32)
        extra = cuda.local.array(8, uint32)
        a = cuda.local.array(8, uint32)
        left = cuda.local.array(left_words, uint32)
        chain = cuda.local.array(num_sums, float32)
        stored = stage + uint32(column_bytes) + uint32(warp) * uint32(warp_bytes)
        load_high(stored, lane, extra)
        load_scales(stored, lane, extra)
        for g in range(groups):
            for w in range(group_slabs):
                slab = g * group_slabs + w
                if slab % unit_slabs == 0:
                    load_codes(stored, lane, slab, words)
                pairs(words, extra, slab, a)
                for i in range(8):
                    left[8 * w + i] = a[i]
                    if offset != 0:
                        left[8 * w + i] = ptx.multiply_add_bf16x2(
                            a[i], uint32(_ONES), uint32(offset)
                        )
            first = g * group_slabs  # slab: 64 bytes of a row, four units of a descriptor
            at = stage + uint32(first // 2 * half_bytes + first % 2 * 64)
            right = uint64(warpgroup.DESCRIPTOR) + uint64(at >> uint32(4))
            if is_scaled:
                products(chain, left, right)
                upper, lower = scale(extra, g, 0), scale(extra, g, 1)
                for j in range(num_sums // 4):
                    i = 4 * j
                    total[i] = ptx.fused_multiply_add(upper, chain[i], total[i])
                    total[i + 1] = ptx.fused_multiply_add(upper, chain[i + 1], total[i + 1])
                    total[i + 2] = ptx.fused_multiply_add(lower, chain[i + 2], total[i + 2])
                    total[i + 3] = ptx.fused_multiply_add(lower, chain[i + 3], total[i + 3])
            else:
                products(total, left, right)

    return multiply
