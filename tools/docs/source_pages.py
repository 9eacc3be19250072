"""Pages read out of the source without importing it: the map of files and the life cycles.

The map takes the first line of every module docstring. A life cycle is a module-level ``_NEXT``
table, the form every state machine of the project has.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("ninfer", "tools")

MAP_HEAD = """# Where everything lives

One line for each file, taken from its docstring; this page is generated. The layers and what may
import what are in [ARCHITECTURE.md](../ARCHITECTURE.md).
"""

LIFE_CYCLES_HEAD = """# Life cycles

Every life cycle is an enum and one table of legal moves; an illegal move raises and changes
nothing. This page is generated from the tables.
"""


def map_page() -> str:
    """Return docs/map.md."""
    parts, folder = [MAP_HEAD], ""
    for path in _sources():
        summary = _summary(path)
        if not summary:
            continue
        if str(path.parent.relative_to(ROOT)) != folder:
            folder = str(path.parent.relative_to(ROOT))
            parts.append(f"\n## {folder}\n\n")
        link = f"../{path.relative_to(ROOT)}"
        parts.append(f"* [`{path.name}`]({link}): {summary}\n")
    return "".join(parts)


def life_cycles_page() -> str:
    """Return docs/life-cycles.md."""
    parts = [LIFE_CYCLES_HEAD]
    for path in _sources():
        rows = _moves(path)
        if rows:
            name = path.relative_to(ROOT)
            parts.append(f"\n## {_summary(path)}\n\n[`{name}`](../{name})\n\n")
            parts.append("| from | on | to |\n|---|---|---|\n")
            parts += [f"| {before} | {event} | {after} |\n" for before, event, after in rows]
    return "".join(parts)


def _sources() -> Iterator[Path]:
    for folder in FOLDERS:
        files = [p for p in (ROOT / folder).rglob("*.py") if "__pycache__" not in p.parts]
        yield from sorted(files, key=lambda path: (str(path.parent), path.name))


def _summary(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.split("\n")[0].replace("``", "`")


def _moves(path: Path) -> list[tuple[str, str, str]]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(target, ast.Name) and target.id == "_NEXT":
            value = node.value if isinstance(node, ast.AnnAssign) else None
            if isinstance(value, ast.Dict):
                return [
                    row
                    for key, to in zip(value.keys, value.values, strict=True)
                    for row in _rows(key, to)
                ]
    return []


def _rows(key: ast.expr | None, to: ast.expr) -> Iterator[tuple[str, str, str]]:
    """A table maps (state, event) to a state, or a state to the set of states it may reach."""
    if isinstance(key, ast.Tuple):
        before, event = key.elts
        yield _name(before), _name(event), _name(to)
    elif isinstance(to, ast.Set) and key is not None:
        for after in to.elts:
            yield _name(key), "", _name(after)


def _name(node: ast.expr) -> str:
    text = node.attr if isinstance(node, ast.Attribute) else ast.unparse(node)
    return text.lower().replace("_", " ")
