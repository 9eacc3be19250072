"""Matrix instructions of a warp for simulators in which every thread is a Python thread.

Beside them what kernels around such products need of memory.
Threads of a warp lay their operands side by side and each makes its own results from them. Sums are
float64, rounded once. Source: PTX ISA, fragments of ldmatrix and of mma.m16n8k16.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.support.word_arithmetic import rounded


def matrix_instructions(block: Any) -> dict[str, Callable[..., Any]]:
    """Stand-ins for intrinsics of `ninfer.cuda.ptx`; ``block`` has memory and barriers."""

    def rows(addresses: list[int]) -> Any:
        found = np.array([block.octets(at, 16).view(np.uint16) for at in addresses], np.uint32)
        return found.reshape(4, 8, 8)

    def words(rows: Any) -> Any:
        """Pairs in rows, by lane and matrix."""
        return (rows[..., ::2] | rows[..., 1::2] << 16).reshape(4, 32).T

    def load_matrices(address: Any) -> tuple[Any, ...]:
        found = block.of_warp(int(address), lambda at: words(rows(at)))
        return tuple(found[block.turns.current % 32])

    def load_matrices_transposed(address: Any) -> tuple[Any, ...]:
        found = block.of_warp(int(address), lambda at: words(rows(at).transpose(0, 2, 1)))
        return tuple(found[block.turns.current % 32])

    def store_matrices_transposed(address: Any, *words: Any) -> None:
        held = block.of_warp((int(address), [int(word) for word in words]))
        lane = block.turns.current % 32
        # This lane's row: column lane % 8 of square lane / 8, of which lane 4 r + t has a pair.
        column, square = lane % 8, lane // 8
        for r in range(8):
            word = held[4 * r + column // 2][1][square]
            block.store(address + 2 * r, [word >> 16 * (column % 2) & 0xFFFF], np.uint16)

    def products(lanes: list[list[int]]) -> Any:
        """What each lane adds to its sums."""
        words = np.array(lanes, np.uint32)
        low = (words << np.uint32(16)).view(np.float32).astype(np.float64)
        high = (words & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)
        pairs = np.stack([low, high], axis=-1).reshape(8, 4, 6, 2)  # row, quarter, word, half
        made = np.empty((8, 4, 4))
        for i in range(4):
            own = pairs[:, :, i // 2 : 4 : 2]  # words of a row: components 0..7, then 8..15
            other = pairs[i % 2 :: 2, :, 4:]
            made[..., i] = np.einsum("rqwh,tqwh->rt", own, other)
        return made.reshape(32, 4)

    def mma_bf16(*operands: Any) -> tuple[Any, ...]:
        held = [int(word) for word in operands[:6]]
        found = block.of_warp(held, products)[block.turns.current % 32]
        return tuple(
            rounded(float(total) + float(product))
            for total, product in zip(operands[6:], found, strict=True)
        )

    def copy_async_16_if(to: Any, source: Any, flag: Any) -> None:
        if flag:
            block.copy_async(to, source, 16)

    return {
        "copy_async_16_if": copy_async_16_if,
        "copy_weights_16_if": copy_async_16_if,
        "fresh_i32": lambda address: block.load(address, np.int32),
        "store_u16": lambda address, word: block.store(address, [int(word) & 0xFFFF], np.uint16),
        "load_matrices": load_matrices,
        "load_matrices_transposed": load_matrices_transposed,
        "mma_bf16": mma_bf16,
        "store_matrices_transposed": store_matrices_transposed,
    }
