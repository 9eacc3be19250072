"""Facts from the CSV files of this package, read once when first asked for."""

import csv
import functools
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parent / "tables"

Row = dict[str, str]


@functools.cache
def rows(name: str) -> tuple[Row, ...]:
    """Rows of ``tables/NAME.csv`` by column.

    Raises:
        ValueError: a row has another number of fields than the heading.
    """
    with (_FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        found = tuple(csv.DictReader(file, strict=True))
    for row in found:
        if None in row or None in row.values():
            raise ValueError(f"{name}.csv: wrong number of fields in {row}")
    return found
