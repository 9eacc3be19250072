"""Operator text of a server: one line an event on standard error.

``YYYY-MM-DD HH:MM:SS.mmm LEVEL message``, control characters escaped, so that nothing a client
sent can forge a line. Source: the serving contract, section 13.2.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TextIO

ROOT: Final = "ninfer"


class LineFormatter(logging.Formatter):
    """Formats one record as one line, apart from the traceback of an error of ours."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03d %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Escape whatever is no printable text."""
        line = super().formatMessage(record)
        return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)


@contextmanager
def operator_log(stream: TextIO) -> Iterator[None]:
    """Write records of ninfer and of its HTTP server to a stream while the block runs."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter())
    logger, server_logger = logging.getLogger(ROOT), logging.getLogger("waitress")
    levels = (logger.level, server_logger.level)
    logger.setLevel(logging.INFO)
    server_logger.setLevel(logging.ERROR)
    for target in (logger, server_logger):
        target.addHandler(handler)
    try:
        yield
    finally:
        for target, level in zip((logger, server_logger), levels, strict=True):
            target.removeHandler(handler)
            target.setLevel(level)
