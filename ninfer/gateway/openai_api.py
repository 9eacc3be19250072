"""OpenAI chat completion bodies to generation values, without any I/O.

Everything is checked here and in the frontend, before submission. Members are read in the order of
the contract's table. Source: the serving contract, sections 4 to 8.
"""

from typing import Any, Final

from ninfer.errors import RequestError, UnsupportedFeature
from ninfer.frontend.conversation import Conversation, ToolChoice
from ninfer.frontend.frontend import OutputOptions, PromptOptions
from ninfer.frontend.message_json import parse_messages, parse_tools
from ninfer.gateway.gateway_settings import GatewaySettings
from ninfer.gateway.json_fields import Fields
from ninfer.gateway.message_notes import leftover_members
from ninfer.gateway.openai_fields import (
    RequestHeaders,
    check_model,
    note_harmless,
    read_cache_members,
    read_max_tokens,
    read_stops,
    read_stream,
    refuse_what_is_not_offered,
    settle_unknown,
)
from ninfer.gateway.openai_reply import ChatReply, ChatStream, new_identity
from ninfer.gateway.request_context import RequestContext
from ninfer.gateway.request_facts import Endpoint
from ninfer.gateway.request_run import GenerationJob
from ninfer.gateway.sampling_fields import effective_sampling, read_sampling
from ninfer.gateway.structured_fields import read_openai_grammar, with_grammar
from ninfer.gateway.thinking_budget import with_default_budget
from ninfer.generation import shown
from ninfer.runtime import Engine, RequestOptions

EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_INT32_MAX: Final = (1 << 31) - 1
_SWITCHES: Final = ("enable_thinking", "preserve_thinking")


def translate_chat(
    body: dict[str, Any],
    engine: Engine,
    context: RequestContext,
    settings: GatewaySettings,
    headers: RequestHeaders,
) -> GenerationJob:
    """Read a chat completion body.

    Raises:
        RequestError: with the dotted path of the offending field.
    """
    fields = Fields(body)
    check_model(fields, engine.model_id, settings)
    refuse_what_is_not_offered(fields)
    _refuse_logprobs(fields)
    wanted = read_openai_grammar(fields)
    stream = read_stream(fields)
    max_tokens = read_max_tokens(
        fields, ("max_tokens", "max_completion_tokens"), settings.default_max_tokens
    )
    asked = read_sampling(fields, engine.frontend.tokenizer.addressable)
    output = _output_options(fields)
    has_progress = bool(fields.boolean("return_progress"))
    has_timings = bool(fields.boolean("timings_per_token"))
    cache, session_key = read_cache_members(fields, context, headers)
    prompt = read_prompt_options(fields, settings)
    conversation = read_conversation(fields, context)
    note_harmless(fields, context)
    settle_unknown(fields, context, is_strict=settings.is_strict)
    prepared = engine.frontend.prepare(conversation, prompt, max_tokens=engine.config.max_context)
    output = with_default_budget(output, prepared, engine, settings, max_tokens)
    output = with_grammar(output, wanted, engine.frontend)
    sampling = effective_sampling(asked, engine.sampling_preset(prepared), settings)
    extra = {"seed": sampling.seed, "request_id": context.request_id}
    identity = new_identity("chatcmpl", engine.model_id, engine.fingerprint, extra)
    return GenerationJob(
        endpoint=Endpoint.CHAT,
        prepared=prepared,
        options=RequestOptions(
            max_new_tokens=max_tokens, output=output, cache=cache, session_key=session_key
        ),
        sampling=sampling,
        reply=ChatReply(
            ChatStream(
                identity,
                has_usage=stream.has_usage,
                has_progress=has_progress and stream.is_stream,
                has_timings=has_timings and stream.is_stream,
            )
        ),
        is_stream=stream.is_stream,
        effort=prompt.reasoning_effort,
    )


