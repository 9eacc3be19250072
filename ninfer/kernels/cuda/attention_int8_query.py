"""Queries of decode attention over int8 planes: whole numbers of sixteen bits, as bytes.

The largest component of a head is 32,639 units, so that a number is 256 times a signed byte plus
another; upper bytes are the rows 0..7 of the left operand of m16n8k32, lower bytes the rows 8..15.
"""

from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.attention_int8 import LEAST, CodeStage
from ninfer.kernels.cuda.attention_splits import ROWS
from ninfer.kernels.cuda.device_functions import lower_bf16, upper_bf16

_QUERY_UNITS: Final = 127 * 256 + 127
_SIGNED_WHOLE: Final = 12582912.0  # 1.5 * 2^23: added, whole numbers are the lower bits


@device_function
def _largest(word: Any, most: Any) -> Any:
    """The larger of two bf16 magnitudes and another, as bits of f32."""
    most = max(uint32(most), (uint32(word) << uint32(16)) & uint32(0x7FFFFFFF))
    return max(uint32(most), uint32(word) & uint32(0x7FFF0000))


@device_function
def _low_bytes(a: Any, b: Any, c: Any, d: Any) -> Any:
    """Lowest bytes of four words."""
    return ptx.permute_bytes(
        ptx.permute_bytes(a, b, uint32(0x0040)),
        ptx.permute_bytes(c, d, uint32(0x0040)),
        uint32(0x5410),
    )


@device_function
def _second_bytes(a: Any, b: Any, c: Any, d: Any) -> Any:
    """Second bytes of four words."""
    return ptx.permute_bytes(
        ptx.permute_bytes(a, b, uint32(0x0051)),
        ptx.permute_bytes(c, d, uint32(0x0051)),
        uint32(0x5410),
    )


def make_queries(layout: CodeStage) -> Any:  # noqa: C901 - functions that share widths
    """Functions with which a warp asks for the queries of a key head, and stores them.

    The first fills ``words`` from the address of the first head; heads behind ``rows`` are the last
    one. The second stores whole numbers and their units.
    """
    head_dim, row_bytes, unit_at = layout.head_dim, layout.row_bytes, layout.unit_at
    owned = head_dim // 32  # components of a lane
    held = owned // 2

    @device_function
    def ask_queries(address: Any, rows: Any, lane: Any, words: Any) -> None:
        for head in range(ROWS):
            row = min(int32(head), int32(rows) - int32(1))
            at = address + uint64(row) * uint64(2 * head_dim) + uint64(lane) * uint64(2 * owned)
            w = held * head
            if held == 4:
                words[w], words[w + 1], words[w + 2], words[w + 3] = ptx.load_u32x4(at)
            elif held == 2:
                words[w], words[w + 1] = ptx.load_u32x2(at)
            else:
                words[w] = ptx.load_u32(at)

    @device_function
    def put_query(to: Any, words: Any, head: Any, lane: Any) -> None:
        most = uint32(0)
        w = held * head
        for i in range(held):
            most = _largest(words[w + i], most)
        most = ptx.largest_of_warp(most)
        largest = ptx.larger_f32(ptx.f32_of_bits(most), float32(LEAST))
        units = float32(_QUERY_UNITS) * ptx.reciprocal(largest)
        whole = cuda.local.array(8, uint32)
        for i in range(8):
            whole[i] = uint32(0)
        for i in range(held):
            whole[2 * i] = _whole(lower_bf16(words[w + i]), units)
            whole[2 * i + 1] = _whole(upper_bf16(words[w + i]), units)
        low = _low_bytes(whole[0], whole[1], whole[2], whole[3])
        low_too = _low_bytes(whole[4], whole[5], whole[6], whole[7])
        for i in range(8):
            whole[i] = whole[i] + uint32(128)
        high = _second_bytes(whole[0], whole[1], whole[2], whole[3])
        high_too = _second_bytes(whole[4], whole[5], whole[6], whole[7])
        at = uint32(to) + uint32(head * row_bytes) + uint32(lane) * uint32(owned)
        lower_at = at + uint32(ROWS * row_bytes)
        if held == 4:
            ptx.put_shared_u32x2(at, high, high_too)
            ptx.put_shared_u32x2(lower_at, low, low_too)
        elif held == 2:
            ptx.put_shared_u32(at, high)
            ptx.put_shared_u32(lower_at, low)
        else:
            ptx.put_shared_u16(at, high)
            ptx.put_shared_u16(lower_at, low)
        ptx.put_shared_f32(
            uint32(to) + uint32(unit_at + 4 * head), largest * float32(1.0 / _QUERY_UNITS)
        )

    @device_function
    def put_queries(to: Any, words: Any, lane: Any) -> None:
        for head in range(ROWS):
            put_query(to, words, head, lane)

    return ask_queries, put_queries


@device_function
def _whole(value: Any, units: Any) -> Any:
    return ptx.bits_of_f32(ptx.fused_multiply_add(value, units, float32(_SIGNED_WHOLE)))


def make_get_query(layout: CodeStage) -> Any:
    """Function that loads the queries' operand; returns a unit of the lane's head."""
    row_bytes, unit_at = layout.row_bytes, layout.unit_at
    steps = layout.head_dim // 32

    @device_function
    def get_query(source: Any, lane: Any, words: Any) -> Any:
        row = uint32(lane) & uint32(15)
        at = uint32(source) + row * uint32(row_bytes) + ((uint32(lane) >> uint32(4)) << uint32(4))
        for i in range(steps):
            w = 4 * i
            words[w], words[w + 1], words[w + 2], words[w + 3] = ptx.load_matrices(
                at + uint32(32 * i)
            )
        head = uint32(lane) >> uint32(2)
        return ptx.shared_f32(uint32(source) + uint32(unit_at) + (head << uint32(2)))

    return get_query
