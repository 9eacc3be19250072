"""Text that comes from outside: arguments, lines and files, which have to be UTF-8.

Python hands over bytes of an argument or of a line that are no text as lone surrogates; here they
become bytes again, so that a message can say what a person would find in the file. Knows no
prompts. Source: PEP 383 (surrogateescape).
"""

import argparse
import codecs
import sys
from pathlib import Path

from ninfer.cli.exit_codes import UsageError


def text_argument(text: str) -> str:
    """Take the value of an option that is text; a type for ``argparse``.

    Raises:
        ArgumentTypeError: it is not UTF-8.
    """
    try:
        return checked_text(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def checked_text(text: str) -> str:
    """Take a text as the system handed it over.

    Raises:
        UsageError: it is not UTF-8; the message names the first wrong byte and its place.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        # In a locale without UTF-8 even good text arrives in pieces; joined, it is text again.
        return _decoded(text.encode("utf-8", "surrogateescape"))
    return text


def read_text(path: str) -> str:
    """Read a whole UTF-8 file; ``-`` is standard input.

    Raises:
        UsageError: it cannot be read or is not UTF-8.
    """
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {reason_of(error)}") from error
    try:
        text = _decoded(data)
    except UsageError as error:
        raise UsageError(f"cannot read {path}: {error}") from error
    return text if path == "-" else text.replace("\r\n", "\n").replace("\r", "\n")


def reason_of(error: OSError) -> str:
    """What went wrong, without the errno and without the name a second time."""
    return error.strerror or str(error)


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"not UTF-8: {_place(data, error.start)}") from error


def _place(data: bytes, start: int) -> str:
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "it begins like UTF-16"
    line = data.count(b"\n", 0, start) + 1
    place = f"byte 0x{data[start]:02X} at offset {start}"
    return place if line == 1 else f"{place}, in line {line}"
