"""What kernels of the experts' second half share: columns, products of a slot, and their sum."""

from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.device_functions import lower_bf16
from ninfer.kernels.cuda.expert_columns import make_load_alone
from ninfer.kernels.cuda.fragments import pair_sum
from ninfer.kernels.cuda.group_products import make_multiply, unit_groups
from ninfer.kernels.cuda.launch import WARP
from ninfer.kernels.cuda.weight_layout import TILE_ROWS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS, make_masks
from ninfer.tensor import TensorFormat

WARPS: Final = 8
"""Warps of the chosen experts: each has a slot."""

THREADS: Final = WARPS * WARP

Address = Any
Array = Any
Index = Any


def column_bytes(k_tiles: int) -> int:
    """Chunks of a column, then sums of its groups."""
    return k_tiles * 256 + -(-k_tiles // 2) * 16


def make_bring_column(k_tiles: int) -> Any:
    """A choice's column to shared memory, chunks as they are, then the sums of its groups."""
    chunks = 16 * k_tiles
    steps = -(-chunks // WARP)

    @device_function
    def bring_column(
        active: Address, choice: Index, width: Index, column: Address, lane: Index
    ) -> None:
        row = active + uint64(choice) * uint64(chunks * 16)
        for step in range(steps):
            chunk = int32(lane) + int32(WARP * step)
            a, b, c, d = uint32(0), uint32(0), uint32(0), uint32(0)
            if chunk * int32(8) < int32(width):
                a, b, c, d = ptx.load_u32x4(row + uint64(chunk) * uint64(16))
            total = (pair_sum(a) + pair_sum(b)) + (pair_sum(c) + pair_sum(d))
            total += cuda.shfl_xor_sync(0xFFFFFFFF, total, 1)
            total += cuda.shfl_xor_sync(0xFFFFFFFF, total, 2)
            total += cuda.shfl_xor_sync(0xFFFFFFFF, total, 4)
            if chunk < int32(chunks):
                ptx.put_shared_u32x4(column + uint32(chunk) * uint32(16), a, b, c, d)
                if chunk & int32(7) == int32(0):
                    to = column + uint32(chunks * 16) + uint32(chunk >> int32(3)) * uint32(4)
                    ptx.put_shared_f32(to, total)

    return bring_column


def make_column_multiply(format: TensorFormat, k_tiles: int, *, keeps_masks: bool = True) -> Any:
    """Products of a slot: the same column eight times, of which column 0 is looked at."""
    tile_bytes, num_sums = PAIR_FORMATS[format].tile_bytes, 2 * unit_groups(format, 4)
    load, products = make_load_alone(format, 4), make_multiply(format, 1, 1, 4)
    make_own_masks = make_masks(format, keeps=keeps_masks)

    @device_function
    def multiply(rows: Address, column: Address, lane: Index, total: Array) -> None:
        x = cuda.local.array(16, uint32)
        s = cuda.local.array(num_sums, float32)
        masks = make_own_masks()
        for i in range(4):
            total[i] = float32(0.0)
        for k in range(k_tiles):
            load(column + uint32(k * 256), column, k_tiles * 256 + k * 8, lane, 0, x, s)
            products(rows + uint32(k * tile_bytes), lane, 0, x, s, total, masks)

    return multiply


@device_function
def row_tiles_of_block(row_tiles: Index) -> Any:
    """Row tiles of a block: the first, and the one behind the last."""
    before, groups = uint32(row_tiles) * uint32(cuda.blockIdx.y), uint32(cuda.gridDim.y)
    first = ptx.divide_u32(uint32(before), groups)
    return int32(first), int32(ptx.divide_u32(uint32(before + uint32(row_tiles)), groups))


@device_function
def put_products(products: Address, warp: Index, lane: Index, weight: Any, total: Array) -> None:
    """Products of a warp's slot times its weight; only those of column 0 count."""
    if lane & int32(3) == int32(0):
        to = products + uint32(warp * int32(TILE_ROWS) + (lane >> int32(2))) * uint32(4)
        ptx.put_shared_f32(to, weight * total[0])
        ptx.put_shared_f32(to + uint32(32), weight * total[2])


def make_add_up(slots: int) -> Any:
    """Add products of all slots in order, and the rest."""

    @device_function
    def add_up(products: Address, residual: Address, hidden: Index, tile: Index, rest: Any) -> None:
        if cuda.threadIdx.x < TILE_ROWS:
            at = products + uint32(cuda.threadIdx.x) * uint32(4)
            value = ptx.shared_f32(at)
            for slot in range(1, slots):
                value += ptx.shared_f32(at + uint32(4 * TILE_ROWS * slot))
            place = _feature_place(hidden, tile)
            ptx.store_u16(residual + place, ptx.bf16x2_of_f32(value + rest, float32(0.0)))

    return add_up


@device_function
def load_rest(
    shared: Address, shared_gate: Address, residual: Address, hidden: Index, tile: Index
) -> Any:
    """What the slots of a feature are added to; for the block's first sixteen threads."""
    value = float32(0.0)
    if cuda.threadIdx.x < TILE_ROWS:
        gate = ptx.load_f32(shared_gate + uint64(cuda.blockIdx.x) * uint64(4))
        place = _feature_place(hidden, tile)
        own, before = ptx.load_u16(shared + place), ptx.load_u16(residual + place)
        value = gate * lower_bf16(own) + lower_bf16(before)
    return value


@device_function
def _feature_place(hidden: Index, tile: Index) -> Any:
    """Byte of a thread's feature in a bf16 row of each token."""
    feature = int32(tile * int32(TILE_ROWS) + int32(cuda.threadIdx.x))
    return (uint64(cuda.blockIdx.x) * uint64(hidden) + uint64(feature)) * uint64(2)
