"""``ninfer generate``: one request, its answer on standard output."""

import argparse
import json
import os
import secrets
import sys
from collections.abc import Iterable
from typing import TextIO

from ninfer.cli.console import Console
from ninfer.cli.exit_codes import ExitCode
from ninfer.cli.model_argument import add_model_argument, settle_model
from ninfer.cli.options import (
    add_engine_options,
    add_sampling_options,
    engine_config,
    refuse_idle,
    sampling_params,
)
from ninfer.cli.request_input import (
    add_prompt_options,
    prepare_input,
    read_input,
    request_options,
)
from ninfer.cli.slow_start import starting
from ninfer.cli.text_input import read_text
from ninfer.frontend.frontend import PreparedInput
from ninfer.gateway.openai_reply import ChatStream, fold, new_identity
from ninfer.gateway.openai_timings import timings_json
from ninfer.generation import (
    Channel,
    FinishReason,
    GenerationEvent,
    GenerationResult,
    OutputCommitted,
    PrefillProgress,
    SamplingParams,
    TextDelta,
)
from ninfer.runtime import Engine, RequestOptions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_model_argument(parser)
    add_prompt_options(parser)
    add_sampling_options(parser)
    group = parser.add_argument_group("output")
    group.add_argument(
        "--output",
        choices=["text", "json", "jsonl"],
        default="text",
        help="text, one chat-completion object, or its stream, one object a line; text is written "
        "as it was generated, with a line end behind it on a terminal only (default: text)",
    )
    group.add_argument("--return-token-ids", action="store_true", help="token ids in the JSON")
    group.add_argument(
        "--require-complete", action="store_true", help="exit 6 when the answer hit a limit"
    )
    group.add_argument(
        "--no-show-thinking", action="store_true", help="keep thinking off standard error"
    )
    add_engine_options(parser, max_context=4096)


def run(options: argparse.Namespace, console: Console) -> ExitCode:
    """Answer one request. What can be refused without the model is refused before it loads."""
    source = read_input(options)
    if options.output == "text":
        refuse_idle(options, ["return_token_ids"], "goes with --output json or jsonl")
    else:
        refuse_idle(options, ["no_show_thinking"], "goes with --output text")
    if options.no_thinking or options.reasoning_effort == "none":
        refuse_idle(options, ["thinking_budget"], "does nothing without thinking")
    sampling_params(options, SamplingParams())
    settle_model(options, console)
    with open_engine(options, console) as engine:
        prepared = prepare_input(engine, source, options)
        request = request_options(engine, options, prepared)
        with engine.submit(prepared, request) as handle:
            if options.output == "text":
                result = _write_text(handle, console, shows=not options.no_show_thinking)
            else:
                result = _write_json(handle, engine, prepared, request, options)
    console.note(statistics(result))
    if options.require_complete and result.finish is FinishReason.LENGTH:
        return ExitCode.INCOMPLETE
    return ExitCode.DONE


def open_engine(
    options: argparse.Namespace, console: Console, *, max_concurrency: int = 1
) -> Engine:
    """Load the model that the engine options describe, with progress."""
    template = options.chat_template
    with starting(console):
        return Engine(
            options.model,
            config=engine_config(options, max_concurrency=max_concurrency),
            chat_template=None if template is None else read_text(template),
            progress=console.loading,
            compiling=console.compiling,
        )


def statistics(result: GenerationResult) -> str:
    """One line about a finished request, for standard error."""
    timings, usage = timings_json(result), result.usage
    return (
        f"[{result.finish.value}] prompt {usage.prompt_tokens} tokens, "
        f"{timings['prompt_per_second']:.1f}/s; answer {usage.completion_tokens} tokens, "
        f"{timings['predicted_per_second']:.1f}/s"
    )


def write_event(event: GenerationEvent, console: Console, *, shows_thinking: bool) -> None:
    """Write what one event says: content to standard output, thinking to standard error."""
    match event:
        case PrefillProgress():
            console.progress("prefill", event.processed_tokens, event.prompt_tokens, "tokens")
        case OutputCommitted():
            for delta in event.deltas:
                if not isinstance(delta, TextDelta):
                    continue
                if delta.channel is Channel.CONTENT:
                    console.yield_to_output()
                    sys.stdout.write(delta.text)
                    sys.stdout.flush()
                elif shows_thinking:
                    console.thinking(delta.text)
        case _:
            pass


def _write_text(
    events: Iterable[GenerationEvent], console: Console, *, shows: bool
) -> GenerationResult:
    result = None
    for event in events:
        write_event(event, console, shows_thinking=shows)
        if isinstance(event, GenerationResult):
            result = event
    if result is None:
        raise ValueError("the request ended without a result")
    for call in result.summary.tool_calls:
        document = {"name": call.name, "arguments": json.loads(call.arguments)}
        sys.stdout.write(json.dumps({"tool_call": document}, ensure_ascii=False) + "\n")
    sys.stdout.flush()
    if not result.summary.content.endswith("\n"):
        if sys.stdout.isatty():
            sys.stdout.write("\n")
            sys.stdout.flush()
        elif _are_one_file(sys.stdout, sys.stderr):
            console.note("")  # Keep the answer and the statistics apart in a common log.
    return result


def _are_one_file(first: TextIO, second: TextIO) -> bool:
    try:
        return os.path.sameopenfile(first.fileno(), second.fileno())
    except (OSError, ValueError):
        return False


def _write_json(
    events: Iterable[GenerationEvent],
    engine: Engine,
    prepared: PreparedInput,
    request: RequestOptions,
    options: argparse.Namespace,
) -> GenerationResult:
    extra: dict[str, object] = {"request_id": f"req_{secrets.token_hex(12)}"}
    if request.sampling is not None:
        extra["seed"] = request.sampling.seed
    identity = new_identity("chatcmpl", engine.model_id, engine.fingerprint, extra)
    stream = ChatStream(identity, has_usage=True)
    chunks, result = [], None
    for event in events:
        if isinstance(event, GenerationResult):
            result = event
            if options.return_token_ids:
                extra["prompt_token_ids"] = list(prepared.prompt.token_ids)
                extra["token_ids"] = list(event.token_ids)
        for chunk in stream.chunks(event):
            chunks.append(chunk)
            if options.output == "jsonl":
                print(json.dumps(chunk, ensure_ascii=False), flush=True)
    if result is None:
        raise ValueError("the request ended without a result")
    if options.output == "json":
        print(json.dumps(fold(chunks), ensure_ascii=False))
    return result
