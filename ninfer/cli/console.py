"""Standard error: progress, colour policy, thinking and statistics.

Standard output carries the product only and is written by the commands themselves. Colour and
rewritten lines appear only on a terminal; ``NO_COLOR`` and ``TERM=dumb`` win over that, ``--color``
and ``--no-color`` over all. Away from a terminal progress is at most one plain line in ten seconds.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TextIO

PLAIN_INTERVAL_S = 10.0
TERMINAL_INTERVAL_S = 0.1
_SLOW = 10  # units a second, below which a tenth matters
_DIM, _RESET, _CLEAR_LINE = "\x1b[2m", "\x1b[0m", "\r\x1b[K"


class Console:
    """One writer of standard error for one command.

    Args:
        options: namespace with the options of ``add_console_options``.
        stream: where to write; standard error by default.
        environment: variables to respect.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        *,
        stream: TextIO | None = None,
        environment: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        is_dumb = "NO_COLOR" in environment or environment.get("TERM") == "dumb"
        is_terminal = self._stream.isatty() and not is_dumb
        self._has_colour = bool(options.color) or (is_terminal and not options.no_color)
        self._rewrites = is_terminal
        self._has_progress = not options.no_progress
        self._has_line = False
        self._is_inside_line = False
        self._is_lost = False
        self._last_progress_s: float | None = None
        self._stage = ""

    def note(self, text: str) -> None:
        """Write one line."""
        self._end_line()
        self._write(text + "\n")
        self._flush()

    def warn(self, text: str) -> None:
        """Write one line that says what went wrong without ending anything."""
        self.note(f"warning: {text}")

    def thinking(self, text: str) -> None:
        """Write a piece of thinking text as it comes; what follows starts on a line of its own."""
        self._end_progress()
        self._write(f"{_DIM}{text}{_RESET}" if self._has_colour else text)
        self._is_inside_line = not text.endswith("\n") if text else self._is_inside_line
        self._flush()

    def progress(self, stage: str, done: int, total: int, unit: str = "B") -> None:
        """Show how far a stage is; ``total`` 0 means unknown.

        The first report of a stage waits for its interval, so that short stages print nothing.
        """
        now = self._clock()
        if not self._has_progress:
            return
        if stage != self._stage or self._last_progress_s is None:
            self._stage, self._start_s, self._last_progress_s = stage, now, now
            return
        interval = TERMINAL_INTERVAL_S if self._rewrites else PLAIN_INTERVAL_S
        if now - self._last_progress_s < interval:
            return
        self._last_progress_s = now
        self._end_thought()
        line = _progress_line(stage, done, total, unit, now - self._start_s)
        if self._rewrites:
            self._write(_CLEAR_LINE + line)
            self._has_line = True
        else:
            self._write(line + "\n")
        self._flush()

    def loading(self, done: int, total: int) -> None:
        """Show how many bytes of a model are loaded."""
        self.progress("loading", done, total)

    def compiling(self, done: int, total: int) -> None:
        """Show how many kernels are compiled."""
        self.progress("compiling", done, total, unit="kernels")

    def yield_to_output(self) -> None:
        """Clear a progress line, because something is written to standard output next."""
        self._end_line()
        self._flush()

    def close(self) -> None:
        """Leave the cursor at the start of a line."""
        self.yield_to_output()

    def _write(self, text: str) -> None:
        """Write, unless nobody can read it: a closed or full log must not cost the answer."""
        if not self._is_lost:
            try:
                self._stream.write(text)
            except (OSError, ValueError):
                self._is_lost = True

    def _flush(self) -> None:
        if not self._is_lost:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._is_lost = True

    def _end_line(self) -> None:
        """Bring the cursor to the start of a line."""
        self._end_progress()
        self._end_thought()

    def _end_thought(self) -> None:
        """Let what follows thinking start on a line of its own."""
        if self._is_inside_line:
            self._write("\n")
            self._is_inside_line = False

    def _end_progress(self) -> None:
        """End the present stage; the next report starts a new one, with a clock of its own."""
        self._stage = ""
        if self._has_line:
            self._write(_CLEAR_LINE)
            self._has_line = False


def _progress_line(stage: str, done: int, total: int, unit: str, elapsed_s: float) -> str:
    rate = done / elapsed_s if elapsed_s > 0 else 0.0
    line = f"{stage}: {_amount(done, unit)}"
    if total and unit != "B":
        line = f"{stage}: {done}"
    if total:
        line += f" of {_amount(total, unit)} ({done / total:.0%})"
    line += f", {_amount(rate, unit, digits=1 if rate < _SLOW else 0)}/s"
    if total and rate > 0:
        line += f", {(total - done) / rate:.0f} s left"
    return line


def _amount(value: float, unit: str, digits: int = 0) -> str:
    if unit != "B":
        return f"{value:.{digits}f} {unit}"
    for prefix in ("", "k", "M"):
        if value < 1000:
            return f"{value:.0f} {prefix}B" if not prefix else f"{value:.1f} {prefix}B"
        value /= 1000
    return f"{value:.2f} GB"
