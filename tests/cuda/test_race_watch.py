"""Simulated blocks and clusters notice accesses that nothing orders."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from numba import cuda, uint32

from ninfer.cuda import cluster, ptx
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.product_output import warp_index
from ninfer.tensor import TensorFormat
from tests.support.cluster_threads import launch
from tests.support.race_watch import RaceError
from tests.support.warp_simulator import GLOBAL, WarpSimulator
from tests.support.warpgroup_simulator import SHARED

Q4, Q5, Q6 = TensorFormat.Q4, TensorFormat.Q5, TensorFormat.Q6
W8, BF16 = TensorFormat.W8, TensorFormat.BF16
Body = Callable[[Any, Any], None]
ALL, TWO = 96, 64
FIRST = SHARED + 48


def run(body: Body) -> None:
    """Three warps run a body, which is given its warp and global memory."""

    def kernel(memory: int) -> None:
        body(warp_index(), memory)

    made = Kernel("watched", kernel, (Param.ADDRESS,), ALL, 32, dynamic_shared_bytes=1024)
    simulator = WarpSimulator(np.zeros(4096, np.uint8))
    simulator.is_watched = True
    simulator.launch(made, (1, 1, 1), (GLOBAL,))


def put(warp: Any, place: int) -> None:
    ptx.put_shared_u32(uint32(place), uint32(warp))


def look(place: int) -> None:
    ptx.shared_u32(uint32(place))


def hand_over(meet: Callable[[], None]) -> Body:
    def body(warp: Any, memory: Any) -> None:
        if warp == 0:
            put(warp, 64)
        meet()
        if warp == 1:
            look(64)

    return body


def test_a_barrier_orders() -> None:
    run(hand_over(lambda: cuda.syncthreads()))


def test_without_one_a_read_is_a_race() -> None:
    with pytest.raises(RaceError, match=r"^64 is "):
        run(hand_over(lambda: None))


def test_a_barrier_of_others_orders_nothing() -> None:
    def body(warp: Any, memory: Any) -> None:
        if warp == 0:
            put(warp, 64)
        if warp < 2:
            ptx.sync_threads(uint32(1), uint32(TWO))
        if warp == 2:
            look(64)

    with pytest.raises(RaceError):
        run(body)


def test_a_place_is_not_written_where_it_may_still_be_read() -> None:
    def body(warp: Any, memory: Any) -> None:
        if warp == 0:
            put(warp, 64)
        cuda.syncthreads()
        if warp == 1:
            look(64)
        if warp == 0:
            put(warp, 64)

    with pytest.raises(RaceError):
        run(body)


@pytest.mark.parametrize("is_ordered", [True, False])
def test_a_copy_writes_from_the_moment_when_it_is_asked_for(is_ordered: bool) -> None:
    def body(warp: Any, memory: Any) -> None:
        if warp == 1:
            look(64)
        if is_ordered:
            cuda.syncthreads()
        if warp == 0:
            ptx.copy_async_16_if(uint32(64), memory, uint32(1))
            ptx.close_copies()
        if not is_ordered:
            cuda.syncthreads()
        if warp == 0:
            ptx.wait_copies_0()

    if is_ordered:
        run(body)
    else:
        with pytest.raises(RaceError):
            run(body)


def run_cluster(body: Callable[[Any, Any], None]) -> None:
    """Two blocks of two warps run a body, which is given its thread and block."""

    def kernel() -> None:
        cluster.arrive_cluster()
        cluster.wait_cluster()
        body(cuda.threadIdx.x, cuda.blockIdx.x)
        cluster.release_cluster()
        cluster.wait_cluster()

    made = Kernel("watched", kernel, (), TWO, 32, dynamic_shared_bytes=1024, cluster_blocks=2)
    launch(np.zeros(4096, np.uint8), made, (2, 1, 1), (), is_watched=True)


def send_word(thread: Any, block: Any, place: int) -> None:
    if thread == 0 and block == 0:
        cluster.put_there_u32(cluster.map_shared(uint32(place), uint32(1)), uint32(7))


@pytest.mark.parametrize("is_ordered", [True, False])
def test_a_word_from_another_block_is_there_when_all_have_met(is_ordered: bool) -> None:
    def body(thread: Any, block: Any) -> None:
        send_word(thread, block, FIRST)
        if is_ordered:
            cluster.release_cluster()
            cluster.wait_cluster()
        if block == 1:
            ptx.shared_u32(uint32(FIRST))

    if is_ordered:
        run_cluster(body)
    else:
        with pytest.raises(RaceError):
            run_cluster(body)


def test_threads_may_add_at_any_time_but_not_read() -> None:
    def add(thread: Any, block: Any) -> None:
        ptx.add_shared_u32(uint32(FIRST), uint32(thread))

    def add_and_read(thread: Any, block: Any) -> None:
        add(thread, block)
        ptx.shared_u32(uint32(FIRST))

    run_cluster(add)
    with pytest.raises(RaceError):
        run_cluster(add_and_read)


def test_lanes_of_a_warp_may_write_what_is_there() -> None:
    def same(thread: Any, block: Any) -> None:
        if thread < 32:
            put(1, FIRST)

    def others(thread: Any, block: Any) -> None:
        if thread < 32:
            put(thread, FIRST)

    run_cluster(same)
    with pytest.raises(RaceError):
        run_cluster(others)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "check", "arguments"),
    [
        ("few", "test_rows_of_any_view_and_columns_of_any_call_have_the_same_bits", (Q5,)),
        ("held", "test_rows_have_the_bits_of_other_kernels", ((Q4, Q5, BF16), 5, 1300, 2)),
        ("narrow", "test_rows_have_the_bits_of_other_kernels", ((W8, BF16), 5, 2048)),
        ("whole", "test_rows_have_the_bits_of_other_kernels", (Q6, 8, 3000, 3, 1)),
    ],
)
def test_warps_of_products_are_ordered(
    family: str, check: str, arguments: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WarpSimulator, "is_watched", True)

    getattr(import_module(f"tests.cuda.test_{family}_product"), check)(*arguments)
