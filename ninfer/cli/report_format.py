"""The option of commands that print a report: as a text for people, or as JSON."""

import argparse


def add_format_option(parser: argparse.ArgumentParser) -> None:
    """Declare ``--format``."""
    parser.add_argument(
        "--format",
        choices=["text", "json"],
        default="text",
        help="form of the output (default: text)",
    )
