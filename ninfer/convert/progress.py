"""How far a conversion is, on standard error.

On a terminal one rewritten line with bytes, rate and remaining time; elsewhere at most one plain
line in ten seconds, without escape codes. ``NO_COLOR`` and ``TERM=dumb`` count as elsewhere.
"""

import os
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

PLAIN_INTERVAL_S: Final = 10.0


class ConversionProgress(Protocol):
    """Told about every piece of output; called from one thread."""

    def start(self, total_bytes: int) -> None:
        """Output begins; it will have ``total_bytes``."""

    def advance(self, nbytes: int) -> None:
        """More bytes are in the file."""

    def close(self) -> None:
        """Nothing more will come, for whatever reason."""


class SilentProgress:
    """Says nothing."""

    def start(self, total_bytes: int) -> None:
        """Ignore the total."""

    def advance(self, nbytes: int) -> None:
        """Ignore the bytes."""

    def close(self) -> None:
        """Nothing is held."""


class PlainProgress:
    """At most one line in ten seconds; a short conversion prints none."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._total_bytes = 0
        self._done_bytes = 0
        self._started_s = self._printed_s = clock()

    def start(self, total_bytes: int) -> None:
        """Remember total and time."""
        self._total_bytes = total_bytes
        self._started_s = self._printed_s = self._clock()

    def advance(self, nbytes: int) -> None:
        """Count, and print when the last line is old enough."""
        self._done_bytes += nbytes
        now = self._clock()
        if now - self._printed_s < PLAIN_INTERVAL_S:
            return
        self._printed_s = now
        rate = self._done_bytes / (now - self._started_s)
        left_s = (self._total_bytes - self._done_bytes) / rate if rate else 0.0
        self._stream.write(
            f"converting: {_megabytes(self._done_bytes)} of {_megabytes(self._total_bytes)},"
            f" {_megabytes(rate)}/s, {left_s:.0f} s left\n"
        )
        self._stream.flush()

    def close(self) -> None:
        """Nothing is held."""


class TerminalProgress:
    """One rewritten line; owns the terminal line until closed."""

    def __init__(self, stream: TextIO, *, has_color: bool = True) -> None:
        self._bar = Progress(
            TextColumn("converting"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(file=stream, no_color=not has_color),
            transient=True,
        )
        self._task: TaskID | None = None

    def start(self, total_bytes: int) -> None:
        """Show the line."""
        self._task = self._bar.add_task("converting", total=total_bytes)
        self._bar.start()

    def advance(self, nbytes: int) -> None:
        """Move the bar."""
        if self._task is not None:
            self._bar.advance(self._task, nbytes)

    def close(self) -> None:
        """Remove the line; idempotent."""
        self._bar.stop()


def choose_progress(
    stream: TextIO,
    *,
    is_off: bool,
    has_color: bool = True,
    environment: Mapping[str, str] = os.environ,
) -> ConversionProgress:
    """Choose what fits a stream."""
    if is_off:
        return SilentProgress()
    is_plain = "NO_COLOR" in environment or environment.get("TERM") == "dumb"
    if stream.isatty() and not is_plain:
        return TerminalProgress(stream, has_color=has_color)
    return PlainProgress(stream)


def _megabytes(nbytes: float) -> str:
    return f"{nbytes / 1e6:.1f} MB"
