"""Signals become exceptions, but never in the middle of a lock."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from ninfer import termination
from ninfer.cli.exit_codes import ExitCode, exit_code_of
from ninfer.errors import ConfigurationError
from ninfer.termination import (
    HungUp,
    SignalRaiser,
    Terminated,
    ending_signal,
    finish,
    uninterrupted,
)

ROOT = Path(__file__).resolve().parent.parent
DOORS = {
    "ninfer": "from ninfer.cli import main as cli\nfrom ninfer.cli.entry import entry\n"
    "cli.main = run\n",
    "tools.convert": "from tools.convert import __main__ as door\nfrom tools.convert.__main__ "
    "import entry\ndoor.main = run\n",
}


def broken_wait(raised: type[BaseException]) -> None:
    """Raise like a condition whose wait was torn apart: the lock's complaint, not the signal's."""
    try:
        raise raised
    finally:
        raise RuntimeError("cannot release un-acquired lock")


def caught(call: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as info:  # noqa: PT011 - any is looked at
        call()
    return info.value


@pytest.mark.parametrize(
    ("raised", "number", "code"),
    [
        (KeyboardInterrupt, signal.SIGINT, ExitCode.INTERRUPTED),
        (Terminated, signal.SIGTERM, ExitCode.TERMINATED),
        (HungUp, signal.SIGHUP, ExitCode.HUNG_UP),
    ],
)
def test_what_replaces_a_signals_exception_counts_as_the_signal(
    raised: type[BaseException], number: signal.Signals, code: ExitCode
) -> None:
    for error in (raised(), caught(lambda: broken_wait(raised))):
        assert ending_signal(error) is number
        assert exit_code_of(error) is code


def test_other_exceptions_stand_for_no_signal() -> None:
    circle = ValueError("first")
    circle.__context__ = RuntimeError("second")
    circle.__context__.__context__ = circle

    assert ending_signal(circle) is None
    assert exit_code_of(circle) is None
    assert exit_code_of(ConfigurationError("no", field="x")) is ExitCode.USAGE


def _hear_signals() -> None:
    """Hear what a shell's background or ``nohup`` would ignore."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def leave(door: str, body: str) -> subprocess.CompletedProcess[str]:
    """Run ``run(arguments)`` of a program behind one of the doors."""
    program = f"import os, signal, sys, threading, time\n{body}\n{DOORS[door]}\nentry()\n"
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
        check=False,
        preexec_fn=_hear_signals,
    )


