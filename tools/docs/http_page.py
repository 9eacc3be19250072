"""Generated parts of ``docs/http.md``: the table of errors."""

from pathlib import Path
from typing import Final

from ninfer.gateway.error_responses import ERROR_TABLE, ErrorReply, Family, Retry
from tools.docs.generated_part import with_part

START: Final = "<!-- generated: errors -->\n"
HEAD: Final = (
    "| code | OpenAI status, type | Anthropic status, type | `Retry-After` |\n|---|---|---|---|\n"
)


def http_page(path: Path) -> str:
    """Return docs/http.md with its generated part made anew.

    Raises:
        ValueError: the page has no place for it.
    """
    return with_part(path, START, HEAD + "".join(_rows()))


def _rows() -> list[str]:
    rows = []
    for code, row in ERROR_TABLE.items():
        reply = ErrorReply(code, "")
        openai = f"{reply.status(Family.OPENAI)} `{row.openai_type}`"
        anthropic = f"{reply.status(Family.ANTHROPIC)} `{row.anthropic_type}`"
        retry = "" if row.retry is Retry.NEVER else "yes"
        rows.append(f"| `{code}` | {openai} | {anthropic} | {retry} |\n")
    return rows
