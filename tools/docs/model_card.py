"""Generated parts of ``docs/model-card-demo.md``: measured accuracy, and the figures of the data.

Results are what `tools.demo_model.evaluate` wrote into ``tools/demo_model/accuracy.json``.
"""

import json
from pathlib import Path
from typing import Any, Final

from tools.docs.generated_part import with_part

START: Final = "<!-- generated: accuracy -->\n"
RESULTS: Final = Path(__file__).resolve().parents[1] / "demo_model" / "accuracy.json"
_HEAD: Final = "| | asked | right | with thinking | without |\n|---|---:|---:|---:|---:|\n"


def model_card_page(path: Path, results: Path = RESULTS) -> str:
    """Return the model card with its generated part made anew.

    Raises:
        ValueError: the page has no place for it.
    """
    part = "Not measured yet.\n"
    if results.is_file():
        part = accuracy(json.loads(results.read_bytes()))
    return with_part(path, START, part)


def accuracy(document: dict[str, Any]) -> str:
    """Both tables of a result file, and what was measured."""
    identity = (
        f"Measured with ninfer {document['ninfer']}, weights `{document['weights_id']}`, seed "
        f"{document['seed']}.\n"
    )
    parts = [identity, "\n", _HEAD, *_rows(document["areas"])]
    parts += ["\nSkill by skill:\n\n", _HEAD, *_rows(document["skills"])]
    return "".join(parts)


def _rows(rows: dict[str, dict[str, int]]) -> list[str]:
    lines = []
    for name, row in rows.items():
        asked, thinking = row["asked"], row["thinking_asked"]
        shares = (
            _share(row["right"], asked),
            _share(row["thinking_right"], thinking),
            _share(row["right"] - row["thinking_right"], asked - thinking),
        )
        lines.append(f"| {name.replace('_', ' ')} | {asked} | {' | '.join(shares)} |\n")
    return lines


def _share(right: int, asked: int) -> str:
    return f"{100 * right / asked:.1f}%" if asked else "-"
