"""What the signals that end a process become inside it: exceptions, raised where it is safe.

A handler that raises may hit any bytecode of the main thread. In the middle of one of the standard
library's locks it would leave the lock held or not held against all expectation, and whoever needs
it next, a worker that is being closed for example, would wait for ever. So the handler looks where
it is and tries again a moment later. An exception that replaces the one of the signal on its way
out still counts as the signal. Imports nothing of the program, so that any moment can raise.
"""

import importlib  # noqa: F401 - gives the modules that import the names looked for below
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import FrameType, TracebackType
from typing import Final, TypeVar

RETRY_S: Final = 0.01
"""Seconds between two looks at where the main thread is."""
MAX_DELAYS: Final = 100
"""Looks after which the exception is raised wherever the main thread is: it may wait for ever."""

_LOCK_MODULES: Final = frozenset(
    {
        "concurrent.futures._base",
        "concurrent.futures.thread",
        "contextlib",
        "importlib._bootstrap",
        "logging",
        "queue",
        "threading",
        "weakref",
    }
)
_Result = TypeVar("_Result")


class Terminated(BaseException):
    """SIGTERM arrived."""


class HungUp(BaseException):
    """SIGHUP arrived: the terminal is gone, or the connection to it."""


_RAISED: Final[Mapping[signal.Signals, type[BaseException]]] = {
    signal.SIGINT: KeyboardInterrupt,
    signal.SIGTERM: Terminated,
    signal.SIGHUP: HungUp,
}


class SignalRaiser:
    """Raises an exception for each signal it receives, as soon as that breaks nothing.

    A process has at most one that receives; SIGALRM belongs to it.

    Args:
        raised: the exception of each signal.
    """

    def __init__(self, raised: Mapping[signal.Signals, type[BaseException]]) -> None:
        self._raised = raised
        self._pending: signal.Signals | None = None
        self._num_delays = 0

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Signal handler: raise the signal's exception, now or a moment later."""
        if self._pending in (None, signal.SIGINT):
            self._pending = signal.Signals(number)
        self._num_delays = 0
        self._raise_or_delay(frame)

    def raise_later(self, number: signal.Signals) -> None:
        """Raise the signal's exception in a moment, because what was raised got lost."""
        self._pending = number
        self._num_delays = 0
        self._delay()

    def forget(self) -> None:
        """Raise nothing any more for signals that were received."""
        self._pending = None
        signal.setitimer(signal.ITIMER_REAL, 0.0)

    def _retry(self, number: int, frame: FrameType | None) -> None:
        if self._pending is not None:
            self._raise_or_delay(frame)

    def _raise_or_delay(self, frame: FrameType | None) -> None:
        if self._pending is None:
            return
        if self._num_delays < MAX_DELAYS and _breaks_something(frame):
            self._num_delays += 1
            self._delay()
            return
        raised = self._raised[self._pending]
        self._pending = None
        raise raised

    def _delay(self) -> None:
        signal.signal(signal.SIGALRM, self._retry)
        signal.setitimer(signal.ITIMER_REAL, RETRY_S)


class EndingSignals(AbstractContextManager["EndingSignals", None]):
    """Lets SIGINT, SIGTERM and SIGHUP end a whole process in order while the block runs.

    They become `KeyboardInterrupt`, `Terminated` and `HungUp`. After one of the latter two both are
    ignored: a second one must not break the closing off. After the block the process only has to
    leave, and a signal ends it at once.
    """

    def __init__(self) -> None:
        self._raiser = SignalRaiser(_RAISED)

    def __enter__(self) -> "EndingSignals":
        """Take the signals over; what ``nohup`` or a shell's background ignores stays ignored."""
        signal.signal(signal.SIGTERM, self._end)
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
            signal.signal(signal.SIGHUP, self._end)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._raiser.receive)
        sys.unraisablehook = self._raise_again
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the signals back to the system."""
        self._raiser.forget()
        sys.unraisablehook = sys.__unraisablehook__
        for number in _RAISED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)

    def _end(self, number: int, frame: FrameType | None) -> None:
        for ignored in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)
        self._raiser.receive(number, frame)

    def _raise_again(self, unraisable: "sys.UnraisableHookArgs") -> None:
        """Raise once more what was raised inside a finaliser, where Python drops it."""
        error = unraisable.exc_value
        number = None if error is None else ending_signal(error, since=sys.exception())
        if number is None:
            sys.__unraisablehook__(unraisable)
        else:
            self._raiser.raise_later(number)


def ending_signal(
    error: BaseException, since: BaseException | None = None
) -> signal.Signals | None:
    """Return the signal that an exception stands for, be it that it replaced the signal's own.

    Args:
        error: the exception.
        since: what was being handled already before, and says nothing about the error.
    """
    seen: set[int] = set() if since is None else {id(since)}
    present: BaseException | None = error
    while present is not None and id(present) not in seen:
        for number, kind in _RAISED.items():
            if isinstance(present, kind):
                return number
        seen.add(id(present))
        present = present.__context__
    return None


def exit_code_of_signal(number: signal.Signals) -> int:
    """Return what a process ends with that a signal has ended, as shells count."""
    return 128 + number


def uninterrupted(call: Callable[[], _Result]) -> _Result:
    """Call something short that a signal's exception must not tear apart."""
    return call()


def finish(wait: Callable[[], _Result]) -> _Result:
    """Wait to the end although signals interrupt it, then raise what the last of them became.

    For waits after which memory goes that another thread still uses.

    Args:
        wait: waits for something that ends by itself; called again after an interruption.
    """
    interruption: BaseException | None = None
    before = sys.exception()
    while True:
        try:
            result = wait()
        except BaseException as error:
            if ending_signal(error, since=before) is None:
                raise
            interruption = error
        else:
            if interruption is not None:
                raise interruption
            return result


def _breaks_something(frame: FrameType | None) -> bool:
    """Tell whether an exception out of this frame would leave something broken.

    A lock, steps that belong together, or an import: extension modules replace an exception by one
    of their own that knows nothing of it.
    """
    while frame is not None and frame.f_globals is globals() and frame.f_code not in _MARKED:
        frame = frame.f_back  # a handler, which a second signal has interrupted
    if frame is None:
        return False
    if frame.f_code is finish.__code__:  # about to wait
        return True
    if frame.f_globals.get("__name__") in _LOCK_MODULES and not _is_waiting(frame):
        return True
    outer: FrameType | None = frame
    while outer is not None:
        if outer.f_code is uninterrupted.__code__ or _is_import(outer):
            return True
        outer = outer.f_back
    return False


_MARKED: Final = (uninterrupted.__code__, finish.__code__)


def _is_import(frame: FrameType) -> bool:
    return (
        frame.f_code.co_name == "_find_and_load"
        and frame.f_globals.get("__name__") == "importlib._bootstrap"
    )


def _is_waiting(frame: FrameType) -> bool:
    """Tell whether this is a wait that repairs its lock: the name appears before its ``try``."""
    return frame.f_code is threading.Condition.wait.__code__ and "gotit" in frame.f_locals
