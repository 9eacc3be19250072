"""OpenAI chat replies out of generation events, without any I/O.

`ChatStream` turns events into stream chunks; `fold` turns all chunks of a request into the blocking
reply, so the two can never disagree. Knows no HTTP and no engine.
"""

import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ninfer.gateway.error_responses import ErrorReply, Family
from ninfer.gateway.event_stream import Frame
from ninfer.gateway.openai_timings import RunningTimings, timings_json, usage_json
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
)

Json = dict[str, Any]
DONE: Final = Frame("[DONE]")


@dataclass(frozen=True, slots=True)
class ReplyIdentity:
    """What is the same in every chunk of a reply.

    Attributes:
        reply_id: ``chatcmpl-`` or ``cmpl-``, and a random part.
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


def new_identity(kind: str, model: str, fingerprint: str, extra: Json) -> ReplyIdentity:
    """Identity of a reply made now; ``kind`` is what its id begins with."""
    reply_id = f"{kind}-{secrets.token_hex(12)}"
    return ReplyIdentity(reply_id, int(time.time()), model, fingerprint, extra)


class ChatStream:
    """Turns the events of one request into chat completion chunks, in order.

    Args:
        identity: members common to all chunks.
        has_usage: whether a usage chunk is sent (``stream_options.include_usage``).
        has_progress: whether prefill progress is sent (``return_progress``).
        has_timings: whether every delta carries timings so far (``timings_per_token``).
        clock: seconds, for timings of a running request.
    """

    def __init__(
        self,
        identity: ReplyIdentity,
        *,
        has_usage: bool = False,
        has_progress: bool = False,
        has_timings: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._identity = identity
        self._has_usage = has_usage
        self._has_progress = has_progress
        self._clock = clock
        self._timer = RunningTimings(clock) if has_timings else None
        self._started_at = 0.0
        self._cached_tokens = 0
        self._has_text = False
        self._prompt_tokens = 0
        self._progress_at = -1

    def chunks(self, event: GenerationEvent) -> list[Json]:
        """Return the chunks of one event, possibly none."""
        match event:
            case GenerationStart():
                return self._start(event)
            case PrefillProgress():
                return self._progress(event.processed_tokens, event.prompt_tokens)
            case OutputCommitted():
                return self._delta(event)
            case GenerationResult():
                return self._end(event)

    def _start(self, event: GenerationStart) -> list[Json]:
        self._started_at = self._clock()
        self._cached_tokens = event.reused_tokens
        self._prompt_tokens = event.prompt_tokens
        if self._timer is not None:
            self._timer.note_start(event)
        role = self._chunk({"role": "assistant", "content": ""}, None)
        return [role, *self._progress(event.reused_tokens, event.prompt_tokens)]

    def _delta(self, event: OutputCommitted) -> list[Json]:
        if self._timer is not None:
            self._timer.note_tokens(len(event.token_ids))
        # The round that gives the first token processes the last one of the prompt.
        read = self._progress(self._prompt_tokens, self._prompt_tokens)
        delta = _message_delta(event.deltas)
        if not delta:
            return read
        self._has_text = True
        chunk = self._chunk(delta, None)
        return [*read, chunk if self._timer is None else {**chunk, "timings": self._timer.so_far()}]

    def _end(self, result: GenerationResult) -> list[Json]:
        read = self._progress(self._prompt_tokens, self._prompt_tokens)  # nothing was wanted
        last = [*read, self._chunk({}, result.finish)]
        if self._has_usage:
            last.append({**self._common(), "choices": [], "usage": usage_json(result.usage)})
        last[-1]["timings"] = timings_json(result)
        last[-1]["ninfer"] = dict(self._identity.extra)
        return last

    def _progress(self, processed: int, total: int) -> list[Json]:
        """A progress event, unless nothing has moved or text is out already."""
        if not self._has_progress or self._has_text or processed <= self._progress_at:
            return []
        self._progress_at = processed
        progress = {
            "total": total,
            "cache": self._cached_tokens,
            "processed": processed,
            "time_ms": round((self._clock() - self._started_at) * 1e3, 3),
        }
        return [{**self._common(), "choices": [], "prompt_progress": progress}]

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


class ChatReply:
    """Frames of a chat completion; see `Reply` of the gateway."""

    def __init__(self, stream: ChatStream) -> None:
        self._stream = stream

    def frames(self, event: GenerationEvent) -> list[Frame]:
        """One frame a chunk; the result's are followed by ``[DONE]``."""
        frames = [Frame(chunk) for chunk in self._stream.chunks(event)]
        return [*frames, DONE] if isinstance(event, GenerationResult) else frames

    def failure(self, error: ErrorReply) -> list[Frame]:
        """The error as an event; no finish chunk."""
        return [Frame(error.body(Family.OPENAI, "")), DONE]

    def heartbeat(self) -> Frame | None:
        """A comment line."""
        return None

    def fold(self, frames: Sequence[Frame]) -> Json:
        """The blocking reply."""
        return fold(frame.data for frame in frames if not isinstance(frame.data, str))


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
