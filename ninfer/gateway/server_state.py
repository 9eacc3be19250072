"""The server's life cycle, and the engine it serves once that is loaded.

    STARTING -> READY -> DRAINING -> STOPPED, and FAILED from any of the first three

Knows no HTTP. Any thread may ask; the main thread of the server moves it, except that whoever first
sees that the engine has failed may say so. Source: the serving contract, section 1.2.
"""

import enum
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ninfer.errors import EngineClosed, EngineFailed, IllegalMove
from ninfer.runtime import Engine, EngineState


class ServerState(enum.Enum):
    """Availability of the server; the value is its spelling in health replies."""

    STARTING = "loading"  # listening, the engine is not there yet
    READY = "ready"
    DRAINING = "draining"  # nothing new; what is active may end
    STOPPED = "stopped"
    FAILED = "failed"  # the engine is unusable; a supervisor should restart us


class ServerMove(enum.Enum):
    """What can happen to a server."""

    LOADED = enum.auto()
    DRAIN = enum.auto()
    STOP = enum.auto()
    FAIL = enum.auto()


_NEXT: Final = {
    (ServerState.STARTING, ServerMove.LOADED): ServerState.READY,
    (ServerState.STARTING, ServerMove.DRAIN): ServerState.DRAINING,
    (ServerState.STARTING, ServerMove.FAIL): ServerState.FAILED,
    (ServerState.READY, ServerMove.DRAIN): ServerState.DRAINING,
    (ServerState.READY, ServerMove.FAIL): ServerState.FAILED,
    (ServerState.DRAINING, ServerMove.STOP): ServerState.STOPPED,
    (ServerState.DRAINING, ServerMove.FAIL): ServerState.FAILED,
}


class LoadingPhase(enum.Enum):
    """What a server that loads is at, in order; the value is its spelling in health replies."""

    WEIGHTS = "weights"  # read, and brought to the device
    KERNELS = "kernels"  # compiled if they never were, loaded, run once
    GRAMMARS = "grammars"  # the vocabulary is prepared for structured output


@dataclass(frozen=True, slots=True)
class Loading:
    """How far start-up is; ``progress`` is 0..1 of its phase."""

    phase: LoadingPhase = LoadingPhase.WEIGHTS
    progress: float = 0.0


class ServerLife:
    """State of one server, and its engine.

    Attributes:
        started: clock reading of the construction.
        loading: newest report of the start-up.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._state = ServerState.STARTING
        self._engine: Engine | None = None
        self.started = clock()
        self.loading = Loading()

    @property
    def state(self) -> ServerState:
        """Availability now; an engine that failed makes the server fail."""
        engine = self._engine
        if (
            engine is not None
            and self._state in (ServerState.READY, ServerState.DRAINING)
            and engine.status().state is EngineState.FAILED
        ):
            self._fail_once()
        return self._state

    @property
    def engine(self) -> Engine | None:
        """The engine, once it is loaded; it may have failed."""
        return self._engine

    def now(self) -> float:
        """Clock reading in seconds."""
        return self._clock()

    def note_weights(self, done: int, total: int) -> None:
        """Report bytes loaded, an engine's ``progress``; behind the last one come kernels."""
        if 0 < total <= done:
            self.loading = Loading(LoadingPhase.KERNELS)
        else:
            self.loading = Loading(LoadingPhase.WEIGHTS, _fraction(done, total))

    def note_kernels(self, done: int, total: int) -> None:
        """Report kernels compiled, an engine's ``compiling``."""
        self.loading = Loading(LoadingPhase.KERNELS, _fraction(done, total))

    def note_grammars(self) -> None:
        """Report that the engine is there, and grammars are begun."""
        self.loading = Loading(LoadingPhase.GRAMMARS)

    def note_loaded(self, engine: Engine) -> None:
        """Start serving an engine."""
        self._engine = engine
        self.move(ServerMove.LOADED)

    def move(self, move: ServerMove) -> None:
        """Follow one event.

        Raises:
            IllegalMove: the table has no such move; nothing changed.
        """
        with self._lock:
            target = _NEXT.get((self._state, move))
            if target is None:
                raise IllegalMove(f"server: {move.name} is illegal in {self._state.name}")
            self._state = target

    def loaded_engine(self) -> Engine:
        """The engine, for work that generates nothing.

        Raises:
            EngineClosed: it is still loading (``model_loading``), or gone.
            EngineFailed: it has failed.
        """
        engine = self._engine
        match self.state:
            case ServerState.STARTING:
                raise EngineClosed("the model is still loading", code="model_loading")
            case ServerState.FAILED:
                raise EngineFailed("the engine has failed")
            case ServerState.STOPPED:
                raise EngineClosed("the server is shutting down")
            case ServerState.READY | ServerState.DRAINING:
                if engine is None:
                    raise EngineClosed("the server is shutting down")
                return engine

    def open_engine(self) -> Engine:
        """The engine, for a new generation; raises what `loaded_engine` raises, also draining."""
        engine = self.loaded_engine()
        if self._state is not ServerState.READY:
            raise EngineClosed("the server is shutting down")
        return engine

    def _fail_once(self) -> None:
        with self._lock:
            if self._state in (ServerState.READY, ServerState.DRAINING):
                self._state = _NEXT[(self._state, ServerMove.FAIL)]


def _fraction(done: int, total: int) -> float:
    return done / total if total else 0.0
