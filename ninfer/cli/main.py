"""Arguments, dispatch and exit codes of the command line.

Each command is a module of this package, named like it, with ``add_arguments(parser)`` and
``run(options, console) -> ExitCode``. Only the one that is asked for is imported: a person who
chats does not wait for the server. This file knows how a process of ours starts and ends and
nothing about what the commands do.
"""

import argparse
import importlib
import json
import platform
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol, cast

from ninfer.cli.collection import collection_paused
from ninfer.cli.console import Console
from ninfer.cli.exit_codes import ExitCode, exit_code_of
from ninfer.cli.options import add_console_options, apply_environment
from ninfer.errors import NinferError
from ninfer.version import __version__


class Implementation(Protocol):
    """What the module of a command offers."""

    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Console], ExitCode]


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand."""

    name: str
    summary: str
    example: str

    def load(self) -> Implementation:
        """Import the command's module."""
        return cast(Implementation, importlib.import_module(f"ninfer.cli.{self.name}"))


COMMANDS = (
    Command(
        "generate",
        "answer one request",
        'ninfer generate model.ninfer --prompt "Why is the sky blue?"',
    ),
    Command("chat", "talk", "ninfer chat model.ninfer"),
    Command(
        "serve",
        "answer over HTTP, in OpenAI's and Anthropic's protocols",
        "ninfer serve model.ninfer --port 8000",
    ),
    Command(
        "inspect",
        "show what an artifact holds; opens no device",
        "ninfer inspect model.ninfer --tensors",
    ),
    Command(
        "convert",
        "turn a safetensors checkpoint into an artifact",
        "ninfer convert Qwen3.5-0.8B qwen3.5-0.8b.ninfer",
    ),
    Command(
        "compile",
        "compile CUDA kernels ahead of time; opens no device",
        "ninfer compile --model-id qwen3.6-27b --target sm_90",
    ),
    Command(
        "bench",
        "measure prefill and decode",
        "ninfer bench model.ninfer --concurrency 1,2,4,8",
    ),
    Command("score", "log-probabilities of a text", "ninfer score model.ninfer --file text.txt"),
    Command(
        "tokenize",
        "token ids of a text or a conversation; opens no device",
        'ninfer tokenize model.ninfer --text "Hello"',
    ),
)


def build_parser(asked: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of the command line.

    Args:
        asked: the one command whose options are wanted; those of all when None.
    """
    parser = _Parser(
        prog="ninfer",
        description="Serve the Qwen3.5, Qwen3.6 and Qwen3.8 hybrid models on one device.",
        epilog="example: ninfer COMMAND --help",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show versions and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        child = commands.add_parser(
            command.name,
            help=command.summary,
            description=command.summary[0].upper() + command.summary[1:] + ".",
            epilog=f"example: {command.example}",
            allow_abbrev=False,
        )
        if asked in (None, command.name):
            implementation = command.load()
            implementation.add_arguments(child)
            add_console_options(child)
            child.set_defaults(run=implementation.run)
    return parser


def main(arguments: Sequence[str]) -> ExitCode:
    """Run the command line and return what the process should end with.

    Raises:
        SystemExit: help, version or a wrong option, as argparse does it.
    """
    asked = next((word for word in arguments if not word.startswith("-")), "")
    with collection_paused():
        parser = build_parser(asked)
    children = _named_commands(parser, asked)
    for child in children:
        apply_environment(child)
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        # The command refuses them, not the whole, so that the help it points to lists the options.
        (*children, parser)[0].error(f"unrecognized arguments: {' '.join(unknown)}")
    console = Console(options)
    run: Callable[[argparse.Namespace, Console], ExitCode] = options.run
    try:
        return run(options, console)
    except BaseException as error:  # noqa: BLE001 - process boundary: all becomes an exit code
        return _report(error, options, console)
    finally:
        console.close()


def _named_commands(parser: argparse.ArgumentParser, asked: str) -> list[argparse.ArgumentParser]:
    """The parser of the command that is run; only its variables are read."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) and asked in action.choices:
            return [action.choices[asked]]
    return []


def _report(error: BaseException, options: argparse.Namespace, console: Console) -> ExitCode:
    """Say what ended the command. An error nobody foresaw keeps its traceback."""
    code = exit_code_of(error)
    if code is None or (options.debug and code is not ExitCode.DONE):
        traceback.print_exception(error, file=sys.stderr)
    if code in (ExitCode.DONE, ExitCode.HUNG_UP, ExitCode.INTERRUPTED, ExitCode.TERMINATED):
        return code
    known = f"error: {_message(error, getattr(options, 'model', None))}"
    console.note(known if code is not None else "error: unexpected; please report it")
    if getattr(options, "format", None) == "json" and isinstance(error, NinferError):
        document = {"code": error.code, "message": str(error), "object": None}
        print(json.dumps({"error": document | {"object": getattr(error, "object", None)}}))
    return ExitCode.FAILED if code is None else code


def _message(error: BaseException, model: object) -> str:
    """Spell an error for a person; errors of the system without their number."""
    match error:
        case IsADirectoryError(filename=str() | Path() as name) if str(name) == str(model):
            return f"{name} is a folder; an artifact is a file, made by ninfer convert"
        case OSError(filename=str() | Path() as name, strerror=str(reason)):
            return f"{name}: {reason}"
        case OSError(filename=None, strerror=str(reason)):
            return reason
        case _:
            return str(error)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in two lines instead of repeating every option."""

    def error(self, message: str) -> NoReturn:
        self.exit(int(ExitCode.USAGE), f"{self.prog}: error: {message}\nsee {self.prog} --help\n")


class _Version(argparse.Action):
    """Print versions, one a line."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> NoReturn:
        from ninfer.model_stack import device_summary  # loads the whole engine

        print(f"ninfer {__version__}")
        print(f"Python {platform.python_version()}")
        summary = device_summary()
        print(f"driver: {summary.driver}")
        print(f"device: {summary.device}")
        parser.exit()