def read_conversation(fields: Fields, context: RequestContext) -> Conversation:
    """Read ``messages``, ``tools`` and ``tool_choice``; images are acquired and checked.

    Raises:
        RequestError: a member is missing or invalid.
        UnsupportedFeature: a tool choice that would constrain the output, or a member of a message
            that would have to change the prompt.
    """
    if not fields.has("messages"):
        raise fields.missing("messages")
    tools = parse_tools(fields.raw("tools"))
    messages = parse_messages(fields.raw("messages"))
    context.ignored.extend(leftover_members(fields.raw("messages")))
    context.note_images(context.media.chat_images(fields.raw("messages"), context.prepare_until))
    return Conversation(messages, tools, _tool_choice(fields))


def read_prompt_options(fields: Fields, settings: GatewaySettings) -> PromptOptions:
    """Read how the conversation is rendered.

    Raises:
        RequestError: a switch has the wrong type, or two spellings of one disagree.
    """
    if fields.boolean("continue_final_message"):
        raise UnsupportedFeature(
            "continue_final_message is not supported yet", field="continue_final_message"
        )
    variables = fields.nested("chat_template_kwargs") or Fields({}, "chat_template_kwargs")
    thinking, preserve = (_switch(fields, variables, name) for name in _SWITCHES)
    effort = fields.choice("reasoning_effort", EFFORTS)
    if effort is None:
        effort = variables.choice("reasoning_effort", EFFORTS)
    if thinking is None and effort is None:
        thinking = settings.default_enable_thinking
    return PromptOptions(
        enable_thinking=thinking,
        preserve_thinking=settings.default_preserve_thinking if preserve is None else preserve,
        reasoning_effort=effort,
        template_variables={name: variables.raw(name) for name in variables.unknown()},
    )


def _output_options(fields: Fields) -> OutputOptions:
    parallel = fields.boolean("parallel_tool_calls")
    return OutputOptions(
        stop=read_stops(fields, "stop"),
        reasoning_stop=read_stops(fields, "reasoning_stop"),
        ignore_eos=bool(fields.boolean("ignore_eos")),
        thinking_budget=_thinking_budget(fields),
        parallel_tool_calls=parallel is not False,
    )


def _thinking_budget(fields: Fields) -> int | None:
    names = ("thinking_budget", "thinking_token_budget")
    values = [fields.integer(name, 0, _INT32_MAX) for name in names]
    given = [value for value in values if value is not None]
    if len(set(given)) > 1:
        raise RequestError(
            "thinking_budget and thinking_token_budget contradict",
            code="conflicting_parameters",
            field="thinking_budget",
        )
    return given[0] if given else None


def _refuse_logprobs(fields: Fields) -> None:
    count = fields.integer("top_logprobs", 0, 20)
    is_wanted = fields.boolean("logprobs")
    if count and not is_wanted:
        raise RequestError(
            f"top_logprobs is {count}; it needs logprobs to be true",
            code="conflicting_parameters",
            field="top_logprobs",
        )
    if is_wanted:
        raise UnsupportedFeature("logprobs is not supported yet", field="logprobs")


def _switch(fields: Fields, variables: Fields, name: str) -> bool | None:
    """A switch that may stand at the top level or among the template's variables."""
    first, second = fields.boolean(name), variables.boolean(name)
    if first is not None and second is not None and first is not second:
        raise RequestError(
            f"{name} and chat_template_kwargs.{name} contradict",
            code="conflicting_parameters",
            field=name,
        )
    return second if first is None else first


def _tool_choice(fields: Fields) -> ToolChoice:
    choice = fields.raw("tool_choice")
    if choice is None or choice == "auto":
        return ToolChoice.AUTO
    if choice == "none":
        return ToolChoice.NONE
    if not isinstance(choice, str | dict):
        raise RequestError(
            "tool_choice must be a string or an object", code="invalid_type", field="tool_choice"
        )
    kind = choice if isinstance(choice, str) else choice.get("type")
    if kind in ("required", "function", "allowed_tools"):
        raise UnsupportedFeature(
            f"tool_choice {kind} is not supported yet; use auto or none", field="tool_choice"
        )
    raise RequestError(
        f"tool_choice is {shown(kind)}; allowed is auto or none", field="tool_choice"
    )
