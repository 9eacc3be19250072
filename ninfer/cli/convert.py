"""``ninfer convert``: the converter's own command, reached from the one command line."""

import argparse

from ninfer.cli.console import Console
from ninfer.cli.exit_codes import ExitCode
from ninfer.convert import command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    command.add_arguments(parser)


def run(options: argparse.Namespace, console: Console) -> ExitCode:
    """Convert a checkpoint."""
    return ExitCode(command.run(options))
