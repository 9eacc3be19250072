"""How a block of decode attention works on one page of int8 planes: products of bytes.

Codes are operands of the products as they are stored, of m16n8k32 with sums in int32; what they are
multiplied with becomes whole numbers of sixteen bits, upper bytes in the rows 0..7 of the left
operand and lower bytes in the rows 8..15: a query head takes row h and row 8 + h, so that both sums
of a head and place are a lane's own. All of that is exact but the rounding to whole numbers.

* Queries (`attention_int8_query`): a head's largest component is 32,639 units; bytes are signed.
* Weights times value scales: the largest of a head, page and group of 64 components is 65,535
  units; bytes are unsigned.

Key scales multiply the sums of their group of 64. For scores, eight positions of a page are the
columns of a warp's products, for outputs eight components; sums of the first have the heads and
positions that the second want from a lane. Of a row, 16-byte piece c lies at c xor (row mod 8), so
that matrix loads find no bank conflict; values are loaded by transposing pairs of bytes, which are
parted afterwards. Rows behind the last position may hold anything. Source of the fragment orders:
PTX ISA, m16n8k32.
"""

from typing import Any, Final, NamedTuple

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.attention_cache import TILE
from ninfer.kernels.cuda.attention_softmax import UNSEEN
from ninfer.kernels.cuda.attention_splits import ROWS

_GROUP: Final = 64

_WEIGHT_UNITS: Final = 65535
_WHOLE: Final = 8388608.0  # 2^23: added, whole numbers are the lower bits
LEAST: Final = 2.0**-100
"""What the largest of some numbers is taken for at least, so that it has a reciprocal."""

_SCORE_STRIDE: Final = TILE + 8  # floats from head to head


class CodeStage(NamedTuple):
    """Where the parts of a page lie in its stage, and what a block has behind its stages."""

    head_dim: int
    warps: int

    @property
    def warp_components(self) -> int:
        """Components of the outputs of one warp."""
        return 256 // self.warps

    @property
    def groups(self) -> int:
        """Scales of a row."""
        return self.head_dim // _GROUP

    @property
    def row_bytes(self) -> int:
        """Bytes from row to row of the queries: padded."""
        return self.head_dim + 16

    @property
    def turn(self) -> tuple[int, int]:
        """Shift and mask of a row's number: with what its 16-byte pieces' numbers are turned."""
        return (1, 3) if self.head_dim == _GROUP else (0, 7)

    @property
    def values_at(self) -> int:
        """First byte of the values."""
        return TILE * self.head_dim

    @property
    def key_scales_at(self) -> int:
        """First byte of the key scales."""
        return 2 * self.values_at

    @property
    def scale_bytes(self) -> int:
        """Bytes of either kind of scales."""
        return TILE * self.groups * 2

    @property
    def nbytes(self) -> int:
        """Bytes of a stage."""
        return self.key_scales_at + 2 * self.scale_bytes

    @property
    def unit_at(self) -> int:
        """First byte of the heads' units, behind the queries' operand."""
        return 2 * ROWS * self.row_bytes

    @property
    def query_bytes(self) -> int:
        """Bytes of the queries' operand and their units."""
        return self.unit_at + 4 * ROWS


SCORE_BYTES: Final = 4 * ROWS * _SCORE_STRIDE
"""Shared memory of a page's scores."""


@device_function
def seen(score: Any, is_there: Any) -> Any:
    """A score, or that of a position behind the last one."""
    result = score
    if not is_there:
        result = float32(UNSEEN)
    return result


