"""Anthropic replies out of generation events, without any I/O.

    message_start ping ( content_block_start content_block_delta* content_block_stop )*
    message_delta message_stop

`MessageStream` turns events into these; `fold` turns all of them into the blocking reply, so the
two can never disagree. At most one block is open at a time. Source: the serving contract, section
9.1.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ninfer.frontend.template_json import parse_json
from ninfer.gateway.error_responses import ErrorReply, Family
from ninfer.gateway.event_stream import Frame
from ninfer.gateway.partial_json import complete_members
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
class MessageIdentity:
    """What a reply says about itself.

    Attributes:
        message_id: ``msg_`` and a random part.
        model: the name the request used.
        request_id: named by errors inside the stream.
        max_tokens: budget the request asked for, before the context clamped it.
        shows_thinking: False sends thinking blocks with their signature only.
    """

    message_id: str
    model: str
    request_id: str
    max_tokens: int
    shows_thinking: bool = True


@dataclass(slots=True)
class _OpenBlock:
    """The block that is being sent; ``thinking`` collects what has to be signed."""

    kind: str
    thinking: list[str]


class MessageStream:
    """Events of one message; see `Reply` of the gateway.

    Args:
        identity: members of the reply.
        sign: signature of a thinking text.
    """

    def __init__(self, identity: MessageIdentity, sign: Callable[[str], str]) -> None:
        self._identity = identity
        self._sign = sign
        self._has_started = False
        self._open: _OpenBlock | None = None
        self._num_blocks = 0

    def frames(self, event: GenerationEvent) -> list[Frame]:
        """Frames of one event, possibly none."""
        match event:
            case GenerationStart():
                return [_frame(data) for data in self._start(event)]
            case PrefillProgress():
                return []
            case OutputCommitted():
                found: list[Json] = []
                for delta in event.deltas:
                    found += self._delta(delta)
                return [_frame(data) for data in found]
            case GenerationResult():
                return [_frame(data) for data in [*self._close(), *self._end(event)]]

    def failure(self, error: ErrorReply) -> list[Frame]:
        """The error as the last event; the open block stays open."""
        return [_frame(error.body(Family.ANTHROPIC, self._identity.request_id))]

    def heartbeat(self) -> Frame | None:
        """A ping, but a comment line before the message has started."""
        return _frame({"type": "ping"}) if self._has_started else None

    def fold(self, frames: Sequence[Frame]) -> Json:
        """The blocking reply."""
        return fold([frame.data for frame in frames if not isinstance(frame.data, str)])

    def _start(self, event: GenerationStart) -> list[Json]:
        self._has_started = True
        usage = Usage(event.prompt_tokens, event.reused_tokens, 0, 0)
        message: Json = {
            "id": self._identity.message_id,
            "type": "message",
            "role": "assistant",
            "model": self._identity.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(usage),
        }
        return [{"type": "message_start", "message": message}, {"type": "ping"}]

    def _delta(self, delta: OutputDelta) -> list[Json]:
        match delta:
            case TextDelta():
                return self._text(delta)
            case ToolCallStart():
                block = {"id": delta.call_id, "name": delta.name, "input": {}}
                return [*self._close(), self._block_start("tool_use", block)]
            case ToolCallArguments():
                return [self._piece({"type": "input_json_delta", "partial_json": delta.fragment})]

    def _text(self, delta: TextDelta) -> list[Json]:
        if delta.channel is Channel.CONTENT:
            opening = self._switch("text", {"text": ""})
            return [*opening, self._piece({"type": "text_delta", "text": delta.text})]
        opening = self._switch("thinking", {"thinking": "", "signature": ""})
        if self._open is not None:
            self._open.thinking.append(delta.text)
        if not self._identity.shows_thinking:
            return opening
        return [*opening, self._piece({"type": "thinking_delta", "thinking": delta.text})]

    def _switch(self, kind: str, block: Json) -> list[Json]:
        if self._open is not None and self._open.kind == kind:
            return []
        return [*self._close(), self._block_start(kind, block)]

    def _block_start(self, kind: str, block: Json) -> Json:
        self._open = _OpenBlock(kind, [])
        self._num_blocks += 1
        return {
            "type": "content_block_start",
            "index": self._num_blocks - 1,
            "content_block": {"type": kind, **block},
        }

    def _piece(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": self._num_blocks - 1, "delta": delta}

    def _close(self) -> list[Json]:
        block, self._open = self._open, None
        if block is None:
            return []
        stop = {"type": "content_block_stop", "index": self._num_blocks - 1}
        if block.kind != "thinking":
            return [stop]
        signature = self._sign("".join(block.thinking))
        return [self._piece({"type": "signature_delta", "signature": signature}), stop]

    def _end(self, result: GenerationResult) -> list[Json]:
        reason = self._stop_reason(result)
        matched = result.summary.matched_stop if reason == "stop_sequence" else None
        delta = {"stop_reason": reason, "stop_sequence": matched}
        return [
            {"type": "message_delta", "delta": delta, "usage": _usage(result.usage)},
            {"type": "message_stop"},
        ]

    def _stop_reason(self, result: GenerationResult) -> str:
        match result.finish:
            case FinishReason.STOP:
                return "end_turn" if result.summary.matched_stop is None else "stop_sequence"
            case FinishReason.TOOL_CALLS:
                return "tool_use"
            case FinishReason.LENGTH | FinishReason.CANCELLED:
                is_cut = result.usage.completion_tokens >= self._identity.max_tokens
                return "max_tokens" if is_cut else "model_context_window_exceeded"


def fold(events: Sequence[Json]) -> Json:
    """Fold all events of one message into the blocking reply."""
    message: Json = {}
    blocks: list[Json] = []
    arguments: dict[int, list[str]] = {}
    for event in events:
        match event["type"]:
            case "message_start":
                message = dict(event["message"])
            case "content_block_start":
                blocks.append(dict(event["content_block"]))
            case "content_block_delta":
                _fold_piece(blocks, arguments, event["index"], event["delta"])
            case "message_delta":
                message |= event["delta"]
                message["usage"] = event["usage"]
            case _:
                pass
    for index, fragments in arguments.items():
        text = "".join(fragments)
        try:
            blocks[index]["input"] = parse_json(text)
        except ValueError:
            # The budget ended inside the call: what is complete of it is kept.
            blocks[index]["input"] = complete_members(text)
    return {**message, "content": blocks}


def _fold_piece(
    blocks: list[Json], arguments: dict[int, list[str]], index: int, delta: Json
) -> None:
    match delta["type"]:
        case "text_delta":
            blocks[index]["text"] += delta["text"]
        case "thinking_delta":
            blocks[index]["thinking"] += delta["thinking"]
        case "signature_delta":
            blocks[index]["signature"] = delta["signature"]
        case _:
            arguments.setdefault(index, []).append(delta["partial_json"])


def _usage(usage: Usage) -> Json:
    """Spell token counts the Anthropic way; the three inputs add up to the prompt."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def _frame(data: Json) -> Frame:
    return Frame(data, data["type"])
