"""The generated part of a page that is written by hand otherwise."""

from pathlib import Path
from typing import Final

END: Final = "<!-- end -->\n"


def with_part(path: Path, start: str, part: str) -> str:
    """Return a page with what stands between ``start`` and `END` made anew.

    Raises:
        ValueError: the page has no place for it.
    """
    before, found, rest = path.read_text(encoding="utf-8").partition(start)
    _, end, after = rest.partition(END)
    if not (found and end):
        raise ValueError(f"{path} has no generated part")
    return before + start + part + end + after
