"""The end of a linear product: parts added in order, written as bf16 or f32, or added to bf16."""

import enum
from typing import Any

from numba import cuda, float32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.device_functions import lower_bf16

Address = Any
Index = Any


class Output(enum.IntEnum):
    """What happens to a product; the value is a kernel argument."""

    BF16 = 0  # rounded and stored
    F32 = 1  # stored
    ADD = 2  # added in f32 to the bf16 that is there, rounded, stored


@device_function
def warp_index() -> Any:
    """Number of the warp in its block, the same for all its lanes."""
    return cuda.threadIdx.x >> 5


@device_function
def load_before(out: Address, index: Any, is_inside: Any, mode: Index) -> Any:
    """Word of the bf16 that a product will be added to; 0 where it is not, arguments as below."""
    before = uint32(0)
    if mode == 2:
        # Lanes outside read element 0, which exists, and drop it.
        before = uint32(ptx.load_u16(out + index * uint64(2) * uint64(is_inside)))
    return before


@device_function
def store_product(out: Address, index: Any, is_inside: Any, mode: Index, value: Any) -> None:
    """Write one product.

    Args:
        out: address of element 0.
        index: element, u64; lanes outside may give any.
        is_inside: u32, 0 for lanes that write nothing.
        mode: an `Output`.
        value: the product.
    """
    before = load_before(out, index, is_inside, mode)
    store_after(out, index, is_inside, mode, value, before)


@device_function
def store_after(
    out: Address, index: Any, is_inside: Any, mode: Index, value: Any, before: Any
) -> None:
    """Write one product whose `load_before` was asked for earlier."""
    if mode == 1:
        ptx.store_f32_if(is_inside, out + index * uint64(4), value)
    else:
        result = value
        if mode == 2:
            result = value + lower_bf16(before)
        at = out + index * uint64(2) * uint64(is_inside)
        ptx.store_u16_if(is_inside, at, ptx.bf16x2_of_f32(result, float32(0.0)) & uint32(0xFFFF))
