"""What a conversion says while it runs."""

import io

import pytest

from ninfer.convert.progress import (
    PlainProgress,
    SilentProgress,
    TerminalProgress,
    choose_progress,
)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class _Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_short_conversion_prints_nothing() -> None:
    stream, clock = io.StringIO(), _Clock()
    progress = PlainProgress(stream, clock)

    progress.start(1000)
    clock.now_s += 9.9
    progress.advance(500)
    progress.close()

    assert stream.getvalue() == ""


def test_plain_lines_are_ten_seconds_apart_with_bytes_rate_and_rest() -> None:
    stream, clock = io.StringIO(), _Clock()
    progress = PlainProgress(stream, clock)

    progress.start(60_000_000)
    for _ in range(24):
        clock.now_s += 1.0
        progress.advance(1_000_000)

    assert stream.getvalue() == (
        "converting: 10.0 MB of 60.0 MB, 1.0 MB/s, 50 s left\n"
        "converting: 20.0 MB of 60.0 MB, 1.0 MB/s, 40 s left\n"
    )


def test_terminal_line_is_removed_at_the_end() -> None:
    stream = _Terminal()
    progress = TerminalProgress(stream)

    progress.start(100)
    progress.advance(100)
    progress.close()
    progress.close()

    assert "converting" in stream.getvalue()
    assert "\x1b[2K" in stream.getvalue()


@pytest.mark.parametrize(
    ("stream", "environment", "is_off", "kind"),
    [
        (_Terminal(), {}, False, TerminalProgress),
        (_Terminal(), {"NO_COLOR": ""}, False, PlainProgress),
        (_Terminal(), {"TERM": "dumb"}, False, PlainProgress),
        (_Terminal(), {}, True, SilentProgress),
        (io.StringIO(), {}, False, PlainProgress),
    ],
)
def test_kind_of_progress_fits_the_stream(
    stream: io.StringIO, environment: dict[str, str], is_off: bool, kind: type
) -> None:
    assert type(choose_progress(stream, is_off=is_off, environment=environment)) is kind
