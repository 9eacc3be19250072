"""An engine on the scripted program, driven boundary by boundary under a manual clock."""

from ninfer.engine.engine_core import Boundary, EngineCore
from ninfer.engine.resource_planner import Planner
from ninfer.engine.response_channel import GenerationHandle
from ninfer.errors import NinferError
from ninfer.generation import GenerationEvent, GenerationRequest, GenerationResult
from tests.support.scripted_program import ScriptedProgram

MOST_BOUNDARIES = 2000


class ManualClock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class EngineHarness:
    """An open engine and everything around it."""

    def __init__(
        self,
        program: ScriptedProgram,
        *,
        max_pending: int = 8,
        planner: Planner | None = None,
        num_checkpoint_slots: int = 0,
    ) -> None:
        self.clock = ManualClock()
        self.program = program
        self.core = EngineCore(
            program,
            max_pending=max_pending,
            planner=planner,
            num_checkpoint_slots=num_checkpoint_slots,
            clock=self.clock,
        )
        self._kept: list[GenerationHandle] = []
        self.core.open()

    def submit(self, request: GenerationRequest) -> GenerationHandle:
        handle = self.core.submit(request)
        self._kept.append(handle)  # A handle that nobody keeps cancels its request.
        return handle

    def step(self, count: int = 1) -> Boundary:
        """Run boundaries."""
        boundary = Boundary.BUSY
        for _ in range(count):
            boundary = self.core.run_boundary()
        return boundary

    def step_until_idle(self) -> Boundary:
        """Run boundaries until nothing is left to do."""
        for _ in range(MOST_BOUNDARIES):
            boundary = self.core.run_boundary()
            if boundary is not Boundary.BUSY:
                return boundary
        raise AssertionError(f"not idle after {MOST_BOUNDARIES} boundaries")

    def check_resources_idle(self) -> None:
        """Nothing is owned, reserved, running or remembered for a request that has ended."""
        resources = self.core._resources
        assert resources.num_free_lanes == self.program.capacity.max_concurrency
        assert resources._catalog.num_reserved == 0
        assert not resources._reservations
        assert not resources.has_transition
        assert self.core._scheduler.protected is None
        assert not self.core._scheduler._tried

    def states(self) -> dict[str, int]:
        """Active requests by state, as published."""
        return dict(self.core.status().active_by_state)


def read_available(handle: GenerationHandle) -> tuple[list[GenerationEvent], NinferError | None]:
    """Everything that can be read now without waiting."""
    events: list[GenerationEvent] = []
    while True:
        try:
            event = handle.next_event(0.0)
        except NinferError as error:
            return events, error
        if event is not None:
            events.append(event)
        if event is None or isinstance(event, GenerationResult):
            return events, None
