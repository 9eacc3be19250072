"""Threads of simulated blocks: one at a time, the first or the last that can, none for ever."""

import pytest

from tests.support.turns import StuckError, Turns

FORWARDS, BACKWARDS = "d", "c"


@pytest.mark.parametrize(("name", "order"), [(FORWARDS, "012201"), (BACKWARDS, "210021")])
def test_one_thread_runs_until_it_must_wait_for_others(name: str, order: str) -> None:
    turns, done = Turns(3, name), list[int]()
    meeting = turns.meeting(3)

    def body(number: int) -> None:
        done.append(number)
        meeting.wait()
        done.append(number)

    turns.run(body)

    assert done == [int(number) for number in order]


def test_who_meets_a_few_gets_ahead_of_the_others() -> None:
    turns, done = Turns(4, FORWARDS), list[int]()
    pairs = [turns.meeting(2), turns.meeting(2)]

    def body(number: int) -> None:
        for _ in range(3):
            pairs[number // 2].wait()
            done.append(number // 2)

    turns.run(body)

    assert done == [0] * 6 + [1] * 6


def test_who_could_go_on_before_others_met_is_still_the_first() -> None:
    turns, done, queue = Turns(3, FORWARDS), list[int](), list[int]()
    pair = turns.meeting(2)

    def body(number: int) -> None:
        if number == 0:
            turns.wait(queue)
        else:
            if number == 2:
                turns.wake(queue)
            pair.wait()
            pair.wait()
        done.append(number)

    turns.run(body)

    assert done == [0, 1, 2]


def test_everybody_gets_what_is_made_once_of_what_all_have_brought() -> None:
    turns, made, found = Turns(4, FORWARDS), list[list[int]](), list[int]()
    meeting = turns.meeting(4)

    def total(values: list[int]) -> int:
        made.append(values)
        return sum(values)

    def body(number: int) -> None:
        found.extend(meeting.gather(number + step, total) for step in (1, 10))

    turns.run(body)

    assert made == [[1, 2, 3, 4], [10, 11, 12, 13]]
    assert sorted(found) == [10] * 4 + [46] * 4


def test_a_wait_without_an_end_is_found() -> None:
    turns = Turns(3, FORWARDS)
    meeting = turns.meeting(3)

    def body(number: int) -> None:
        if number:
            meeting.wait()

    with pytest.raises(StuckError, match="2 threads wait for ever"):
        turns.run(body)


@pytest.mark.parametrize("failing", [0, 2])
def test_a_failure_ends_those_who_wait(failing: int) -> None:
    turns, done = Turns(4, FORWARDS), list[int]()
    meeting, queue = turns.meeting(4), list[int]()

    def body(number: int) -> None:
        if number == failing:
            raise ZeroDivisionError
        if number == 1:
            turns.wait(queue)
        meeting.wait()
        done.append(number)

    with pytest.raises(ZeroDivisionError):
        turns.run(body)

    assert done == []
