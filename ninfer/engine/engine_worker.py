"""The thread that runs boundaries: works while there is work, sleeps while there is none.

It adds nothing to the rules of `EngineCore`. Its owner closes it before it closes Program.
"""

import threading
from types import TracebackType
from typing import Self

from ninfer.engine.engine_core import Boundary, EngineCore
from ninfer.termination import finish, uninterrupted


class EngineWorker:
    """Owner of an engine's one worker thread.

    Attributes:
        core: the engine it drives; submit to it and read its status from any thread.
    """

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self._thread = threading.Thread(target=self._work, name="ninfer-engine", daemon=True)
        self._is_started = False
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Open the engine and start its thread."""
        self.core.open()
        self._is_started = True
        try:
            uninterrupted(self._thread.start)
        except RuntimeError:  # The system has no thread left.
            self._is_started = False
            raise

    def close(self, grace_s: float = 0.0) -> None:
        """Drain, cancel what is left after the grace, and wait for the thread. Idempotent."""
        self.core.drain(grace_s)
        if self._is_started:
            # Its owner closes Program next, whose memory the thread uses: no signal may shorten
            # this. A join that is interrupted would count the thread as ended.
            finish(self._wait_ended)
            self._thread.join()
        else:
            self._work()

    def _wait_ended(self) -> None:
        while self._thread.is_alive():  # In a forked process it is not.
            if self._ended.wait(1.0):
                return

    def _work(self) -> None:
        try:
            self._run_boundaries()
        finally:
            self._ended.set()

    def _run_boundaries(self) -> None:
        while True:
            match self.core.run_boundary():
                case Boundary.BUSY:
                    pass
                case Boundary.IDLE:
                    self.core.wait()
                case Boundary.OVER:
                    return