def make_fetch(layout: CodeStage) -> Any:
    """Function that starts the copies of a page; all of it is copied."""
    head_dim, groups = layout.head_dim, layout.groups
    shift, mask = layout.turn
    pieces = head_dim // 16
    rows = 32 * layout.warps // pieces
    values_at, key_scales_at = layout.values_at, layout.key_scales_at
    scale_bytes = layout.scale_bytes
    scale_pieces = scale_bytes // 16

    @device_function
    def fetch(
        stage: Any, keys: Any, values: Any, key_scales: Any, value_scales: Any, row: Any
    ) -> None:
        thread = uint32(cuda.threadIdx.x)
        place, piece = thread // uint32(pieces), thread % uint32(pieces)
        offset = uint64(row) * uint64(head_dim) + uint64(thread << uint32(4))
        key, value = keys + offset, values + offset
        turned = piece ^ ((place >> uint32(shift)) & uint32(mask))
        target = uint32(stage) + place * uint32(head_dim) + (turned << uint32(4))
        for i in range(TILE // rows):
            at, source = uint32(i * rows * head_dim), uint64(i * rows * head_dim)
            ptx.copy_page_16(target + at, key + source)
            ptx.copy_page_16(target + at + uint32(values_at), value + source)
        is_there = uint32(thread < uint32(scale_pieces))
        source = uint64(row) * uint64(2 * groups) + uint64(thread << uint32(4))
        at = uint32(stage) + uint32(key_scales_at) + (thread << uint32(4))
        ptx.copy_async_16_if(at, key_scales + source, is_there)
        ptx.copy_async_16_if(at + uint32(scale_bytes), value_scales + source, is_there)

    return fetch


@device_function
def _sum_of(high: Any, low: Any) -> Any:
    """A sum of products of both bytes."""
    return float32(int32((int32(high) << int32(8)) + int32(low)))


def make_scores(layout: CodeStage) -> Any:
    """Function that makes and stores a warp's scores."""
    head_dim, groups, key_scales_at = layout.head_dim, layout.groups, layout.key_scales_at
    shift, mask = layout.turn
    blocks, warps = TILE // 8 // layout.warps, layout.warps

    @device_function
    def load_scales(at: Any, words: Any) -> None:
        """Scales of two positions."""
        if groups == 4:
            words[0], words[1], words[2], words[3] = ptx.shared_u32x4(at)
        elif groups == 2:
            words[0], words[1] = ptx.shared_u32x2(at)
        else:
            words[0] = ptx.shared_u32(at)

    @device_function
    def half_of(word: Any, index: Any) -> Any:
        return ptx.f32_of_f16(word) if index % 2 == 0 else ptx.f32_of_upper_f16(word)

    @device_function
    def put_scores(
        stage: Any, to: Any, words: Any, unit: Any, count: Any, warp: Any, lane: Any
    ) -> None:
        none = int32(0)
        row = (uint32(lane) & uint32(7)) + uint32(warp) * uint32(8)
        line = uint32(stage) + row * uint32(head_dim)
        piece = (uint32(lane) >> uint32(3)) ^ ((row >> uint32(shift)) & uint32(mask))
        place = uint32(warp) * uint32(8) + (uint32(lane) & uint32(3)) * uint32(2)
        scales = cuda.local.array(4, uint32)
        scales_at = uint32(stage) + uint32(key_scales_at) + place * uint32(2 * groups)
        to_line = uint32(to) + (uint32(lane) >> uint32(2)) * uint32(4 * _SCORE_STRIDE)
        to_line += place << uint32(2)
        for i in range(blocks):
            load_scales(scales_at + uint32(i * warps * 16 * groups), scales)
            s, t = float32(0.0), float32(0.0)
            for g in range(groups):
                at = line + ((piece ^ uint32(g % 2 * 4)) << uint32(4))
                x0, x1, x2, x3 = ptx.load_matrices(
                    at + uint32(i * warps * 8 * head_dim + g // 2 * 128)
                )
                w = 8 * g
                c0, c1, c2, c3 = ptx.mma_s8(
                    words[w], words[w + 1], words[w + 2], words[w + 3],
                    x0, x1, none, none, none, none,
                )  # fmt: skip
                c0, c1, c2, c3 = ptx.mma_s8(
                    words[w + 4], words[w + 5], words[w + 6], words[w + 7],
                    x2, x3, c0, c1, c2, c3,
                )  # fmt: skip
                s = ptx.fused_multiply_add(_sum_of(c0, c2), half_of(scales[g // 2], g), s)
                other = groups + g
                t = ptx.fused_multiply_add(_sum_of(c1, c3), half_of(scales[other // 2], other), t)
            first = int32(place) + int32(i * warps * 8)
            s = seen(s * unit, first < int32(count))
            t = seen(t * unit, first + int32(1) < int32(count))
            ptx.put_shared_f32x2(to_line + uint32(i * warps * 32), s, t)

    return put_scores


@device_function
def weigh(scores: Any, lane: Any, p: Any, most: Any, total: Any) -> Any:
    """Make a page's weights of a lane's head from the scores of all warps.

    ``p[2 j + i]`` is that of position 8 j + 2 t + i.

    Returns:
        The largest score so far, this lane's sum of weights, and the correction of earlier sums.
    """
    at = uint32(scores) + (uint32(lane) >> uint32(2)) * uint32(4 * _SCORE_STRIDE)
    at += (uint32(lane) & uint32(3)) << uint32(3)
    found = most
    for i in range(TILE // 8):
        p[2 * i], p[2 * i + 1] = ptx.shared_f32x2(at + uint32(32 * i))
        found = ptx.larger_f32(found, ptx.larger_f32(p[2 * i], p[2 * i + 1]))
    found = ptx.larger_f32(found, cuda.shfl_xor_sync(0xFFFFFFFF, found, 1))
    found = ptx.larger_f32(found, cuda.shfl_xor_sync(0xFFFFFFFF, found, 2))
    correction = ptx.power_of_two(most - found)
    total *= correction
    for i in range(TILE // 4):
        p[i] = ptx.power_of_two(p[i] - found)
        total += p[i]
    return found, total, correction


def make_accumulate(layout: CodeStage) -> Any:
    """Function that adds a page's values of a warp's components, in new units."""
    head_dim, values_at, groups = layout.head_dim, layout.values_at, layout.groups
    shift, mask = layout.turn
    scales_at = layout.key_scales_at + layout.scale_bytes
    components = layout.warp_components
    slices = components // 16
    sums = 8 * slices

    @device_function
    def accumulate(stage: Any, p: Any, correction: Any, warp: Any, lane: Any, o: Any) -> None:
        place = (uint32(lane) & uint32(3)) << uint32(1)
        scales = uint32(stage) + uint32(scales_at) + place * uint32(2 * groups)
        scales += (uint32(warp) * uint32(components) // uint32(_GROUP)) << uint32(1)
        largest = float32(LEAST)
        for i in range(TILE // 4):
            at = scales + uint32((i // 2 * 8 + i % 2) * 2 * groups)
            weight = p[i] * ptx.f32_of_f16(ptx.shared_u16(at))
            p[i] = ptx.larger_f32(weight, float32(0.0))  # a scale behind the last may be none
            largest = ptx.larger_f32(largest, p[i])
        largest = ptx.larger_f32(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, 1))
        largest = ptx.larger_f32(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, 2))
        units = float32(_WEIGHT_UNITS) * ptx.reciprocal(largest)
        line = uint32(stage) + uint32(values_at) + uint32(lane) * uint32(head_dim)
        turn = (uint32(lane) >> uint32(shift)) & uint32(mask)
        piece = (uint32(warp) * uint32(slices)) ^ turn
        c = cuda.local.array(sums, int32)
        for i in range(sums):
            c[i] = int32(0)
        for i in range(TILE // 32):
            high, low = _bytes_of(p, 8 * i, units)
            high_too, low_too = _bytes_of(p, 8 * i + 4, units)
            for j in range(slices):
                at = line + ((piece ^ uint32(j)) << uint32(4))
                x0, x1, x2, x3 = ptx.load_matrices_transposed(at + uint32(i * 32 * head_dim))
                a = ptx.permute_bytes(x0, x1, uint32(0x6420))
                b = ptx.permute_bytes(x2, x3, uint32(0x6420))
                k = 8 * j
                c[k], c[k + 1], c[k + 2], c[k + 3] = ptx.mma_u8_s8(
                    high, low, high_too, low_too, a, b, c[k], c[k + 1], c[k + 2], c[k + 3]
                )
                a = ptx.permute_bytes(x0, x1, uint32(0x7531))
                b = ptx.permute_bytes(x2, x3, uint32(0x7531))
                c[k + 4], c[k + 5], c[k + 6], c[k + 7] = ptx.mma_u8_s8(
                    high, low, high_too, low_too, a, b, c[k + 4], c[k + 5], c[k + 6], c[k + 7]
                )
        unit = largest * float32(1.0 / _WEIGHT_UNITS)
        for j in range(slices):
            for i in range(4):
                k = 8 * j + i % 2 * 4 + i // 2
                x = _sum_of(c[k], c[k + 2])
                o[4 * j + i] = ptx.fused_multiply_add(x, unit, o[4 * j + i] * correction)

    return accumulate


@device_function
def _bytes_of(p: Any, first: Any, units: Any) -> Any:
    """Upper and lower bytes of four weights in whole units."""
    whole = float32(_WHOLE)
    a = ptx.bits_of_f32(ptx.fused_multiply_add(p[first], units, whole))
    b = ptx.bits_of_f32(ptx.fused_multiply_add(p[first + 1], units, whole))
    c = ptx.bits_of_f32(ptx.fused_multiply_add(p[first + 2], units, whole))
    d = ptx.bits_of_f32(ptx.fused_multiply_add(p[first + 3], units, whole))
    x = ptx.permute_bytes(a, b, uint32(0x5410))
    y = ptx.permute_bytes(c, d, uint32(0x5410))
    high = ptx.permute_bytes(x, y, uint32(0x7531))
    return high, ptx.permute_bytes(x, y, uint32(0x6420))


def make_store_outputs(layout: CodeStage) -> Any:
    """Function that stores a warp's outputs of a split, of as many heads as ``rows``."""
    head_dim, components = layout.head_dim, layout.warp_components

    @device_function
    def store_outputs(
        partial: Any, place: Any, rows: Any, max_splits: Any, o: Any, warp: Any, lane: Any
    ) -> None:
        row = uint32(lane) >> uint32(2)
        at = (place + uint64(row) * uint64(max_splits)) * uint64(4 * head_dim)
        at += uint64(uint32(warp) * uint32(4 * components))
        at += uint64((uint32(lane) & uint32(3)) << uint32(4))
        is_row = uint32(int32(row) < int32(rows))
        for i in range(components // 16):
            ptx.store_f32x4_if(
                is_row,
                partial + at + uint64(64 * i),
                o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3],
            )  # fmt: skip

    return store_outputs
