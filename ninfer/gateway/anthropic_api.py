"""Anthropic message bodies to generation values, without any I/O.

Everything is checked here and in the frontend, before submission. One reading serves generation and
counting, so that the two can never disagree. Source: the serving contract, section 9.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ninfer.errors import RequestError
from ninfer.frontend.frontend import OutputOptions, PreparedInput, PromptOptions
from ninfer.frontend.tool_calls import CallIds
from ninfer.gateway.anthropic_blocks import AnthropicConversation, read_anthropic_conversation
from ninfer.gateway.anthropic_fields import (
    ThinkingChoice,
    ToolUse,
    read_cache,
    read_effort,
    read_model,
    read_stop_sequences,
    read_thinking,
    read_tool_choice,
    settle_members,
)
from ninfer.gateway.anthropic_stream import MessageIdentity, MessageStream
from ninfer.gateway.anthropic_tools import renamed, tool_path
from ninfer.gateway.gateway_settings import GatewaySettings, SamplingChoices
from ninfer.gateway.json_fields import Fields
from ninfer.gateway.media_source import check_image_count
from ninfer.gateway.request_context import RequestContext
from ninfer.gateway.request_facts import Endpoint
from ninfer.gateway.request_run import GenerationJob
from ninfer.gateway.sampling_fields import effective_sampling, read_sampling
from ninfer.gateway.structured_fields import WantedGrammar, read_anthropic_grammar, with_grammar
from ninfer.gateway.thinking_budget import with_default_budget
from ninfer.generation import CacheMode
from ninfer.runtime import Engine, RequestOptions

_INT32_MAX = (1 << 31) - 1
_NAMES = {
    "reasoning_effort": "output_config.effort",
    "enable_thinking": "thinking",
    "thinking_budget": "thinking.budget_tokens",
}


@dataclass(frozen=True, slots=True)
class MessageHeaders:
    """Headers that say something about a messages request."""

    session_id: str | None = None
    cache: str | None = None


@dataclass(frozen=True, slots=True)
class _MessagesBody:
    """A body that was read completely."""

    model: str
    max_tokens: int | None
    is_stream: bool
    sampling: SamplingChoices
    stops: tuple[str, ...]
    thinking: ThinkingChoice
    effort: str | None
    tool_use: ToolUse
    grammar: WantedGrammar | None
    cache: CacheMode
    session_key: str | None
    conversation: AnthropicConversation


def translate_messages(
    body: dict[str, Any],
    engine: Engine,
    context: RequestContext,
    settings: GatewaySettings,
    headers: MessageHeaders,
    sign: Callable[[str], str],
) -> GenerationJob:
    """Read a messages body.

    Raises:
        RequestError: with the path of the offending field.
    """
    read = _read(body, engine, context, settings, headers, settings.default_max_tokens)
    max_tokens = settings.default_max_tokens if read.max_tokens is None else read.max_tokens
    prepared = _prepared(read, engine, settings, max_tokens=engine.config.max_context)
    output = OutputOptions(
        stop=read.stops,
        thinking_budget=read.thinking.budget_tokens,
        parallel_tool_calls=read.tool_use.is_parallel,
        call_ids=CallIds(secrets.token_bytes(16), "toolu_"),
    )
    try:
        room = engine.frontend.output_room(prepared.prompt, max_tokens, engine.config.max_context)
        engine.frontend.check_thinking_budget(prepared, output.thinking_budget, room)
        output = with_default_budget(output, prepared, engine, settings, max_tokens)
        output = with_grammar(output, read.grammar, engine.frontend)
    except RequestError as error:
        raise renamed(error, _path_in(read.conversation)) from error
    identity = MessageIdentity(
        message_id=f"msg_{secrets.token_hex(12)}",
        model=read.model,
        request_id=context.request_id,
        max_tokens=max_tokens,
        shows_thinking=read.thinking.is_shown,
    )
    return GenerationJob(
        endpoint=Endpoint.MESSAGES,
        prepared=prepared,
        options=RequestOptions(
            max_new_tokens=max_tokens,
            output=output,
            cache=read.cache,
            session_key=read.session_key,
        ),
        sampling=effective_sampling(read.sampling, engine.sampling_preset(prepared), settings),
        reply=MessageStream(identity, sign),
        is_stream=read.is_stream,
        effort=read.effort,
    )


def count_tokens(
    body: dict[str, Any],
    engine: Engine,
    context: RequestContext,
    settings: GatewaySettings,
    headers: MessageHeaders,
) -> dict[str, Any]:
    """Count the prompt tokens a messages body would use.

    Raises:
        RequestError: with the path of the offending field.
    """
    read = _read(body, engine, context, settings, headers, None)
    return {"input_tokens": len(_prepared(read, engine, settings).prompt.token_ids)}


def _read(
    body: dict[str, Any],
    engine: Engine,
    context: RequestContext,
    settings: GatewaySettings,
    headers: MessageHeaders,
    default_max_tokens: int | None,
) -> _MessagesBody:
    fields = Fields(body)
    max_tokens = fields.integer("max_tokens", 1, _INT32_MAX)
    limit = default_max_tokens if max_tokens is None else max_tokens
    tool_use = read_tool_choice(fields)
    cache, session_key = read_cache(fields, headers.session_id, headers.cache)
    conversation = read_anthropic_conversation(
        fields, tool_use, keeps_billing_header=settings.keeps_billing_header
    )
    read = _MessagesBody(
        model=read_model(fields, engine.model_id),
        max_tokens=max_tokens,
        is_stream=bool(fields.boolean("stream")),
        sampling=read_sampling(fields, engine.frontend.tokenizer.addressable, hottest=1.0),
        stops=read_stop_sequences(fields),
        thinking=read_thinking(fields, context, limit),
        effort=read_effort(fields, context),
        tool_use=tool_use,
        grammar=read_anthropic_grammar(fields),
        cache=cache,
        session_key=session_key,
        conversation=conversation,
    )
    context.ignored.extend(conversation.ignored)
    settle_members(fields, context, settings)
    _check_begun_answer(read)
    _check_images(conversation, context)
    return read


def _check_begun_answer(read: _MessagesBody) -> None:
    if read.grammar is not None and read.conversation.is_prefill:
        raise RequestError(
            "output_config.format contradicts a final assistant message: the format is that of a "
            "whole answer",
            code="conflicting_parameters",
            field="output_config.format",
        )


def _check_images(conversation: AnthropicConversation, context: RequestContext) -> None:
    """Acquire every image, so that a bad one is named before anything else is said about it."""
    check_image_count(len(conversation.images), "messages")
    media = context.media
    found = []
    for image in conversation.images:
        acquire = media.from_url if image.is_url else media.from_base64
        found.append(acquire(image.text, image.path, context.prepare_until))
    context.note_images(found)


def _prepared(
    read: _MessagesBody, engine: Engine, settings: GatewaySettings, max_tokens: int | None = None
) -> PreparedInput:
    """Render the conversation; without ``max_tokens`` it may have any length, to be counted."""
    conversation = read.conversation
    options = PromptOptions(
        enable_thinking=_enables_thinking(read, settings),
        preserve_thinking=settings.default_preserve_thinking,
        reasoning_effort=read.effort,
        continues_final=conversation.is_prefill,
    )
    try:
        return engine.frontend.prepare(conversation.conversation, options, max_tokens=max_tokens)
    except RequestError as error:
        raise renamed(error, _path_in(conversation)) from error


def _enables_thinking(read: _MessagesBody, settings: GatewaySettings) -> bool | None:
    if read.thinking.is_asked or read.thinking.is_enabled is not None:
        return read.thinking.is_enabled
    if read.conversation.is_prefill:
        # An answer that has begun cannot think any more, and nobody asked for it.
        return False
    return None if read.effort is not None else settings.default_enable_thinking


def _path_in(conversation: AnthropicConversation) -> Callable[[str], str]:
    def path_of(path: str) -> str:
        return _NAMES.get(path) or tool_path(conversation.path_of(path))

    return path_of
