import pytest

from ninfer.gateway.openai_reply import ChatStream, Json, ReplyIdentity, fold
from ninfer.generation import (
    Channel,
    FinishReason,
    GenerationEvent,
    GenerationResult,
    GenerationStart,
    OutputCommitted,
    OutputSummary,
    PrefillProgress,
    TextDelta,
    Timings,
    ToolCallArguments,
    ToolCallStart,
    Usage,
)

IDENTITY = ReplyIdentity("chatcmpl-1", 1764000000, "tiny-dense", "nf_0", {"seed": 17})


def result(
    finish: FinishReason = FinishReason.STOP, completion_tokens: int = 3
) -> GenerationResult:
    usage = Usage(
        prompt_tokens=10, cached_tokens=4, completion_tokens=completion_tokens, reasoning_tokens=1
    )
    summary = OutputSummary("", "", (), 1)
    return GenerationResult(finish, usage, Timings(0.0, 0.5, 0.25), (1, 2, 3), summary)


def stream(*events: GenerationEvent) -> list[Json]:
    chat = ChatStream(IDENTITY, has_usage=True)
    return [chunk for event in events for chunk in chat.chunks(event)]


def test_first_chunk_is_the_role_and_last_ones_are_finish_and_usage() -> None:
    chunks = stream(GenerationStart(10, 4), result())

    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 13
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)


def test_round_without_visible_text_sends_no_chunk() -> None:
    assert stream(OutputCommitted((5,), ())) == []


def test_thinking_and_content_of_one_round_share_a_chunk() -> None:
    deltas = (TextDelta(Channel.THINKING, "a"), TextDelta(Channel.CONTENT, "b"))

    chunks = stream(OutputCommitted((5, 6), deltas))

    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"reasoning_content": "a", "content": "b"}
    ]


def test_fold_joins_text_thinking_and_calls() -> None:
    reply = fold(
        stream(
            GenerationStart(10, 4),
            OutputCommitted((1,), (TextDelta(Channel.THINKING, "think"),)),
            OutputCommitted((2,), (TextDelta(Channel.CONTENT, "Hel"),)),
            OutputCommitted((3,), (TextDelta(Channel.CONTENT, "lo"),)),
            OutputCommitted((4,), (ToolCallStart(0, "call_a", "f"), ToolCallArguments(0, '{"x"'))),
            OutputCommitted((5,), (ToolCallArguments(0, ":1}"), ToolCallStart(1, "call_b", "g"))),
            OutputCommitted((6,), (ToolCallArguments(1, "{}"),)),
            result(FinishReason.TOOL_CALLS),
        )
    )

    message = reply["choices"][0]["message"]
    assert message["content"] == "Hello"
    assert message["reasoning_content"] == "think"
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "f", "arguments": '{"x":1}'},
        {"name": "g", "arguments": "{}"},
    ]
    assert reply["choices"][0]["finish_reason"] == "tool_calls"
    assert (reply["object"], reply["ninfer"]) == ("chat.completion", {"seed": 17})


def test_empty_answer_is_an_empty_string_and_null_only_beside_calls() -> None:
    empty = fold(stream(GenerationStart(10, 4), result(FinishReason.LENGTH)))
    called = fold(stream(OutputCommitted((4,), (ToolCallStart(0, "call_a", "f"),)), result()))

    assert empty["choices"][0]["message"]["content"] == ""
    assert "reasoning_content" not in empty["choices"][0]["message"]
    assert called["choices"][0]["message"]["content"] is None


def test_rates_count_intervals_and_are_zero_without_one() -> None:
    several = stream(result(completion_tokens=3))[-1]["timings"]
    single = stream(result(completion_tokens=1))[-1]["timings"]

    assert (several["prompt_n"], several["prompt_per_second"]) == (6, 12.0)
    assert several["predicted_per_second"] == 8.0
    assert single["predicted_per_second"] == 0.0


def test_progress_is_sent_only_when_asked_for() -> None:
    asked = ChatStream(IDENTITY, has_progress=True, clock=lambda: 7.0)
    first = asked.chunks(GenerationStart(10, 4))[1]["prompt_progress"]

    chunks = asked.chunks(PrefillProgress(8, 10))

    assert first == {"total": 10, "cache": 4, "processed": 4, "time_ms": 0.0}
    assert chunks[0]["prompt_progress"] == {**first, "processed": 8}
    assert ChatStream(IDENTITY).chunks(PrefillProgress(8, 10)) == []


def test_progress_never_follows_text() -> None:
    asked = ChatStream(IDENTITY, has_progress=True)
    asked.chunks(GenerationStart(10, 4))
    asked.chunks(OutputCommitted((1,), (TextDelta(Channel.CONTENT, "a"),)))

    assert asked.chunks(PrefillProgress(10, 10)) == []


@pytest.mark.parametrize(
    "event",
    [
        OutputCommitted((1,), (TextDelta(Channel.CONTENT, "a"),)),
        OutputCommitted((1,), ()),
        result(FinishReason.LENGTH),
    ],
)
def test_last_progress_is_the_whole_prompt(event: GenerationEvent) -> None:
    asked = ChatStream(IDENTITY, has_progress=True)
    asked.chunks(GenerationStart(10, 4))
    asked.chunks(PrefillProgress(9, 10))

    chunks = [*asked.chunks(event), *asked.chunks(result())]

    progress = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    assert [(p["processed"], p["total"]) for p in progress] == [(10, 10)]
    assert "prompt_progress" in chunks[0]
