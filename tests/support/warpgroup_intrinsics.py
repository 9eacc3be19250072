"""Intrinsics of `ninfer.cuda.ptx` where every thread of a block is one Python thread.

Source: PTX ISA manual.
"""

from collections.abc import Callable, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.support.counting_threads import counting_instructions
from tests.support.matrix_threads import matrix_instructions
from tests.support.warp_votes import vote_instructions
from tests.support.word_arithmetic import (
    add,
    bf16_word,
    half_value,
    multiply,
    multiply_add_pair,
    permute_bytes,
    rounded,
    value_of,
)


def left_rows(held: Sequence[Sequence[int]]) -> npt.NDArray[np.float64]:
    """Rows of a warp's left operand, from the words of its lanes: four for 16 elements along K."""
    words = np.array(held, np.uint32)
    rows = np.zeros((16, 4 * words.shape[1]), np.uint32)
    rows[_left_places(words.shape[1])] = words[..., None].view(np.uint16)
    return (rows << np.uint32(16)).view(np.float32).astype(np.float64)


@cache
def _left_places(count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Row and place along K of both halves of each of so many words of every lane."""
    lane, index, half = np.ogrid[:32, :count, :2]
    row = lane // 4 + index % 2 * 8 + 0 * half
    return row, index // 4 * 16 + index % 4 // 2 * 8 + lane % 4 * 2 + half


def intrinsics(block: Any, shared: int) -> SimpleNamespace:
    """What stands in for `ninfer.cuda.ptx`.

    Args:
        block: memories, barriers and threads.
        shared: address of the first byte of dynamic shared memory.
    """
    made: dict[str, Any] = {}
    for prefix in ("load_", "once_", "shared_"):
        for name, dtype, count in (
            ("u32x4", np.uint32, 4), ("u32x2", np.uint32, 2), ("u32", np.uint32, 1),
            ("f32x4", np.float32, 4), ("f32x2", np.float32, 2), ("f32", np.float32, 1),
        ):  # fmt: skip
            made[prefix + name] = _loader(block, dtype, count)

    def store_if(dtype: Any) -> Callable[[Any, Any, Any], None]:
        def store(mask: Any, address: Any, value: Any) -> None:
            if mask:
                block.store(address, [dtype(value)], dtype)

        return store

    return SimpleNamespace(
        **made,
        **matrix_instructions(block),
        **vote_instructions(block),
        **counting_instructions(block),
        load_i32=lambda address: block.load(address, np.int32),
        copy_async_16=block.copy_async,
        close_copies=block.close_copies,
        wait_copies_0=lambda: block.wait_copies(0),
        wait_copies_1=lambda: block.wait_copies(1),
        wait_copies_2=lambda: block.wait_copies(2),
        wait_copies_3=lambda: block.wait_copies(3),
        sync_warp=lambda: block.warps[block.turns.current // 32].wait(),
        fence_shared_async=block.fence,
        placed_u32=lambda value: np.uint32(value),
        power_of_two=lambda x: np.float32(np.exp2(np.float64(x))),
        square_root=lambda x: np.float32(np.sqrt(np.float64(x))),
        reciprocal=lambda x: np.float32(1 / np.float64(x)),
        put_shared_u32x4=lambda address, *values: block.store(address, values, np.uint32),
        shared_address=lambda array: np.uint32(shared),
        divide_u32=lambda a, b: np.uint32(int(a) // int(b)),
        load_u16=lambda address: np.uint32(block.load(address, np.uint16)),
        put_shared_u16=lambda address, value: block.store(address, [value & 0xFFFF], np.uint16),
        put_shared_u32=lambda address, value: block.store(address, [value], np.uint32),
        put_shared_f32=lambda address, value: block.store(address, [value], np.float32),
        fused_multiply_add=lambda a, b, c: rounded(float(a) * float(b) + float(c)),
        transpose_matrix=block.transpose,
        store_u32=lambda address, value: block.store(address, [value], np.uint32),
        put_shared_f32x2=lambda address, *values: block.store(address, values, np.float32),
        store_u32x4=lambda address, *values: block.store(address, values, np.uint32),
        store_f32x2=lambda address, *values: block.store(address, values, np.float32),
        store_f32=lambda address, value: block.store(address, [value], np.float32),
        store_f32_if=store_if(np.float32),
        store_u16_if=store_if(np.uint16),
        bf16x2_of_f32=lambda low, high: np.uint32(bf16_word(low) | bf16_word(high) << 16),
        f32_of_bits=value_of,
        f32_of_f16=lambda word: half_value(int(word)),
        f32_of_upper_f16=lambda word: half_value(int(word) >> 16),
        add_f32=add,
        multiply_f32=multiply,
        permute_bytes=permute_bytes,
        masked_or=lambda a, b, c: np.uint32(a) & np.uint32(b) | np.uint32(c),
        multiply_add_bf16x2=multiply_add_pair,
        release_successor=block.release_successor,
        wait_for_predecessor=lambda: None,
    )


def _loader(block: Any, dtype: Any, count: int) -> Callable[[Any], Any]:
    return lambda address: block.load(address, dtype, count)
