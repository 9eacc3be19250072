import signal
import threading
import time
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.errors import InvariantError
from ninfer.host.bands import BandPool, split_bands
from ninfer.termination import Terminated


@given(num_rows=st.integers(0, 200), num_bands=st.integers(1, 17))
@settings(max_examples=100, deadline=None)
def test_bands_cover_every_row_once_and_nearly_equally(num_rows: int, num_bands: int) -> None:
    bands = split_bands(num_rows, num_bands)

    sizes = [stop - first for first, stop in bands]
    assert [row for first, stop in bands for row in range(first, stop)] == list(range(num_rows))
    assert len(bands) == min(num_rows, num_bands)
    assert not sizes or max(sizes) - min(sizes) <= 1


@given(num_threads=st.integers(1, 4), num_rows=st.integers(0, 50), min_rows=st.integers(0, 60))
@settings(max_examples=60, deadline=None)
def test_pool_computes_each_row_once_in_bands_worth_a_thread(
    num_threads: int, num_rows: int, min_rows: int
) -> None:
    bands: list[tuple[int, int, str]] = []
    pool = BandPool(num_threads)

    pool.run(lambda a, b, tag: bands.append((a, b, tag)), num_rows, min_rows, ("x",))
    pool.close()

    rows = sorted(row for first, stop, _ in bands for row in range(first, stop))
    assert rows == list(range(num_rows))
    assert len(bands) <= num_threads
    assert all(stop - first >= min(min_rows, num_rows) for first, stop, _ in bands)
    assert {tag for _, _, tag in bands} <= {"x"}


def test_bands_run_at_the_same_time() -> None:
    barrier = threading.Barrier(3, timeout=60)
    pool = BandPool(3)

    pool.run(lambda first, stop: barrier.wait(), 3, 1, ())

    pool.close()
    assert not barrier.broken


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_failure_of_any_band_is_raised_after_all_have_finished(failing: int) -> None:
    finished: list[int] = []
    pool = BandPool(3)

    def kernel(first: int, stop: int) -> None:
        if first == failing:
            raise ZeroDivisionError
        finished.append(first)

    with pytest.raises(ZeroDivisionError):
        pool.run(kernel, 3, 1, ())

    pool.close()
    assert sorted(finished) == sorted({0, 1, 2} - {failing})


def test_closed_pool_runs_nothing() -> None:
    pool = BandPool(2)
    pool.close()
    pool.close()

    with pytest.raises(InvariantError):
        pool.run(lambda first, stop: None, 2, 1, ())


def test_interrupted_call_still_waits_for_every_band() -> None:
    done: list[int] = []
    is_interrupted = threading.Event()
    pool = BandPool(2)

    def kernel(first: int, stop: int) -> None:
        if first:
            assert is_interrupted.wait(60)
            time.sleep(0.1)
            done.append(first)
        else:
            signal.setitimer(signal.ITIMER_REAL, 0.05)

    def interrupt(number: int, frame: FrameType | None) -> None:
        is_interrupted.set()
        raise Terminated

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(Terminated):
            pool.run(kernel, 2, 1, ())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)

    assert done == [1]
    pool.close()
