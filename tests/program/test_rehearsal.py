"""What a start rehearses is all that generating and scoring run later."""

from collections.abc import Callable
from typing import Any

import pytest

from ninfer.config import Purpose
from ninfer.host.ahead import CompiledKernel
from ninfer.host.device import HostStream
from ninfer.host.graph import Operation, _kernel_call
from ninfer.program.rehearsal import chunk_lengths
from ninfer.program.scoring_window import HEAD_ROWS
from tests.support.running_program import WatchedDevice, running_program

CASES = ("tiny-dense", "tiny-moe")


class NotingStream(HostStream):
    """Notes kernels, with the types of their arguments, that are rehearsed and those that run."""

    def __init__(self, stream: HostStream) -> None:
        super().__init__(stream._pool)
        self.rehearsed: set[Any] = set()
        self.ran: set[Any] = set()
        self._is_rehearsing = False

    def enqueue(self, function: Callable[..., object], *args: Any) -> None:
        call: Any = _kernel_call(Operation(function, args))
        kernel, given = call
        if isinstance(kernel, CompiledKernel):
            noted = self.rehearsed if self._is_rehearsing else self.ran
            noted.add((kernel.py_func, *map(kernel.typeof_pyval, given)))
        super().enqueue(function, *args)

    def rehearse(self, sequence: Callable[[], None], ahead: Any = None) -> None:
        self._is_rehearsing = True
        super().rehearse(sequence, ahead)
        self._is_rehearsing = False
        self.ran.clear()  # what loads weights is no unit's


class NotingDevice(WatchedDevice):
    """Has such streams."""

    def stream(self) -> HostStream:
        self.made.append(NotingStream(super().stream()))
        return self.made[-1]


@pytest.mark.parametrize("case", CASES)
def test_a_generation_runs_only_what_was_rehearsed(case: str) -> None:
    with running_program(case, open_device=NotingDevice, use_graphs=False) as driver:
        lane = driver.admit(range(1, 20))
        driver.round(lane)
        driver.round(lane)
        stream: Any = driver.streams[-1]

    assert len(stream.ran) > 5
    assert stream.ran <= stream.rehearsed


@pytest.mark.parametrize("case", CASES)
def test_a_score_runs_only_what_was_rehearsed(case: str) -> None:
    with running_program(
        case, open_device=NotingDevice, max_context=200, purpose=Purpose.CAUSAL_SCORING
    ) as driver:
        driver.program.score_window([*range(1, 2 * HEAD_ROWS)])
        driver.program.score_window([1])
        stream: Any = driver.streams[-1]

    assert len(stream.ran) > 5
    assert stream.ran <= stream.rehearsed


@pytest.mark.parametrize(
    ("most", "wanted"),
    [(1, (1,)), (7, (1, 2, 3, 4, 5, 6, 7)), (100, (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 100))],
)
def test_lengths_are_those_of_a_few_columns_steps_and_the_longest(
    most: int, wanted: tuple[int, ...]
) -> None:
    assert chunk_lengths(most) == wanted
