"""Append to the paged key/value cache on CUDA: norm, rotation and store in one kernel.

    q, k = rope(x / sqrt(mean(x^2) + eps) * (1 + w))     rotated pairs (j, j + R/2)
    plane row (page, head, offset) <- k or v              bf16, or int8 codes with f16 scales

One warp owns one head of one column and each lane consecutive components, so that norm, rotation
and group maxima are shuffles; a key's warp also stores its value. The heads of a block turn by the
same angles: a thread for each makes their cosines and sines (`rotary`) before the heads are there,
and they go through shared memory. Traffic is the projected row once and the written rows once. Sums
are f32 butterflies. Int8 follows the artifact encoder: scale = f16(maxabs / 127), code = nearest(x
* (1 / scale)).
"""

from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.cuda.stream import CudaStream
from ninfer.errors import ShapeError
from ninfer.kernels.cuda.device_functions import lower_bf16, warp_sum
from ninfer.kernels.cuda.launch import WARP, KernelShapes, blocks_for
from ninfer.kernels.cuda.rotary import make_ask_angle, make_put_angle, make_rotate
from ninfer.kernels.operand_groups import KvPlanes, Rope
from ninfer.tensor import DType, Tensor

PAGE_TOKENS: Final = 64

_WARPS: Final = 8  # most heads of one block
_GROUP: Final = 64
_LARGEST_F16: Final = 65504.0


