"""Simulated blocks of warpgroups notice accesses of threads that nothing orders."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from numba import cuda, float32, uint32, uint64

from ninfer.cuda import ptx, warpgroup
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.cuda.warpgroup_registers import multiply_registers
from ninfer.kernels.cuda.expert_wide_shape import ExpertWide
from ninfer.tensor import TensorFormat
from tests.cuda.test_expert_plan import plan_of
from tests.cuda.test_expert_wide import expect_close, multiply
from tests.support import warpgroup_simulator
from tests.support.group_race_watch import WatchedBlock
from tests.support.race_watch import RaceError
from tests.support.warpgroup_simulator import GLOBAL, launch

Body = Callable[[Any, Any, Any], None]
"""Gets the thread, and addresses of a place in shared memory and of a barrier of one arrival."""


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warpgroup_simulator, "Block", WatchedBlock)


def run(body: Body, threads: int = 64) -> None:
    def kernel(memory: int) -> None:
        base = (ptx.shared_address(cuda.shared.array(0, uint64)) + uint32(1023)) & uint32(
            0xFFFFFC00
        )
        thread, barrier = uint32(cuda.threadIdx.x), base + uint32(8192)
        if thread == 0:
            warpgroup.init_barrier(barrier, uint32(1))
            warpgroup.publish_barriers()
        cuda.syncthreads()
        body(thread, base, barrier)

    made = Kernel("watched", kernel, (Param.ADDRESS,), threads, 32, dynamic_shared_bytes=10240)
    launch(np.zeros(4096, np.uint8), made, (1, 1, 1), (np.uint64(GLOBAL),))


def is_race(body: Body, threads: int = 64) -> bool:
    try:
        run(body, threads)
    except RaceError:
        return True
    return False


@pytest.mark.parametrize("waits", [True, False])
def test_who_waits_for_a_barrier_sees_what_was_written_before_an_arrival(waits: bool) -> None:
    def body(thread: Any, base: Any, barrier: Any) -> None:
        if thread == 0:
            ptx.put_shared_u32(base, uint32(1))
            warpgroup.arrive(barrier)
        if thread == 40:
            if waits:
                warpgroup.wait_phase(barrier, uint32(0))
            ptx.shared_u32x4(base)

    assert is_race(body) is not waits


def test_what_is_written_behind_an_arrival_is_not_seen() -> None:
    def body(thread: Any, base: Any, barrier: Any) -> None:
        if thread == 0:
            warpgroup.arrive(barrier)
            ptx.put_shared_u32(base, uint32(1))
        if thread == 40:
            warpgroup.wait_phase(barrier, uint32(0))
            ptx.shared_u32x4(base)

    assert is_race(body)


@pytest.mark.parametrize("meets", [True, False])
def test_one_lane_speaks_for_the_others_only_behind_them(meets: bool) -> None:
    def body(thread: Any, base: Any, barrier: Any) -> None:
        if thread < 32:
            ptx.shared_u32x4(base)
            if meets:
                cuda.syncwarp()
            if thread == 0:
                warpgroup.arrive(barrier)
        if thread == 40:
            warpgroup.wait_phase(barrier, uint32(0))
            ptx.put_shared_u32(base, uint32(1))

    assert is_race(body) is not meets


def test_a_shuffle_orders_nothing() -> None:
    def body(thread: Any, base: Any, barrier: Any) -> None:
        if thread == 0:
            ptx.put_shared_u32(base, uint32(1))
        if thread < 32:
            cuda.shfl_sync(0xFFFFFFFF, thread, 0)
        if thread == 1:
            ptx.shared_u32x4(base)

    assert is_race(body)


@pytest.mark.parametrize("waits", [True, False])
def test_a_bulk_copy_writes_until_its_phase_has_ended(waits: bool) -> None:
    def body(thread: Any, base: Any, barrier: Any) -> None:
        if thread == 0:
            warpgroup.expect_bytes(barrier, uint32(64))
            warpgroup.copy_bulk(base, uint64(GLOBAL), uint32(64), barrier)
            if waits:
                warpgroup.wait_phase(barrier, uint32(0))
            ptx.shared_u32x4(base)

    assert is_race(body) is not waits


@pytest.mark.parametrize("pending", [0, 1])
def test_a_copy_of_a_thread_writes_until_it_has_waited(pending: int) -> None:
    def body(thread: Any, base: Any, barrier: Any) -> None:
        if thread == 0:
            ptx.copy_async_16_if(base, uint64(GLOBAL), uint32(1))
            ptx.close_copies()
            (ptx.wait_copies_1 if pending else ptx.wait_copies_0)()
            ptx.shared_u32x4(base)

    assert is_race(body) is bool(pending)


@pytest.mark.parametrize("fences", [True, False])
def test_products_see_ordinary_stores_behind_a_fence(fences: bool) -> None:
    product = multiply_registers(32, 4, is_added=True)

    def body(thread: Any, base: Any, barrier: Any) -> None:
        if thread == 0:
            ptx.put_shared_u32(base, uint32(1))
            if fences:
                ptx.fence_shared_async()
        cuda.syncthreads()
        sums, left = cuda.local.array(16, float32), [uint32(0)] * 16
        product(sums, left, uint64(warpgroup.DESCRIPTOR) + uint64(base >> uint32(4)))

    assert is_race(body, 128) is not fences


@pytest.mark.parametrize("goes_on", [False, True])
def test_products_read_until_their_thread_has_waited(goes_on: bool) -> None:
    ended = multiply_registers(32, 4, is_added=True)
    product = warpgroup.multiply_registers(32) if goes_on else ended

    def body(thread: Any, base: Any, barrier: Any) -> None:
        sums, left = cuda.local.array(16, float32), [uint32(0)] * 16
        product(sums, left, uint64(warpgroup.DESCRIPTOR) + uint64(base >> uint32(4)))
        cuda.syncthreads()
        if thread == 0:
            ptx.put_shared_u32(base, uint32(1))

    assert is_race(body, 128) is goes_on


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format", "is_gate", "counts", "rows", "width", "run"),
    [
        (TensorFormat.Q4, True, [5, 70], 256, 640, 1),
        (TensorFormat.Q5, False, [5, 70], 512, 512, 2),
        (TensorFormat.Q6, False, [100, 5], 256, 512, 1),
        (TensorFormat.BF16, True, [5, 70], 256, 384, 1),
    ],
)
def test_threads_of_wide_products_of_experts_are_ordered(
    format: TensorFormat, is_gate: bool, counts: Any, rows: int, width: int, run: int
) -> None:
    entries = list(enumerate(counts))

    got, exact = multiply(ExpertWide(format, is_gate), entries, rows, width, 1, run)

    expect_close(got, exact)


@pytest.mark.slow
@pytest.mark.parametrize(("num_experts", "num_choices"), [(8, 70), (300, 700)])
def test_threads_of_the_plan_of_experts_are_ordered(num_experts: int, num_choices: int) -> None:
    choices = np.random.default_rng(4).integers(0, num_experts, num_choices).astype(np.int32)

    _, order, places = plan_of(choices, num_experts, 32)

    np.testing.assert_array_equal(order[places], np.arange(num_choices))


def test_additions_order_nothing_but_each_other() -> None:
    def body(thread: Any, base: Any, barrier: Any) -> None:
        ptx.add_shared_u32(base, uint32(1))
        if thread == 40:
            ptx.shared_u32x4(base)

    assert is_race(body)