# The signal is sent by code that passes for the library's own, as the handler would find it there.
_TORN_LOCK = """
from concurrent.futures import ThreadPoolExecutor

names = dict(vars(threading), signal=signal, where=where, number=number)
exec('''
class TornCondition(Condition):
    def __init__(self):
        super().__init__()
        self.is_armed = True
        release = self._release_save

        def release_save():
            state = release()
            self.send("release")
            return state

        self._release_save = release_save

    def __enter__(self):
        entered = super().__enter__()
        self.send("enter")
        return entered

    def send(self, place):
        if place == where and self.is_armed and current_thread() is main_thread():
            self.is_armed = False
            signal.raise_signal(number)
''', names)

def run(arguments):
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(time.sleep, 0.3)
        future._condition = names["TornCondition"]()
        future.result()
        time.sleep(20)
    return 0
"""


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("where", ["release", "enter"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_in_the_middle_of_a_lock_ends_the_process_in_order(
    door: str, where: str, number: signal.Signals, code: int
) -> None:
    done = leave(door, f"where, number = {where!r}, {int(number)}\n{_TORN_LOCK}")

    assert (done.returncode, done.stderr) == (code, "")


_REPLACED = """
from ninfer.termination import HungUp, Terminated

def run(arguments):
    try:
        raise {raised}
    finally:
        raise RuntimeError("cannot release un-acquired lock")
"""


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("raised", "code"), [("KeyboardInterrupt", 130), ("Terminated", 143), ("HungUp", 129)]
)
def test_both_doors_know_a_replaced_exception(door: str, raised: str, code: int) -> None:
    done = leave(door, _REPLACED.format(raised=raised))

    assert (done.returncode, done.stderr) == (code, "")


_BLOCKED = """
from ninfer import termination
termination.MAX_DELAYS = 10**9

def run(arguments):
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    {wait}
    return 0
"""


@pytest.mark.parametrize(
    "wait",
    [
        "threading.Event().wait()",
        "threading.Event().wait(50)",
        "__import__('queue').Queue().get()",
        "__import__('concurrent.futures').futures.Future().result()",
    ],
)
def test_signal_ends_a_wait_that_would_last_for_ever(wait: str) -> None:
    done = leave("ninfer", _BLOCKED.format(wait=wait))

    assert (done.returncode, done.stderr) == (143, "")


def test_signal_ends_even_a_thread_that_stays_in_a_lock() -> None:
    body = """
def run(arguments):
    endless = threading.Thread(target=time.sleep, args=(50,), daemon=True)
    endless.start()
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    endless.join()
"""
    done = leave("ninfer", body)

    assert (done.returncode, done.stderr) == (143, "")


@pytest.mark.parametrize("number", ["SIGINT", "SIGHUP"])
def test_ignored_signal_stays_ignored(number: str) -> None:
    body = f"""
signal.signal(signal.{number}, signal.SIG_IGN)
def run(arguments):
    signal.raise_signal(signal.{number})
    time.sleep(0.1)
    return 0
"""
    assert leave("ninfer", body).returncode == 0


@pytest.mark.parametrize(
    ("first", "second", "code"), [("SIGHUP", "SIGTERM", 129), ("SIGTERM", "SIGHUP", 143)]
)
def test_second_signal_does_not_break_the_closing_off(first: str, second: str, code: int) -> None:
    body = f"""
def run(arguments):
    try:
        signal.raise_signal(signal.{first})
        time.sleep(20)
    finally:
        signal.raise_signal(signal.{second})
        time.sleep(0.1)
        print("closed")
"""
    done = leave("ninfer", body)

    assert (done.returncode, done.stdout, done.stderr) == (code, "closed\n", "")


@pytest.fixture
def raiser() -> Iterator[SignalRaiser]:
    """One that turns a signal nobody else uses into an exception."""
    made = SignalRaiser({signal.SIGUSR1: Terminated})
    before = {
        number: signal.signal(number, made.receive if number == signal.SIGUSR1 else signal.SIG_IGN)
        for number in (signal.SIGUSR1, signal.SIGALRM)
    }
    yield made
    made.forget()
    for number, handler in before.items():
        signal.signal(number, handler)


def test_steps_that_belong_together_are_not_torn_apart(raiser: SignalRaiser) -> None:
    done: list[str] = []

    def steps() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(2 * termination.RETRY_S)
        done.append("all")

    def wait() -> None:
        uninterrupted(steps)
        time.sleep(20)

    assert isinstance(caught(wait), Terminated)
    assert done == ["all"]


def test_steps_that_last_too_long_are(
    raiser: SignalRaiser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(termination, "MAX_DELAYS", 3)
    lock = threading.Lock()
    lock.acquire()

    def steps() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        lock.acquire(timeout=20)

    assert isinstance(caught(lambda: uninterrupted(steps)), Terminated)


def test_forgotten_signal_is_raised_nowhere(raiser: SignalRaiser) -> None:
    uninterrupted(lambda: os.kill(os.getpid(), signal.SIGUSR1))
    raiser.forget()

    time.sleep(3 * termination.RETRY_S)


def test_lost_exception_is_raised_later(raiser: SignalRaiser) -> None:
    raiser.raise_later(signal.SIGUSR1)

    assert isinstance(caught(lambda: time.sleep(20)), Terminated)


def test_wait_that_must_be_finished_goes_on_after_interruptions() -> None:
    calls: list[type[BaseException]] = [KeyboardInterrupt, Terminated]

    def wait() -> None:
        if calls:
            raise calls.pop(0)

    assert isinstance(caught(lambda: finish(wait)), Terminated)
    assert calls == []
    assert finish(lambda: 7) == 7
    assert isinstance(caught(lambda: finish(lambda: [].pop())), IndexError)


def test_error_of_a_wait_beside_an_interruption_is_its_own() -> None:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert isinstance(caught(lambda: finish(lambda: [].pop())), IndexError)


def test_signal_that_arrives_before_a_wait_that_must_be_finished_waits() -> None:
    def frame_of_finish() -> FrameType:
        frame = sys._getframe()
        while frame.f_code is not finish.__code__:
            assert frame.f_back is not None
            frame = frame.f_back
        return frame

    assert termination._breaks_something(finish(frame_of_finish))
    assert not termination._breaks_something(sys._getframe())


def test_import_is_recognised_in_a_process_that_has_not_named_its_modules() -> None:
    name = "print(sys.modules['_frozen_importlib'].__name__)"
    code = f"import sys\n{name}\nimport ninfer.termination\n{name}"

    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )

    assert done.stdout.split() == ["_frozen_importlib", "importlib._bootstrap"]


def test_signal_during_an_import_waits_for_its_end(tmp_path: Path) -> None:
    (tmp_path / "slow_module.py").write_text(
        "import signal, time\n"
        "signal.raise_signal(signal.SIGTERM)\n"
        "time.sleep(0.05)\n"
        "print('imported')\n"
    )
    body = f"""
sys.path.append({str(tmp_path)!r})
def run(arguments):
    import slow_module
    time.sleep(20)
"""
    done = leave("ninfer", body)

    assert (done.returncode, done.stdout, done.stderr) == (143, "imported\n", "")


@pytest.mark.parametrize("door", ["ninfer.cli.entry", "tools.convert.__main__"])
def test_door_loads_nothing_before_it_hears_signals(door: str) -> None:
    program = f"import sys, {door}; print(*(name for name in sys.modules if 'ninfer' in name))"

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True
    )

    loaded = {name for name in done.stdout.split() if not name.startswith("__editable__")}
    assert loaded <= {
        *("ninfer", "ninfer.cli", "ninfer.cli.collection", "ninfer.cli.entry"),
        *("ninfer.termination", "ninfer.version"),
    }
