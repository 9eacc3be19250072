"""Writes training conversations as text, or prints their digest.

python -m tools.demo_model.data --seed 1 --conversations 1000 --output conversations.jsonl
python -m tools.demo_model.data --seed 1 --conversations 1000 --digest
"""

import argparse
import json
import sys
from pathlib import Path

from tools.demo_model.data.dataset import digest, write
from tools.demo_model.data.rendering import render
from tools.demo_model.data.stream import samples


def main(arguments: list[str] | None = None) -> int:
    """Run one command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.demo_model.data", description="Training data of the demo model."
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--conversations", type=int, default=1000)
    parser.add_argument("--tokens", type=int, help="write a token set of this size instead of text")
    parser.add_argument("--workers", type=int, help="processes for --tokens")
    parser.add_argument("--output", type=Path, help="file, or name without suffix with --tokens")
    parser.add_argument("--digest", action="store_true", help="print the SHA-256 of the tokens")
    options = parser.parse_args(arguments)
    if not options.digest and options.output is None:
        parser.error("either --output or --digest is needed")
    if options.digest:
        print(digest(options.seed, options.conversations))
    if options.output is not None and options.tokens is not None:
        write(options.output, options.seed, options.tokens, workers=options.workers)
    elif options.output is not None:
        _write_text(options.output, options.seed, options.conversations)
    return 0


def _write_text(path: Path, seed: int, count: int) -> None:
    """One JSON line for each conversation: skill and pieces of text with their marks."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for conversation in samples(seed, 0, count):
            line = {"skill": conversation.skill, "pieces": render(conversation)}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())