def append(
    stream: CudaStream,
    projected: Tensor,
    query_norm: Tensor,
    key_norm: Tensor,
    eps: float,
    rope: Rope,
    rope_positions: Tensor,
    positions: Tensor,
    table_rows: Tensor,
    kv: KvPlanes,
    queries: Tensor,
) -> None:
    """Launch one warp for each query and key head of each column.

    Raises:
        ShapeError: the planes are F32, or a head cannot be split over a warp.
    """
    num_tokens, num_heads, head_dim = queries.shape
    if kv.keys.dtype is DType.F32:
        raise ShapeError("keys: a CUDA cache holds BF16 or I8")
    kernel = make_append(
        head_dim, rope.rotary_dim, rope.theta, rope.section, kv.keys.dtype is DType.I8
    )
    num_kv_heads = kv.keys.shape[1]
    blocks = blocks_for(num_heads + num_kv_heads, _WARPS)
    warps = blocks_for(num_heads + num_kv_heads, blocks)
    warps = max(warps, blocks_for(rope.rotary_dim // 2, WARP))
    scales = (kv.key_scales, kv.value_scales)
    stream.launch(
        kernel,
        (num_tokens, blocks, 1),
        (
            projected.address,
            query_norm.address,
            key_norm.address,
            rope_positions.address,
            positions.address,
            table_rows.address,
            kv.block_table.address,
            kv.keys.address,
            kv.values.address,
            *(0 if plane is None else plane.address for plane in scales),
            queries.address,
            num_tokens,
            num_heads,
            num_kv_heads,
            kv.block_table.shape[1],
            eps,
        ),
        threads=WARP * warps,
    )


def declared(shapes: KernelShapes) -> tuple[Kernel, ...]:
    """Kernels a model needs: both cache types."""
    return tuple(
        make_append(
            shapes.head_dim, shapes.rotary_dim, shapes.rope_theta, shapes.mrope_section, is_int8
        )
        for is_int8 in (False, True)
    )


@device_function
def narrow_code(value: Any, inverse: Any) -> Any:
    """Int8 code of a value, as an unsigned byte."""
    code = min(max(ptx.nearest_i32(value * inverse), int32(-127)), int32(127))
    return uint32(code) & uint32(255)


@device_function
def group_scale(largest: Any) -> Any:
    """Binary16 word of the scale of a group, and the reciprocal of its value."""
    word = ptx.f16_of_f32(min(largest / float32(127.0), float32(_LARGEST_F16)))
    if word == uint32(0):
        word = uint32(1)
    inverse = float32(1.0) / ptx.f32_of_f16(word)
    if largest == float32(0.0):
        word = uint32(0)
    return word, inverse


@cache
def make_append(  # noqa: PLR0915 - one pass, whose head is a lane's registers
    head_dim: int,
    rotary_dim: int,
    theta: float,
    section: tuple[int, int, int],
    is_int8: bool,
) -> Kernel:
    """One warp per head; grid (columns, blocks of heads), up to 256 threads; one barrier.

    Raises:
        ShapeError: a head or its rotated half is not split evenly over lanes.
    """
    per_lane = head_dim // WARP
    half = rotary_dim // 2
    if head_dim % WARP or per_lane not in (1, 2, 4, 8) or half % per_lane:
        raise ShapeError(f"heads of {head_dim} with {rotary_dim} rotated components")
    group_lanes = min(_GROUP, head_dim) // per_lane
    groups = -(-head_dim // _GROUP)
    fetch, unpack = _make_fetch(per_lane), _make_unpack(per_lane)
    words = _words_of(per_lane)
    ask_angle = make_ask_angle(rotary_dim, theta, section)
    put_angle, rotate = make_put_angle(rotary_dim), make_rotate(per_lane, rotary_dim)
    normalise = _make_normalise(head_dim)
    store_query = _make_words_store(per_lane)
    store = _make_int8_store(per_lane, group_lanes, groups) if is_int8 else _make_store(per_lane)
    width = head_dim * 2
    row_bytes = head_dim if is_int8 else width

    def append_head(
        projected: int,
        query_norm: int,
        key_norm: int,
        rope_positions: int,
        positions: int,
        table_rows: int,
        block_table: int,
        keys: int,
        values: int,
        key_scales: int,
        value_scales: int,
        queries: int,
        num_tokens: int,
        num_heads: int,
        num_kv_heads: int,
        table_width: int,
        eps: float,
    ) -> None:
        ptx.release_successor()
        angles = ptx.shared_address(cuda.shared.array(0, uint64))
        column = int32(cuda.blockIdx.x)
        lane, warp = int32(cuda.threadIdx.x & 31), int32(cuda.threadIdx.x >> 5)
        head = int32(cuda.blockIdx.y) * int32(cuda.blockDim.x >> 5) + warp
        num_turned = int32(num_heads + num_kv_heads)
        # Positions, tables and weights are those of before the round.
        position, frequency = ask_angle(rope_positions, num_tokens, column)
        offset = uint64(lane) * uint64(2 * per_lane)
        norm, own = cuda.local.array(words, uint32), cuda.local.array(words, uint32)
        value = cuda.local.array(words, uint32)
        fetch((query_norm if head < num_heads else key_norm) + offset, norm)
        place = ptx.load_i32(positions + uint64(column) * uint64(4))
        table_row = ptx.load_i32(table_rows + uint64(column) * uint64(4))
        put_angle(angles, position, frequency)
        ptx.wait_for_predecessor()
        line = projected + uint64(column) * uint64(2 * num_turned) * uint64(width) + offset
        if head < num_turned:
            fetch(line + uint64(head) * uint64(width), own)
        if num_heads <= head < num_turned:
            fetch(line + uint64(num_turned + head) * uint64(width), value)
        cuda.syncthreads()
        if head < num_turned:
            page = int32(0)
            if head >= num_heads:
                entry = uint64(table_row) * uint64(table_width) + uint64(place >> 6)
                page = ptx.load_i32(block_table + entry * uint64(4))
            x, w = cuda.local.array(per_lane, float32), cuda.local.array(per_lane, float32)
            unpack(own, x)
            unpack(norm, w)
            normalise(x, w, eps)
            rotate(x, angles, lane)
            if head < num_heads:
                target = uint64(column) * uint64(num_heads) + uint64(head)
                store_query(queries + target * uint64(width) + offset, x)
            else:
                row = uint64(page) * uint64(num_kv_heads) + uint64(head - num_heads)
                row = row * uint64(64) + uint64(place & 63)
                store(keys + row * uint64(row_bytes), key_scales, row, lane, x)
                unpack(value, x)
                store(values + row * uint64(row_bytes), value_scales, row, lane, x)

    params = (Param.ADDRESS,) * 12 + (Param.I32,) * 4 + (Param.F32,)
    digits = f"{head_dim}_{rotary_dim}_{_number(theta)}_{'_'.join(str(n) for n in section)}"
    name = f"kv_append_{'int8' if is_int8 else 'bf16'}_{digits}"
    return Kernel(
        name,
        append_head,
        params,
        threads=_WARPS * WARP,
        max_registers=64,
        dynamic_shared_bytes=4 * rotary_dim,
    )


def _make_normalise(head_dim: int) -> Any:
    """Function that normalises a head, spread over a warp, in place."""
    per_lane = head_dim // WARP

    @device_function
    def normalise(x: Any, w: Any, eps: Any) -> None:
        total = float32(0.0)
        for i in range(per_lane):
            total += x[i] * x[i]
        mean = warp_sum(total) / float32(head_dim)
        inverse = float32(1.0) / ptx.square_root(mean + eps)
        for i in range(per_lane):
            x[i] = x[i] * inverse * (float32(1.0) + w[i])

    return normalise


def _number(value: float) -> str:
    return f"{value:g}".replace(".", "p").replace("+", "")


def _words_of(per_lane: int) -> int:
    """Words that a lane's values are read as: pairs where they come sixteen bytes at a time."""
    return 4 if per_lane == 8 else per_lane


def _make_fetch(per_lane: int) -> Any:
    """Function that asks for a lane's consecutive bf16 values."""

    @device_function
    def fetch(address: int, words: Any) -> None:
        if per_lane == 8:
            words[0], words[1], words[2], words[3] = ptx.load_u32x4(address)
        else:
            for i in range(per_lane):
                words[i] = ptx.load_u16(address + uint64(2 * i))

    return fetch


def _make_unpack(per_lane: int) -> Any:
    """Function that makes numbers of what was fetched."""

    @device_function
    def unpack(words: Any, target: Any) -> None:
        if per_lane == 8:
            for i in range(4):
                target[2 * i] = lower_bf16(words[i])
                target[2 * i + 1] = ptx.f32_of_bits(words[i] & uint32(0xFFFF0000))
        else:
            for i in range(per_lane):
                target[i] = lower_bf16(words[i])

    return unpack


def _make_words_store(per_lane: int) -> Any:
    """Function that writes a lane's consecutive values as bf16."""

    @device_function
    def store(address: int, x: Any) -> None:
        if per_lane == 8:
            ptx.store_u32x4(
                address,
                ptx.bf16x2_of_f32(x[0], x[1]),
                ptx.bf16x2_of_f32(x[2], x[3]),
                ptx.bf16x2_of_f32(x[4], x[5]),
                ptx.bf16x2_of_f32(x[6], x[7]),
            )
        else:
            for i in range(per_lane):
                word = ptx.bf16x2_of_f32(x[i], float32(0.0))
                ptx.store_u16(address + uint64(2 * i), word)

    return store


def _make_store(per_lane: int) -> Any:
    """Function that writes a head to a bf16 plane row."""
    words = _make_words_store(per_lane)

    @device_function
    def store(plane_row: int, scales: int, row: int, lane: int, x: Any) -> None:
        words(plane_row + uint64(lane * (2 * per_lane)), x)

    return store


def _make_int8_store(per_lane: int, group_lanes: int, groups: int) -> Any:
    """Function that encodes a head into an int8 plane row and its scales."""

    @device_function
    def store(plane_row: int, scales: int, row: int, lane: int, x: Any) -> None:
        largest = float32(0.0)
        for i in range(per_lane):
            largest = max(largest, abs(x[i]))
        if group_lanes == 32:
            largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, 16))
        if group_lanes >= 16:
            largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, 8))
        largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, 4))
        largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, 2))
        largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, 1))
        word, inverse = group_scale(largest)
        if lane & (group_lanes - 1) == 0:
            at = row * uint64(groups) + uint64(lane // group_lanes)
            ptx.store_u16(scales + at * uint64(2), word)
        address = plane_row + uint64(lane * per_lane)
        if per_lane == 8:
            low, high = uint32(0), uint32(0)
            for i in range(4):
                low |= narrow_code(x[i], inverse) << uint32(8 * i)
                high |= narrow_code(x[i + 4], inverse) << uint32(8 * i)
            ptx.store_u32x2(address, low, high)
        else:
            for i in range(per_lane):
                ptx.store_u8(address + uint64(i), narrow_code(x[i], inverse))

    return store
