"""The positional MODEL of commands that work on one artifact, and what is used without it."""

import argparse
from typing import Final

from ninfer.cli.console import Console
from ninfer.demo.shipped import shipped_model

NOTICE: Final = "no MODEL given: using the demo model that ships with ninfer"


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """Declare MODEL; it may be left out."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="artifact file (default: the demo model that ships with ninfer)",
    )


def settle_model(options: argparse.Namespace, console: Console) -> None:
    """Put the demo model where no MODEL was given, and say so.

    Raises:
        DemoModelMissing: this installation has none.
    """
    if options.model is None:
        options.model = str(shipped_model())
        console.note(NOTICE)
