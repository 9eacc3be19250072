"""Write the generated pages of the documentation, or check that they are up to date.

    python -m tools.docs            write
    python -m tools.docs --check    exit 1 and name the pages that differ

A page is generated whole: ``docs/cli.md`` from the help texts of the command line,
``docs/environment.md`` from its long options, ``docs/map.md`` and ``docs/life-cycles.md`` from the
source. In ``docs/http.md`` only the table of errors is generated, in ``docs/model-card-demo.md``
only the measured accuracy.
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from ninfer.cli.main import COMMANDS, build_parser
from ninfer.cli.options import PREFIX, configurable
from tools.docs.http_page import http_page
from tools.docs.model_card import model_card_page
from tools.docs.source_pages import life_cycles_page, map_page

DOCS = Path(__file__).resolve().parents[2] / "docs"
WIDTH = "96"

CLI_HEAD = """# Command line

`python -m ninfer COMMAND ...` and the console script `ninfer` are the same program. The answer
goes to standard output, everything else to standard error; `generate > FILE` writes the answer and
not a byte more, and only on a terminal does a line end follow it. Text has to be UTF-8. An option
that would do nothing beside the others is refused. This page is generated from the help texts.

| exit code | meaning |
|---|---|
| 0 | done, also when the answer hit a limit |
| 1 | failure while running: engine failed, I/O |
| 2 | wrong option or combination, unreadable input file |
| 3 | artifact or checkpoint invalid, incomplete or of the wrong kind |
| 4 | device: none found, or not enough memory |
| 5 | the request itself was refused, or asks for what this build does not offer yet |
| 6 | `--require-complete`, and the answer hit a limit |
| 129, 130, 143 | ended by SIGHUP, SIGINT, SIGTERM |
"""

ENVIRONMENT_HEAD = """# Environment

Every long option of the command line, except those that exclude one another, has a
variable that gives its default; the command line wins. A value that does not parse is an error.
Flags take `0` or `1`. A variable whose option would do nothing beside the others, such as
`--system` beside `--raw`, is ignored; the option is refused. This page is generated from the
options.

`NUMBA_CACHE_DIR` moves the cache of compiled host kernels, which otherwise lies in
`ninfer/host-kernels` of the user's cache folder (`XDG_CACHE_HOME`, else `~/.cache`). Deleting the
cache is always safe; where it cannot be written, each process compiles anew. `NO_COLOR` and
`TERM=dumb` switch colour and rewritten lines off. `XDG_STATE_HOME` moves the folder of the key that
signs thinking blocks of Anthropic replies.

| variable | option | commands |
|---|---|---|
"""


def children() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command."""
    for action in build_parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    raise LookupError("the command line has no commands")


def cli_page() -> str:
    """Return docs/cli.md."""
    parts = [CLI_HEAD, "\n```text\n", build_parser().format_help(), "```\n"]
    parsers = children()
    for command in COMMANDS:
        text = parsers[command.name].format_help()
        parts += [f"\n## {command.name}\n\n```text\n", text, "```\n"]
    return "".join(parts)


def environment_page() -> str:
    """Return docs/environment.md."""
    users: dict[str, list[str]] = {}
    for name, parser in children().items():
        for action in configurable(parser):
            for option in action.option_strings:
                if option.startswith("--") and option != "--help":
                    users.setdefault(option, []).append(name)
    rows = [
        f"| `{PREFIX}{option.removeprefix('--').replace('-', '_').upper()}` | `{option}` | "
        f"{', '.join(commands)} |\n"
        for option, commands in sorted(users.items())
    ]
    return ENVIRONMENT_HEAD + "".join(rows)


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli_page,
    "environment.md": environment_page,
    "http.md": lambda: http_page(DOCS / "http.md"),
    "life-cycles.md": life_cycles_page,
    "map.md": map_page,
    "model-card-demo.md": lambda: model_card_page(DOCS / "model-card-demo.md"),
}


def main(arguments: list[str]) -> int:
    """Write or check every page and return the exit code."""
    os.environ["COLUMNS"] = WIDTH
    stale = []
    for name, build in PAGES.items():
        path, text = DOCS / name, build()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if "--check" in arguments:
            stale.append(name)
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote docs/{name}")
    for name in stale:
        print(f"docs/{name} is out of date: run python -m tools.docs", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
