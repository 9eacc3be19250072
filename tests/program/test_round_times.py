"""What rounds are said to take follows from marks on the device alone."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.program.round_times import RoundClock, RoundTimes

MILLISECONDS = st.integers(0, 1000)


@dataclass(frozen=True)
class Mark:
    """A point of a stream, at a time of the device."""

    at_ms: float

    def synchronize(self) -> None:
        """It is reached."""

    def elapsed_ms(self, start: "Mark") -> float:
        """Time since an earlier point."""
        return self.at_ms - start.at_ms


def running_clock() -> RoundClock:
    clock = RoundClock()
    clock.take()
    return clock


@given(rounds=st.lists(st.tuples(MILLISECONDS, MILLISECONDS), min_size=1, max_size=20))
def test_idle_and_device_time_add_up_to_the_distance_of_the_results(
    rounds: list[tuple[int, int]],
) -> None:
    clock, now, first = running_clock(), 0.0, 0.0
    for number, (idle, device) in enumerate(rounds):
        clock.begin(1)
        clock.arrive(Mark(now + idle), Mark(now + idle + device))
        now += idle + device
        first = now if number == 0 else first

    times = clock.take()

    assert times.rounds == len(rounds) - 1
    assert times.idle_s == pytest.approx(sum(idle for idle, _ in rounds[1:]) / 1e3)
    assert times.idle_s >= 0.0
    assert times.idle_s + times.device_s == pytest.approx((now - first) / 1e3)


def test_a_round_behind_something_else_is_a_first() -> None:
    clock = running_clock()

    clock.begin(1)
    clock.arrive(Mark(0.0), Mark(5.0))
    clock.interrupt()
    clock.begin(1)
    clock.arrive(Mark(400.0), Mark(405.0))
    clock.begin(2)
    clock.arrive(Mark(406.0), Mark(412.0))

    assert clock.take() == RoundTimes(0, 2, 0.0, 0.0)


def test_rounds_of_a_batch_that_fills_or_empties_do_not_count() -> None:
    clock = running_clock()
    now = 0.0
    for num_rows, device in (
        (1, 5.0),
        (1, 5.0),
        (3, 9.0),
        (3, 10.0),
        (3, 12.0),
        (2, 7.0),
        (2, 7.0),
    ):
        clock.begin(num_rows)
        clock.arrive(Mark(now + 1.0), Mark(now + 1.0 + device))
        now += 1.0 + device

    times = clock.take()

    assert (times.rounds, times.num_rows) == (2, 3)
    assert times.mean_device_s == pytest.approx(11e-3)
    assert clock.take() == RoundTimes(0, 0, 0.0, 0.0)
