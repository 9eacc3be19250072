"""What the user asks: prompt, messages, tools and token lists from options and files.

Files named ``-`` are standard input. An unreadable file or one that is no JSON is a usage error;
what its content means is checked by the frontend, in the words that HTTP uses.
"""

import argparse
import json
from dataclasses import dataclass
from typing import Any

from ninfer.cli.exit_codes import UsageError
from ninfer.cli.options import Repeated, refuse_idle, sampling_params
from ninfer.cli.text_input import read_text, text_argument
from ninfer.errors import RequestError, UnsupportedFeature
from ninfer.frontend.frontend import OutputOptions, PreparedInput, PromptOptions
from ninfer.frontend.grammar_source import schema_source
from ninfer.frontend.output_constraint import CompiledGrammar
from ninfer.runtime import DEFAULT_MAX_NEW_TOKENS, Engine, RequestOptions

_TEMPLATE_OPTIONS = (
    "system",
    "tools",
    "reasoning_effort",
    "chat_template",
    "no_thinking",
    "preserve_thinking",
)


def add_prompt_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `prepare_input` reads."""
    group = parser.add_argument_group("prompt, exactly one of the first four")
    source = group.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompt", metavar="TEXT", type=text_argument, help="one user message")
    source.add_argument(
        "--prompt-file", metavar="FILE", help="one user message from a file; - is standard input"
    )
    source.add_argument("--messages", metavar="FILE", help="JSON list of chat messages")
    source.add_argument("--prompt-tokens", metavar="FILE", help="JSON list of token ids")
    group.add_argument(
        "--system", metavar="TEXT", type=text_argument, help="system message before --prompt"
    )
    group.add_argument("--raw", action="store_true", help="no chat template around --prompt")
    group.add_argument(
        "--image", action=Repeated, default=[], metavar="FILE", help="not available in this build"
    )
    group.add_argument("--tools", metavar="FILE", help="JSON list of tool definitions")
    group.add_argument("--json-schema", metavar="FILE", help="constrain the answer to a schema")


def read_json(path: str) -> Any:
    """Read a JSON file; like over HTTP, a byte-order mark before it does no harm.

    Raises:
        UsageError: it cannot be read or is not JSON.
    """
    try:
        return json.loads(read_text(path).removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}") from error


def read_token_list(value: object, source: str) -> list[int]:
    """Check that a JSON value is a list of integers.

    Raises:
        UsageError: it is something else.
    """
    if not isinstance(value, list) or not all(
        isinstance(item, int) and not isinstance(item, bool) for item in value
    ):
        raise UsageError(f"{source} is not a JSON list of token ids")
    return value


def prompt_options(options: argparse.Namespace) -> PromptOptions:
    """How the conversation is rendered."""
    return PromptOptions(
        enable_thinking=False if options.no_thinking else None,
        preserve_thinking=True if options.preserve_thinking else None,
        reasoning_effort=options.reasoning_effort,
    )


@dataclass(frozen=True, slots=True)
class Tokens:
    """A prompt given as ids."""

    token_ids: list[int]


@dataclass(frozen=True, slots=True)
class RawText:
    """A prompt without a chat template."""

    text: str


@dataclass(frozen=True, slots=True)
class Chat:
    """Messages and tools as JSON, not yet checked."""

    messages: list[Any]
    tools: Any


Source = Tokens | RawText | Chat


def read_input(options: argparse.Namespace) -> Source:
    """Read what the prompt options name.

    Raises:
        RequestError: the input is of a kind that cannot be served.
        UsageError: a file cannot be read, or options contradict.
    """
    if options.image:
        raise UnsupportedFeature(
            "images cannot be read: this build runs text only", code="vision_disabled"
        )
    is_text = options.prompt is not None or options.prompt_file is not None
    if not is_text:
        refuse_idle(options, ("raw", "system"), "goes with --prompt or --prompt-file")
    if options.prompt_tokens is not None:
        refuse_idle(
            options,
            _TEMPLATE_OPTIONS,
            "does not go with --prompt-tokens, which use no chat template",
        )
    if options.raw:
        refuse_idle(
            options, _TEMPLATE_OPTIONS, "does not go with --raw, which uses no chat template"
        )
    if options.prompt_tokens is not None:
        return Tokens(read_token_list(read_json(options.prompt_tokens), options.prompt_tokens))
    if not is_text:
        messages = read_json(options.messages)
        if not isinstance(messages, list):
            raise RequestError("messages must be a list", code="invalid_type", field="messages")
        return Chat(messages, _tools(options))
    text = read_text(options.prompt_file) if options.prompt is None else options.prompt
    if options.raw:
        return RawText(text)
    opening = [] if options.system is None else [{"role": "system", "content": options.system}]
    return Chat([*opening, {"role": "user", "content": text}], _tools(options))


def _tools(options: argparse.Namespace) -> Any:
    return None if options.tools is None else read_json(options.tools)


def prepare_input(engine: Engine, source: Source, options: argparse.Namespace) -> PreparedInput:
    """Turn the input into tokens.

    Raises:
        RequestError: the input cannot be represented.
    """
    match source:
        case Tokens(token_ids=token_ids):
            return engine.frontend.prepare_tokens(token_ids)
        case RawText(text=text):
            return engine.frontend.prepare_raw(
                text, parse_special=True, max_tokens=engine.config.max_context
            )
        case Chat(messages=messages, tools=tools):
            return engine.prepare(messages, tools=tools, prompt=prompt_options(options))


def request_options(
    engine: Engine, options: argparse.Namespace, prepared: PreparedInput
) -> RequestOptions:
    """How the answer is made, from the sampling options.

    Raises:
        RequestError: a value is out of its range.
    """
    preset = engine.sampling_preset(prepared)
    wanted = DEFAULT_MAX_NEW_TOKENS if options.max_new is None else options.max_new
    if wanted < 0:
        raise RequestError(f"max_new is {wanted}; allowed is 0 and more", field="max_new")
    return RequestOptions(
        sampling=sampling_params(options, preset),
        max_new_tokens=wanted,
        output=OutputOptions(
            stop=tuple(options.stop),
            thinking_budget=options.thinking_budget,
            grammar=_grammar(engine, options),
        ),
    )


def _grammar(engine: Engine, options: argparse.Namespace) -> CompiledGrammar | None:
    # Not every command that makes requests can constrain them.
    path = getattr(options, "json_schema", None)
    if path is None:
        return None
    source = schema_source(read_json(path), "json_schema")
    return engine.frontend.compile_grammar(source, "json_schema")
