"""OpenAI chat replies out of generation events, without any I/O.

`ChatStream` turns events into stream chunks; `fold` turns all chunks of a request into the blocking
reply, so the two can never disagree. Knows no HTTP and no engine.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ninfer.generation import (
    Channel,
    FinishReason,
    GenerationEvent,
    GenerationResult,
    GenerationStart,
    OutputCommitted,
    OutputDelta,
    PrefillProgress,
    TextDelta,
    ToolCallArguments,
    ToolCallStart,
    Usage,
)

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReplyIdentity:
    """What is the same in every chunk of a reply.

    Attributes:
        reply_id: ``chatcmpl-`` and a random part.
        created: seconds since the epoch.
        model: public id.
        fingerprint: changes exactly when something that can change bits changes.
        extra: members of the ``ninfer`` object, for instance the effective seed.
    """

    reply_id: str
    created: int
    model: str
    fingerprint: str
    extra: Json


class ChatStream:
    """Turns the events of one request into chat completion chunks, in order.

    Args:
        identity: members common to all chunks.
        has_usage: whether a usage chunk is sent (``stream_options.include_usage``).
        has_progress: whether prefill progress is sent (``return_progress``).
    """

    def __init__(
        self, identity: ReplyIdentity, *, has_usage: bool = False, has_progress: bool = False
    ) -> None:
        self._identity = identity
        self._has_usage = has_usage
        self._has_progress = has_progress
        self._cached_tokens = 0

    def chunks(self, event: GenerationEvent) -> list[Json]:
        """Return the chunks of one event, possibly none."""
        match event:
            case GenerationStart():
                self._cached_tokens = event.reused_tokens
                return [self._chunk({"role": "assistant", "content": ""}, None)]
            case PrefillProgress():
                return [self._progress(event)] if self._has_progress else []
            case OutputCommitted():
                delta = _message_delta(event.deltas)
                return [self._chunk(delta, None)] if delta else []
            case GenerationResult():
                return self._end(event)

    def _end(self, result: GenerationResult) -> list[Json]:
        last = [self._chunk({}, result.finish)]
        if self._has_usage:
            last.append({**self._common(), "choices": [], "usage": usage_json(result.usage)})
        last[-1]["timings"] = timings_json(result)
        last[-1]["ninfer"] = dict(self._identity.extra)
        return last

    def _progress(self, event: PrefillProgress) -> Json:
        progress = {
            "total": event.prompt_tokens,
            "cache": self._cached_tokens,
            "processed": event.processed_tokens,
        }
        return {**self._common(), "choices": [], "prompt_progress": progress}

    def _chunk(self, delta: Json, finish: FinishReason | None) -> Json:
        reason = None if finish is None else finish.value
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return {**self._common(), "choices": [choice]}

    def _common(self) -> Json:
        common: Json = {
            "id": self._identity.reply_id,
            "object": "chat.completion.chunk",
            "created": self._identity.created,
            "model": self._identity.model,
            "system_fingerprint": self._identity.fingerprint,
        }
        return {**common, "usage": None} if self._has_usage else common


def fold(chunks: Iterable[Json]) -> Json:
    """Fold all chunks of one request, usage chunk included, into the blocking reply."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: list[Json] = []
    reply: Json = {}
    finish: str | None = None
    for chunk in chunks:
        reply = {**reply, **{name: value for name, value in chunk.items() if name != "choices"}}
        for choice in chunk["choices"]:
            delta = choice["delta"]
            content.append(delta.get("content", ""))
            reasoning.append(delta.get("reasoning_content", ""))
            _fold_calls(calls, delta.get("tool_calls", ()))
            finish = choice["finish_reason"] or finish
    text = "".join(content)
    message: Json = {"role": "assistant", "content": text or (None if calls else "")}
    if any(reasoning):
        message["reasoning_content"] = "".join(reasoning)
    message["refusal"] = None
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "finish_reason": finish, "logprobs": None, "message": message}
    tail: Json = {name: reply.pop(name) for name in ("usage", "timings", "ninfer") if name in reply}
    reply.pop("prompt_progress", None)
    return {**reply, "object": "chat.completion", "choices": [choice], **tail}


def usage_json(usage: Usage) -> Json:
    """Spell token counts the OpenAI way."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def timings_json(result: GenerationResult) -> Json:
    """Spell timings; a rate over no interval is zero."""
    usage, timings = result.usage, result.timings
    computed = usage.prompt_tokens - usage.cached_tokens
    return {
        "cache_n": usage.cached_tokens,
        "prompt_n": computed,
        "prompt_ms": round(timings.prefill_s * 1e3, 3),
        "prompt_per_second": _rate(computed, timings.prefill_s),
        "predicted_n": usage.completion_tokens,
        "predicted_ms": round(timings.decode_s * 1e3, 3),
        "predicted_per_second": _rate(usage.completion_tokens - 1, timings.decode_s),
    }


def _rate(count: int, seconds: float) -> float:
    return round(count / seconds, 3) if count > 0 and seconds > 0 else 0.0


def _message_delta(deltas: Sequence[OutputDelta]) -> Json:
    """Merge the deltas of one round into one message delta."""
    message: Json = {}
    for delta in deltas:
        match delta:
            case TextDelta():
                is_content = delta.channel is Channel.CONTENT
                name = "content" if is_content else "reasoning_content"
                message[name] = message.get(name, "") + delta.text
            case ToolCallStart():
                function = {"name": delta.name, "arguments": ""}
                call = {"index": delta.index, "id": delta.call_id, "type": "function"}
                message.setdefault("tool_calls", []).append({**call, "function": function})
            case ToolCallArguments():
                _append_arguments(message.setdefault("tool_calls", []), delta)
    return message


def _append_arguments(calls: list[Json], delta: ToolCallArguments) -> None:
    if calls and calls[-1]["index"] == delta.index:
        calls[-1]["function"]["arguments"] += delta.fragment
    else:
        calls.append({"index": delta.index, "function": {"arguments": delta.fragment}})


def _fold_calls(calls: list[Json], deltas: Sequence[Json]) -> None:
    for delta in deltas:
        if "id" in delta:
            function = dict(delta["function"])
            calls.append({"id": delta["id"], "type": "function", "function": function})
        else:
            calls[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
