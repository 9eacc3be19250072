"""Order and content of the events of a message, and their fold."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.gateway.anthropic_stream import MessageIdentity, MessageStream
from ninfer.gateway.error_responses import ErrorReply
from ninfer.gateway.event_stream import Frame
from ninfer.generation import (
    Channel,
    FinishReason,
    GenerationResult,
    GenerationStart,
    OutputCommitted,
    OutputDelta,
    OutputSummary,
    PrefillProgress,
    TextDelta,
    Timings,
    ToolCallArguments,
    ToolCallStart,
    Usage,
)
from tests.support.quick_examples import QUICK

IDENTITY = MessageIdentity("msg_1", "any", "req_1", max_tokens=5)
THOUGHT = TextDelta(Channel.THINKING, "hm")
TEXT = TextDelta(Channel.CONTENT, "yes")


def result(
    finish: FinishReason = FinishReason.STOP, *, stop: str | None = None, completion: int = 3
) -> GenerationResult:
    return GenerationResult(
        finish,
        Usage(10, 4, completion, 1),
        Timings(0.0, 0.0, 0.0),
        (),
        OutputSummary("", "", (), 1, stop),
    )


def run(
    rounds: Sequence[Sequence[OutputDelta]], end: GenerationResult | None = None
) -> tuple[list[Any], dict[str, Any]]:
    """All events of a message, and their fold."""
    stream = MessageStream(IDENTITY, lambda text: f"signed {text}")
    frames: list[Frame] = stream.frames(GenerationStart(10, 4))
    frames += stream.frames(PrefillProgress(9, 10))
    for deltas in rounds:
        frames += stream.frames(OutputCommitted((1,), tuple(deltas)))
    frames += stream.frames(end or result())
    return [frame.data for frame in frames], stream.fold(frames)


def test_a_message_without_output_has_no_block() -> None:
    events, message = run([])

    assert [event["type"] for event in events] == [
        "message_start",
        "ping",
        "message_delta",
        "message_stop",
    ]
    assert message["content"] == []
    assert message["stop_reason"] == "end_turn"


def test_the_prompt_is_split_into_what_was_read_and_what_was_reused() -> None:
    events, message = run([[TEXT]])

    split = {
        "input_tokens": 6,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
    }
    assert events[0]["message"]["usage"] == {**split, "output_tokens": 0}
    assert events[-2]["usage"] == {**split, "output_tokens": 3}
    assert message["usage"] == events[-2]["usage"]


def test_thinking_is_signed_before_its_block_closes() -> None:
    events, message = run([[THOUGHT], [THOUGHT, TEXT]])

    kinds = [event.get("delta", {}).get("type", event["type"]) for event in events[2:-2]]
    assert kinds == [
        "content_block_start",
        "thinking_delta",
        "thinking_delta",
        "signature_delta",
        "content_block_stop",
        "content_block_start",
        "text_delta",
        "content_block_stop",
    ]
    assert message["content"] == [
        {"type": "thinking", "thinking": "hmhm", "signature": "signed hmhm"},
        {"type": "text", "text": "yes"},
    ]


def test_thinking_that_is_not_to_be_shown_keeps_its_signature() -> None:
    stream = MessageStream(replace(IDENTITY, shows_thinking=False), lambda text: f"signed {text}")
    frames = stream.frames(GenerationStart(10, 4))
    frames += stream.frames(OutputCommitted((1,), (THOUGHT, TEXT)))
    frames += stream.frames(result())

    assert stream.fold(frames)["content"] == [
        {"type": "thinking", "thinking": "", "signature": "signed hm"},
        {"type": "text", "text": "yes"},
    ]


def test_a_call_without_arguments_sends_one_delta_of_an_empty_object() -> None:
    call: list[OutputDelta] = [ToolCallStart(0, "toolu_a", "go"), ToolCallArguments(0, "{}")]

    events, message = run([call], result(FinishReason.TOOL_CALLS))

    assert events[2]["content_block"] == {
        "type": "tool_use",
        "id": "toolu_a",
        "name": "go",
        "input": {},
    }
    assert events[3]["delta"] == {"type": "input_json_delta", "partial_json": "{}"}
    assert message["content"][0]["input"] == {}
    assert message["stop_reason"] == "tool_use"


def test_a_call_that_was_cut_keeps_its_complete_members() -> None:
    fragments = ('{"a": [1, 2], "b": "un', "finished")
    rounds: list[list[OutputDelta]] = [[ToolCallStart(0, "toolu_a", "go")]]
    rounds += [[ToolCallArguments(0, fragment)] for fragment in fragments]

    _, message = run(rounds, result(FinishReason.LENGTH, completion=5))

    assert message["content"][0]["input"] == {"a": [1, 2]}
    assert message["stop_reason"] == "max_tokens"


@pytest.mark.parametrize(
    ("end", "reason", "sequence"),
    [
        (result(), "end_turn", None),
        (result(stop="END"), "stop_sequence", "END"),
        (result(FinishReason.TOOL_CALLS, stop="END"), "tool_use", None),
        (result(FinishReason.LENGTH, completion=5), "max_tokens", None),
        (result(FinishReason.LENGTH, completion=4), "model_context_window_exceeded", None),
    ],
)
def test_the_stop_reason_tells_the_causes_apart(
    end: GenerationResult, reason: str, sequence: str | None
) -> None:
    events, message = run([[TEXT]], end)

    assert events[-2]["delta"] == {"stop_reason": reason, "stop_sequence": sequence}
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)


def test_a_ping_is_sent_only_once_the_message_has_started() -> None:
    stream = MessageStream(IDENTITY, str)
    before = stream.heartbeat()

    stream.frames(GenerationStart(10, 0))

    assert before is None
    assert stream.heartbeat() == Frame({"type": "ping"}, "ping")


def test_a_failure_is_an_error_event_and_nothing_behind_it() -> None:
    stream = MessageStream(IDENTITY, str)
    stream.frames(GenerationStart(10, 0))
    stream.frames(OutputCommitted((1,), (TEXT,)))

    (frame,) = stream.failure(ErrorReply("request_timeout", "too slow"))

    assert frame.name == "error"
    assert frame.data == {
        "type": "error",
        "error": {"type": "timeout_error", "message": "too slow"},
        "request_id": "req_1",
    }


@st.composite
def outputs(draw: st.DrawFn) -> list[list[OutputDelta]]:
    """Rounds of an output as a session may give it: calls in order, arguments after their start."""
    rounds: list[list[OutputDelta]] = []
    num_calls = 0
    for _ in range(draw(st.integers(0, 5))):
        deltas: list[OutputDelta] = []
        for kind in draw(st.lists(st.sampled_from("tcx"), max_size=4)):
            if kind == "x":
                members = draw(st.dictionaries(st.text(max_size=3), st.integers(), max_size=2))
                whole = json.dumps(members)
                cut = draw(st.integers(0, len(whole)))
                deltas.append(ToolCallStart(num_calls, f"toolu_{num_calls}", "go"))
                pieces = [piece for piece in (whole[:cut], whole[cut:]) if piece]
                deltas += [ToolCallArguments(num_calls, piece) for piece in pieces]
                num_calls += 1
            else:
                channel = Channel.THINKING if kind == "t" else Channel.CONTENT
                deltas.append(TextDelta(channel, draw(st.text(min_size=1, max_size=4))))
        rounds.append(deltas)
    return rounds


@QUICK
@given(outputs())
def test_blocks_open_and_close_one_after_another_and_hold_their_own_deltas(
    rounds: list[list[OutputDelta]],
) -> None:
    events, message = run(rounds)

    fits = {"thinking": {"thinking_delta", "signature_delta"}, "text": {"text_delta"}}
    fits["tool_use"] = {"input_json_delta"}
    open_kind: str | None = None
    index = -1
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert open_kind is None
                open_kind, index = event["content_block"]["type"], index + 1
            case "content_block_delta":
                assert open_kind is not None
                assert event["delta"]["type"] in fits[open_kind]
                assert event["index"] == index
            case "content_block_stop":
                assert open_kind is not None
                open_kind = None
            case _:
                assert open_kind is None
    assert open_kind is None
    said = [delta.text for deltas in rounds for delta in deltas if isinstance(delta, TextDelta)]
    shown = [block.get("text", block.get("thinking", "")) for block in message["content"]]
    assert "".join(shown) == "".join(said)
    assert all(block.get("text") != "" for block in message["content"])
