"""OpenAI text completions: a raw prompt in, plain text out, without any I/O.

No template, no tools, no channels. The blocking reply is the fold of the chunks. Source: the
serving contract, section 4.6.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from ninfer.errors import RequestError, UnsupportedFeature
from ninfer.frontend.frontend import OutputOptions, PreparedInput
from ninfer.gateway.error_responses import ErrorReply, Family
from ninfer.gateway.event_stream import Frame
from ninfer.gateway.gateway_settings import GatewaySettings
from ninfer.gateway.json_body import json_kind
from ninfer.gateway.json_fields import Fields
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
from ninfer.gateway.openai_reply import DONE, Json, ReplyIdentity, new_identity
from ninfer.gateway.openai_timings import timings_json, usage_json
from ninfer.gateway.request_context import RequestContext
from ninfer.gateway.request_facts import Endpoint
from ninfer.gateway.request_run import GenerationJob
from ninfer.gateway.sampling_fields import effective_sampling, read_sampling
from ninfer.gateway.structured_fields import read_openai_grammar, with_grammar
from ninfer.generation import (
    FinishReason,
    GenerationEvent,
    GenerationResult,
    OutputCommitted,
    TextDelta,
)
from ninfer.runtime import Engine, RequestOptions

DEFAULT_MAX_TOKENS: Final = 16


def translate_completion(
    body: dict[str, Any],
    engine: Engine,
    context: RequestContext,
    settings: GatewaySettings,
    headers: RequestHeaders,
) -> GenerationJob:
    """Read a text completion body.

    Raises:
        RequestError: with the path of the offending field.
    """
    fields = Fields(body)
    check_model(fields, engine.model_id, settings)
    refuse_what_is_not_offered(fields)
    if fields.integer("logprobs", 0, 20) is not None:
        raise UnsupportedFeature("logprobs is not supported yet", field="logprobs")
    stream = read_stream(fields)
    max_tokens = read_max_tokens(fields, ("max_tokens",), DEFAULT_MAX_TOKENS)
    asked = read_sampling(fields, engine.frontend.tokenizer.addressable)
    output = OutputOptions(
        stop=read_stops(fields, "stop"), ignore_eos=bool(fields.boolean("ignore_eos"))
    )
    wanted = read_openai_grammar(fields)
    cache, session_key = read_cache_members(fields, context, headers)
    prepared = _prepared(fields, engine)
    note_harmless(fields, context)
    settle_unknown(fields, context, is_strict=settings.is_strict)
    output = with_grammar(output, wanted, engine.frontend)
    sampling = effective_sampling(asked, engine.sampling_preset(prepared), settings)
    extra = {"seed": sampling.seed, "request_id": context.request_id}
    identity = new_identity("cmpl", engine.model_id, engine.fingerprint, extra)
    return GenerationJob(
        endpoint=Endpoint.COMPLETIONS,
        prepared=prepared,
        options=RequestOptions(
            max_new_tokens=max_tokens, output=output, cache=cache, session_key=session_key
        ),
        sampling=sampling,
        reply=CompletionReply(identity, has_usage=stream.has_usage),
        is_stream=stream.is_stream,
    )


class CompletionReply:
    """Frames of a text completion; see `Reply` of the gateway."""

    def __init__(self, identity: ReplyIdentity, *, has_usage: bool) -> None:
        self._identity = identity
        self._has_usage = has_usage

    def frames(self, event: GenerationEvent) -> list[Frame]:
        """Text of a round, or the end."""
        match event:
            case OutputCommitted():
                text = "".join(d.text for d in event.deltas if isinstance(d, TextDelta))
                return [Frame(self._chunk(text, None))] if text else []
            case GenerationResult():
                return self._end(event)
            case _:
                return []

    def failure(self, error: ErrorReply) -> list[Frame]:
        """The error as an event; no finish chunk."""
        return [Frame(error.body(Family.OPENAI, "")), DONE]

    def heartbeat(self) -> Frame | None:
        """A comment line."""
        return None

    def fold(self, frames: Sequence[Frame]) -> Json:
        """The blocking reply."""
        return _fold(frame.data for frame in frames if not isinstance(frame.data, str))

    def _end(self, result: GenerationResult) -> list[Frame]:
        last = [self._chunk("", result.finish)]
        if self._has_usage:
            last.append({**self._common(), "choices": [], "usage": usage_json(result.usage)})
        last[-1]["timings"] = timings_json(result)
        last[-1]["ninfer"] = dict(self._identity.extra)
        return [*(Frame(chunk) for chunk in last), DONE]

    def _chunk(self, text: str, finish: FinishReason | None) -> Json:
        reason = None if finish is None else finish.value
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
        return {**self._common(), "choices": [choice]}

    def _common(self) -> Json:
        common: Json = {
            "id": self._identity.reply_id,
            "object": "text_completion",
            "created": self._identity.created,
            "model": self._identity.model,
            "system_fingerprint": self._identity.fingerprint,
        }
        return {**common, "usage": None} if self._has_usage else common


def _fold(chunks: Iterable[Json]) -> Json:
    reply: Json = {}
    text: list[str] = []
    finish: str | None = None
    for chunk in chunks:
        reply |= {name: value for name, value in chunk.items() if name != "choices"}
        for choice in chunk["choices"]:
            text.append(choice["text"])
            finish = choice["finish_reason"] or finish
    choice = {"index": 0, "text": "".join(text), "logprobs": None, "finish_reason": finish}
    tail: Json = {name: reply.pop(name) for name in ("usage", "timings", "ninfer") if name in reply}
    return {**reply, "choices": [choice], **tail}


def _prepared(fields: Fields, engine: Engine) -> PreparedInput:
    prompt = fields.raw("prompt")
    parses_special = bool(fields.boolean("parse_special"))
    if prompt is None:
        raise fields.missing("prompt")
    if isinstance(prompt, str):
        return engine.frontend.prepare_raw(
            prompt, parse_special=parses_special, max_tokens=engine.config.max_context
        )
    if not isinstance(prompt, list):
        raise RequestError(
            f"prompt is {json_kind(prompt)}; it must be a string or a list of token ids",
            code="invalid_type",
            field="prompt",
        )
    if not prompt:
        raise RequestError("prompt is empty", field="prompt")
    if isinstance(prompt[0], str | list):
        raise UnsupportedFeature(
            "a list of prompts is not supported yet; send one request for each", field="prompt"
        )
    return engine.frontend.prepare_tokens(prompt)
