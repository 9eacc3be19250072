import argparse
import io

import pytest

from ninfer.cli.console import Console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class ManualClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def options(**changes: bool) -> argparse.Namespace:
    return argparse.Namespace(
        **{"color": False, "no_color": False, "no_progress": False, "debug": False} | changes
    )


def test_progress_away_from_a_terminal_is_one_plain_line_in_ten_seconds() -> None:
    stream, clock = io.StringIO(), ManualClock()
    console = Console(options(), stream=stream, environment={}, clock=clock)

    for second in range(25):
        clock.now = float(second)
        console.progress("loading", second * 10**6, 10**8)

    lines = stream.getvalue().splitlines()
    assert lines == [
        "loading: 10.0 MB of 100.0 MB (10%), 1.0 MB/s, 90 s left",
        "loading: 20.0 MB of 100.0 MB (20%), 1.0 MB/s, 80 s left",
    ]


def test_progress_on_a_terminal_rewrites_its_line() -> None:
    stream, clock = Terminal(), ManualClock()
    console = Console(options(), stream=stream, environment={}, clock=clock)

    for second in range(3):
        clock.now = float(second)
        console.progress("loading", second, 2, unit="tokens")
    console.close()

    assert "\n" not in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[K")


def test_a_slow_count_shows_tenths() -> None:
    stream, clock = Terminal(), ManualClock()
    console = Console(options(), stream=stream, environment={}, clock=clock)
    console.progress("compiling", 0, 126, "kernels")
    clock.now = 10.0

    console.progress("compiling", 4, 126, "kernels")

    line = "compiling: 4 of 126 kernels (3%), 0.4 kernels/s, 305 s left"
    assert stream.getvalue() == "\r\x1b[K" + line


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_environment_turns_escapes_off_on_a_terminal(environment: dict[str, str]) -> None:
    stream = Terminal()
    console = Console(options(), stream=stream, environment=environment)

    console.thinking("hm")
    console.close()

    assert stream.getvalue() == "hm\n"


def test_what_follows_thinking_starts_on_a_line_of_its_own() -> None:
    stream = io.StringIO()
    console = Console(options(), stream=stream, environment={})

    console.thinking("first")
    console.thinking(" second")
    console.yield_to_output()
    console.note("after the answer")
    console.thinking("third\n")
    console.note("the end")

    assert stream.getvalue() == "first second\nafter the answer\nthird\nthe end\n"


def test_color_option_wins_over_the_environment() -> None:
    stream = io.StringIO()
    console = Console(options(color=True), stream=stream, environment={"NO_COLOR": "1"})

    console.thinking("hm")

    assert stream.getvalue() == "\x1b[2mhm\x1b[0m"


def test_no_progress_option_silences_progress_only() -> None:
    stream, clock = io.StringIO(), ManualClock()
    console = Console(options(no_progress=True), stream=stream, environment={}, clock=clock)

    for second in range(0, 100, 20):
        clock.now = float(second)
        console.progress("loading", second, 100)
    console.note("done")

    assert stream.getvalue() == "done\n"


def test_output_between_two_stages_of_one_name_restarts_the_clock() -> None:
    stream, clock = Terminal(), ManualClock()
    console = Console(options(), stream=stream, environment={}, clock=clock)
    console.progress("prefill", 0, 10, "tokens")
    clock.now = 100.0

    console.yield_to_output()
    console.progress("prefill", 0, 10, "tokens")
    clock.now = 101.0
    console.progress("prefill", 5, 10, "tokens")

    assert stream.getvalue() == "\r\x1b[Kprefill: 5 of 10 tokens (50%), 5.0 tokens/s, 1 s left"
