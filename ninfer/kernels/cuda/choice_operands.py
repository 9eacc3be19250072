"""What the kernels of a token choice are given: the same operands, in one order.

A launcher packs them once. A kernel is a function of all of them; `row_kernel` makes the rest.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ninfer.cuda import cluster, ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.choice_room import Room
from ninfer.kernels.cuda.choice_selection import BLOCK


class Operands(NamedTuple):
    """Addresses of tables, of which a row has an entry or a line each, then extents.

    Attributes:
        logits: f32 [rows, vocabulary].
        temperatures, top_ps, min_ps, presences, frequencies: f32 [rows].
        top_ks: i32 [rows].
        seeds: u32 [rows, 2].
        positions: i32 [rows].
        counts: i32 [slots, vocabulary].
        slots: i32 [rows].
        mask: u32 [rows, mask_words].
        scratches: `choice_passes.ROW_BYTES` a row.
        vocabulary: logits of a row.
        mask_words: words of a row's mask.
        addressable: ids that a token may have.
        tokens: i32 [rows], what is chosen.
    """

    logits: Any
    temperatures: Any
    top_ps: Any
    min_ps: Any
    presences: Any
    frequencies: Any
    top_ks: Any
    seeds: Any
    positions: Any
    counts: Any
    slots: Any
    mask: Any
    scratches: Any
    vocabulary: Any
    mask_words: Any
    addressable: Any
    tokens: Any


_PARAMS: Final = (Param.ADDRESS,) * 13 + (Param.I32,) * 3 + (Param.ADDRESS,)


def row_kernel(name: str, work: Any, *, max_registers: int, min_blocks: int = 0) -> Kernel:
    """Kernel of a device function of `Operands`; grid (SLICES, rows), block (256,)."""
    return Kernel(
        name,
        _function(work, _begin_alone),
        _PARAMS,
        threads=BLOCK,
        max_registers=max_registers,
        min_blocks=min_blocks,
    )


def cluster_kernel(name: str, work: Any, room: Room) -> Kernel:
    """Kernel of a device function of `Operands`; grid (blocks, rows), a cluster for each row."""
    return Kernel(
        name,
        _function(work, _begin_in_cluster),
        _PARAMS,
        threads=room.threads,
        max_registers=64,
        dynamic_shared_bytes=room.nbytes,
        cluster_blocks=room.blocks,
    )


@device_function
def _begin_alone() -> None:
    ptx.release_successor()
    ptx.wait_for_predecessor()


@device_function
def _begin_in_cluster() -> None:
    ptx.release_successor()
    cluster.arrive_cluster()
    ptx.wait_for_predecessor()


def _function(work: Any, begin: Any) -> Callable[..., None]:
    """Function of a kernel's parameters that begins and works."""

    def choose(
        logits: int,
        temperatures: int,
        top_ps: int,
        min_ps: int,
        presences: int,
        frequencies: int,
        top_ks: int,
        seeds: int,
        positions: int,
        counts: int,
        slots: int,
        mask: int,
        scratches: int,
        vocabulary: int,
        mask_words: int,
        addressable: int,
        tokens: int,
    ) -> None:
        begin()
        work(
            Operands(
                logits, temperatures, top_ps, min_ps, presences, frequencies, top_ks, seeds,
                positions, counts, slots, mask, scratches, vocabulary, mask_words, addressable,
                tokens,
            )
        )  # fmt: skip

    return choose
