"""``ninfer chat``: a conversation on the terminal, its history in memory.

``/reset`` forgets, ``/save FILE`` and ``/load FILE`` keep the messages as JSON, ``/think on|off``
switches thinking, ``/help`` lists the commands, ``/quit`` leaves. Ctrl-C stops the answer; pressed
again, or at the prompt, it leaves.
"""

import argparse
import json
import readline  # noqa: F401 - importing it gives input() history and line editing
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ninfer.cli.console import Console
from ninfer.cli.exit_codes import ExitCode, UsageError
from ninfer.cli.generate import open_engine, statistics, write_event
from ninfer.cli.model_argument import add_model_argument, settle_model
from ninfer.cli.options import add_engine_options, add_sampling_options, sampling_params
from ninfer.cli.request_input import prompt_options, read_json, request_options
from ninfer.cli.text_input import checked_text, reason_of, text_argument
from ninfer.errors import ContextLengthExceeded, RequestError
from ninfer.generation import GenerationResult, SamplingParams
from ninfer.runtime import Engine
from ninfer.termination import ending_signal

RESTART = "/reset starts a new conversation, /save FILE keeps this one"
HELP = "/help  /reset  /save FILE  /load FILE  /think on|off  /quit"
_FULL_CONTEXT = frozenset({ContextLengthExceeded.code, "thinking_budget_capacity_insufficient"})


@dataclass(slots=True)
class Talk:
    """What the conversation remembers."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    is_over: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_model_argument(parser)
    parser.add_argument("--system", metavar="TEXT", type=text_argument, help="system message")
    parser.add_argument(
        "--no-show-thinking", action="store_true", help="keep thinking off standard error"
    )
    add_sampling_options(parser)
    add_engine_options(parser, max_context=8192)


def run(options: argparse.Namespace, console: Console) -> ExitCode:
    """Talk until the input ends or the user leaves."""
    sampling_params(options, SamplingParams())  # What no model can change is refused at once.
    settle_model(options, console)
    talk = Talk(_opening(options))
    with open_engine(options, console) as engine:
        console.note(f"{engine.model_id} is ready. {HELP}")
        while not talk.is_over:
            try:
                line = input("> " if sys.stdin.isatty() else "")
            except EOFError:
                break
            try:
                _take(line, talk, engine, options, console)
            except RequestError as error:
                console.note(f"error: {error}{_advice(error, talk, options)}")
            except UsageError as error:
                console.note(f"error: {error}")
    return ExitCode.DONE


def _advice(error: RequestError, talk: Talk, options: argparse.Namespace) -> str:
    """What helps against a context that is full; nothing for other refusals."""
    if error.code not in _FULL_CONTEXT:
        return ""
    if talk.messages != _opening(options):
        return f"; {RESTART}"
    return "; send a shorter message, or start with a larger --max-context"


def _opening(options: argparse.Namespace) -> list[dict[str, Any]]:
    return [] if options.system is None else [{"role": "system", "content": options.system}]


def _take(
    line: str, talk: Talk, engine: Engine, options: argparse.Namespace, console: Console
) -> None:
    if line.startswith("/"):
        _command(line, talk, engine, options, console)
    elif line.strip():
        _answer(line, talk, engine, options, console)


def _command(
    line: str, talk: Talk, engine: Engine, options: argparse.Namespace, console: Console
) -> None:
    name, _, argument = line.partition(" ")
    match name, argument.strip():
        case "/quit", "":
            talk.is_over = True
        case "/reset", "":
            talk.messages = _opening(options)
            console.note("forgotten")
        case "/save", path if path:
            try:
                text = json.dumps(talk.messages, ensure_ascii=False, indent=1)
                Path(path).write_text(text, encoding="utf-8")
            except OSError as error:
                raise UsageError(f"cannot write {path}: {reason_of(error)}") from error
            console.note(f"saved {len(talk.messages)} messages")
        case "/load", path if path:
            messages = read_json(path)
            if not isinstance(messages, list):
                raise UsageError(f"{path} is not a JSON list of messages")
            # With a question, as the next one will be: what cannot go on is refused here.
            engine.prepare([*messages, _question("?")], prompt=prompt_options(options))
            talk.messages = messages
            console.note(f"loaded {len(messages)} messages")
        case "/think", ("on" | "off") as switch:
            options.no_thinking = switch == "off"
            console.note(f"thinking is {switch}")
        case "/image", _:
            raise UsageError("images cannot be read: this build runs text only")
        case "/help", _:
            console.note(HELP)
        case ((("/quit" | "/reset" | "/save" | "/load" | "/think") as known), _):
            console.note(f"usage: {_usage(known)}")
        case _:
            console.note(f"unknown command {name}; {HELP}")


def _question(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _usage(name: str) -> str:
    """How `HELP` spells a command."""
    return next(form for form in HELP.split("  ") if form.split()[0] == name)


def _answer(
    line: str, talk: Talk, engine: Engine, options: argparse.Namespace, console: Console
) -> None:
    messages = [*talk.messages, _question(checked_text(line))]
    prepared = engine.prepare(messages, prompt=prompt_options(options))
    result = None
    with engine.submit(prepared, request_options(engine, options, prepared)) as handle:
        try:
            for event in handle:
                write_event(event, console, shows_thinking=not options.no_show_thinking)
                if isinstance(event, GenerationResult):
                    result = event
        except BaseException as error:
            if ending_signal(error) is not signal.SIGINT:
                raise
            handle.cancel()
        if result is None:  # Outside: a failure from here on is not the interrupt's.
            result = handle.result()
    sys.stdout.write("\n")
    sys.stdout.flush()
    console.note(statistics(result))
    if result.usage.prompt_tokens + result.usage.completion_tokens >= engine.config.max_context:
        console.note(f"the context of {engine.config.max_context} tokens is full; {RESTART}")
    answer: dict[str, Any] = {"role": "assistant", "content": result.summary.content}
    if result.summary.reasoning:
        answer["reasoning_content"] = result.summary.reasoning
    talk.messages = [*messages, answer]
