"""Preview and commit, thinking budget, accepted tokens, counts: a session as the engine uses it."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.errors import InvariantError
from ninfer.generation import Channel, FinishReason, TextDelta, ToolCallArguments
from tests.support.call_corpus import TOOLS
from tests.support.frontends import fold, frontend, ids_of, open_session, run_groups
from tests.support.output_corpus import PING
from tests.support.quick_examples import QUICK

TOKENIZER = frontend().tokenizer
THINK_END = TOKENIZER.find_added("</think>")
TURN_END = TOKENIZER.find_added("<|im_end|>")
MARKUP = [
    *["<tool_call>", "</tool_call>", "<think>", "</think>", "<|im_start|>", "<|audio_pad|>"],
    *["\n", "\n<function=ping>", "<function=write_file>", "\n<parameter=body>", "<parameter=path>"],
    *["</parameter>", "</function>", "x", " ", "é", "🦔", "stop", "<|im_end|>"],
]
OUTPUTS = st.lists(
    st.sampled_from(MARKUP).map(ids_of)
    | st.lists(st.integers(0, TOKENIZER.addressable - 1), max_size=3),
    max_size=25,
).map(lambda parts: [token for part in parts for token in part])


def thinking_session(**options: Any) -> Any:
    """A session that begins inside the thinking block."""
    return open_session(tools=TOOLS, start=Channel.THINKING, **options)


def byte_tokens(*pieces: bytes) -> list[list[int]]:
    """One group of single-byte tokens for each piece."""
    of_byte = {TOKENIZER.piece(token): token for token in range(TOKENIZER.addressable)}
    return [[of_byte[bytes([byte])] for byte in piece] for piece in pieces]


B01 = [b"\xf0\x9f", b"\xa6\x94", b" ok", b"\xe2\x82", b"\xac"]


@QUICK
@given(st.sets(st.integers(0, 12)))
def test_b01_no_half_character_in_any_grouping(cuts: set[int]) -> None:
    tokens = [token for group in byte_tokens(*B01) for token in group]
    edges = [0, *sorted(cuts), len(tokens)]
    groups = [tokens[a:b] for a, b in itertools.pairwise(edges)]

    folded = run_groups(open_session(), groups, is_budget=True)

    assert folded.summary.content == "🦔 ok€"
    assert all("�" not in delta.text for delta in folded.deltas if isinstance(delta, TextDelta))
    assert folded.finish is FinishReason.LENGTH


def test_b01_a_character_cut_by_the_budget_is_one_replacement() -> None:
    folded = run_groups(open_session(), byte_tokens(*B01[:4]), is_budget=True)

    assert folded.summary.content == "🦔 ok�"
    assert folded.finish is FinishReason.LENGTH


def test_b02_nothing_of_a_stop_string_is_sent() -> None:
    session = open_session(stop=("spoon, fo",))
    pieces = ["kettle, s", "poon", ", f", "ork, END"]

    folded = run_groups(session, [ids_of(piece) for piece in pieces])

    sent = [delta.text for delta in folded.deltas if isinstance(delta, TextDelta)]
    assert sent == ["kettle, "]
    assert folded.finish is FinishReason.STOP
    assert folded.summary.matched_stop == "spoon, fo"


def test_b02_tokens_behind_the_completed_match_are_not_accepted() -> None:
    session = open_session(stop=("bc",))
    tokens = [token for char in "abcde" for token in ids_of(char)]

    preview = session.preview(tokens, is_forced=False, is_budget_end=False)

    assert (preview.accepted, preview.finish) == (3, FinishReason.STOP)


@pytest.mark.parametrize(
    ("start", "content", "reasoning"),
    [(Channel.THINKING, "", "720 has"), (Channel.CONTENT, "720 has", "")],
)
def test_b05_unfinished_thinking_is_reasoning_and_nothing_else(
    start: Channel, content: str, reasoning: str
) -> None:
    folded = run_groups(open_session(start=start), [ids_of("720 has")], is_budget=True)

    assert (folded.summary.content, folded.summary.reasoning) == (content, reasoning)
    assert folded.finish is FinishReason.LENGTH


def test_a_string_value_streams_while_it_comes() -> None:
    session = open_session(tools=TOOLS)
    text = "<tool_call>\n<function=write_file>\n<parameter=body>\nline one\nline two\n</para"

    folded = run_groups(session, [[token] for token in ids_of(text)])

    fragments = [d.fragment for d in folded.deltas if isinstance(d, ToolCallArguments)]
    assert "".join(fragments) == '{"body":"line one\\nline two'
    assert len(fragments) > 5


def test_a_value_that_is_no_text_comes_in_one_piece() -> None:
    session = open_session(tools=TOOLS)
    text = (
        "<tool_call>\n<function=plan_route>\n<parameter=stops>\n[1,\n2]\n</parameter>\n</function>"
    )

    folded = run_groups(session, [[token] for token in ids_of(text + "\n</tool_call>")])

    fragments = [d.fragment for d in folded.deltas if isinstance(d, ToolCallArguments)]
    assert fragments == ['{"stops":', "[1,\n2]}"]


@settings(QUICK, max_examples=150)
@given(OUTPUTS, st.sampled_from(Channel), st.data())
def test_any_tokens_never_fail_and_any_grouping_means_the_same(
    tokens: list[int], start: Channel, data: st.DataObject
) -> None:
    options: dict[str, Any] = {
        "tools": data.draw(st.sampled_from([(), TOOLS])),
        "start": start,
        "stop": data.draw(st.sampled_from([(), ("stop",), ("x\n", "é<")])),
        "reasoning_stop": data.draw(st.sampled_from([(), ("stop",)])),
        "ignore_eos": data.draw(st.booleans()),
        "parallel_tool_calls": data.draw(st.booleans()),
    }
    cuts = data.draw(st.sets(st.integers(0, max(len(tokens) - 1, 0)), max_size=6))
    edges = [0, *sorted(cuts), len(tokens)]
    groups = [tokens[a:b] for a, b in itertools.pairwise(edges)]

    single = run_groups(open_session(**options), [[t] for t in tokens], is_budget=True)
    grouped = run_groups(open_session(**options), groups, is_budget=True)

    assert single.summary == grouped.summary
    assert (single.finish, single.accepted) == (grouped.finish, grouped.accepted)
    assert fold(single.deltas) == fold(grouped.deltas)
    content, reasoning, calls = fold(single.deltas)
    summary = single.summary
    assert (summary.content, summary.reasoning, summary.tool_calls) == (content, reasoning, calls)


@QUICK
@given(OUTPUTS, OUTPUTS, st.sampled_from(Channel))
def test_a_preview_changes_nothing(first: list[int], other: list[int], start: Channel) -> None:
    plain, probed = (open_session(tools=TOOLS, start=start) for _ in range(2))
    for token in first:
        expected = plain.preview([token], is_forced=False, is_budget_end=False)
        for tokens in ([*other, token], [token, *other], other or [token]):
            probed.preview(tokens, is_forced=False, is_budget_end=True)
        preview = probed.preview([token], is_forced=False, is_budget_end=False)

        assert (preview.accepted, preview.finish) == (expected.accepted, expected.finish)
        assert probed.commit(preview) == plain.commit(expected)
        assert probed.summary() == plain.summary()
        if preview.finish is not None:
            break


@pytest.mark.parametrize("start", Channel)
def test_a_preview_inside_a_call_changes_nothing(start: Channel) -> None:
    session = open_session(tools=TOOLS, start=start)
    run_groups(session, [ids_of("<tool_call>\n<function=write_file>\n<parameter=body>\nx")])

    session.preview(
        ids_of("wrong\n</parameter>\n</function>\n</tool_call>"),
        is_forced=False,
        is_budget_end=True,
    )
    folded = run_groups(session, [ids_of("y\n</parameter>\n</function>\n</tool_call><|im_end|>")])

    assert [call.arguments for call in folded.summary.tool_calls] == ['{"body":"xy"}']


def test_only_the_newest_preview_can_be_committed_and_only_once() -> None:
    session = open_session()
    old = session.preview(ids_of("a"), is_forced=False, is_budget_end=False)
    new = session.preview(ids_of("b"), is_forced=False, is_budget_end=False)

    with pytest.raises(InvariantError):
        session.commit(old)
    session.commit(new)
    with pytest.raises(InvariantError):
        session.commit(new)

    assert session.summary().content == "b"


@pytest.mark.parametrize("tokens", [[], [512], [-1]])
def test_impossible_tokens_are_our_own_fault(tokens: list[int]) -> None:
    with pytest.raises(InvariantError):
        open_session().preview(tokens, is_forced=False, is_budget_end=False)


def test_a_finished_output_takes_no_more_tokens() -> None:
    session = open_session()
    run_groups(session, [ids_of("a<|im_end|>")])

    with pytest.raises(InvariantError):
        session.preview(ids_of("b"), is_forced=False, is_budget_end=False)


def test_a_closed_turn_is_a_boundary() -> None:
    session = open_session()

    preview = session.preview(ids_of("ab<|im_end|>"), is_forced=False, is_budget_end=False)

    assert preview.boundaries == (preview.accepted,)


def test_a_spent_budget_asks_for_the_closing_text() -> None:
    session = thinking_session(thinking_budget=3)
    run_groups(session, [ids_of("a"), ids_of("b")])
    assert session.forced_suffix() == ()
    run_groups(session, [ids_of("c")])

    forced = session.forced_suffix()
    preview = session.preview(forced, is_forced=True, is_budget_end=False)
    session.commit(preview)
    folded = run_groups(session, [ids_of("\n\nanswer<|im_end|>")])

    assert forced == frontend().forced_close(3)
    assert forced[-1] == THINK_END
    assert preview.accepted == len(forced)
    assert session.forced_suffix() == ()
    closing = TOKENIZER.decode(forced[:-1]).decode().removesuffix("\n")
    assert folded.summary.reasoning == "abc" + closing
    assert folded.summary.content == "answer"
    assert folded.summary.reasoning_tokens == 3 + len(forced) - 1


def test_no_budget_asks_for_nothing() -> None:
    session = thinking_session()
    run_groups(session, [ids_of("a long thought")])

    assert session.forced_suffix() == ()


def test_a_budget_of_nothing_closes_at_once_and_says_nothing() -> None:
    session = thinking_session(thinking_budget=0)

    forced = session.forced_suffix()
    session.commit(session.preview(forced, is_forced=True, is_budget_end=False))
    folded = run_groups(session, [ids_of("\n\nyes<|im_end|>")])

    assert forced == (*ids_of("\n"), THINK_END)
    assert folded.summary.reasoning == ""
    assert folded.summary.content == "yes"


@pytest.mark.parametrize("last", ["</think>", "<|im_end|>"])
def test_a_natural_end_at_the_budget_wins(last: str) -> None:
    session = thinking_session(thinking_budget=2)
    run_groups(session, [ids_of("ab" + last)])

    assert session.forced_suffix() == ()


def test_the_total_limit_at_the_budget_wins() -> None:
    session = thinking_session(thinking_budget=2)
    folded = run_groups(session, [ids_of("a"), ids_of("b")], is_budget=True)

    assert folded.finish is FinishReason.LENGTH
    assert session.forced_suffix() == ()


def test_a_round_beyond_the_budget_is_accepted_whole() -> None:
    session = thinking_session(thinking_budget=1)
    preview = session.preview(ids_of("a") + ids_of("b"), is_forced=False, is_budget_end=False)
    session.commit(preview)

    assert preview.accepted == 2
    assert session.forced_suffix() == frontend().forced_close(1)


def test_forced_text_is_not_searched_for_stop_strings() -> None:
    session = thinking_session(thinking_budget=1, reasoning_stop=("budget",))
    run_groups(session, [ids_of("a")])

    preview = session.preview(session.forced_suffix(), is_forced=True, is_budget_end=False)

    assert preview.finish is None


def test_a_call_drafted_when_the_budget_is_spent_is_thinking() -> None:
    session = thinking_session(thinking_budget=1)
    run_groups(session, [ids_of("a\n" + PING)])

    session.commit(session.preview(session.forced_suffix(), is_forced=True, is_budget_end=False))
    folded = run_groups(session, [ids_of("\n\nyes<|im_end|>")])

    assert folded.summary.tool_calls == ()
    assert folded.summary.reasoning.startswith("a\n" + PING)


def test_reasoning_tokens_are_those_inside_the_block() -> None:
    session = thinking_session()
    inside = ids_of("some thought\n")

    folded = run_groups(session, [inside, ids_of("</think>\n\nyes<|im_end|>")])

    assert folded.summary.reasoning_tokens == len(inside)


def test_a_spelled_closing_token_is_text() -> None:
    session = thinking_session()
    spelled = TOKENIZER.encode("a </think> b", parse_special=False)

    folded = run_groups(session, [spelled], is_budget=True)

    assert folded.summary.reasoning == "a </think> b"


def test_one_round_gives_one_delta_of_text() -> None:
    session = open_session()

    deltas = session.commit(
        session.preview(ids_of("several tokens"), is_forced=False, is_budget_end=False)
    )

    assert deltas == (TextDelta(Channel.CONTENT, "several tokens"),)


@QUICK
@given(st.text(max_size=30), st.data())
def test_any_string_value_survives_the_round_trip(body: str, data: st.DataObject) -> None:
    text = (
        f"<tool_call>\n<function=write_file>\n<parameter=body>\n{body}\n</parameter>\n</function>"
    )
    tokens = TOKENIZER.encode(text + "\n", parse_special=True) + ids_of("</tool_call><|im_end|>")
    size = data.draw(st.integers(1, 9))

    folded = run_groups(
        open_session(tools=TOOLS),
        [tokens[at : at + size] for at in range(0, len(tokens), size)],
    )

    (call,) = folded.summary.tool_calls
    expected = TOKENIZER.decode(TOKENIZER.encode(body + "\n", parse_special=True)).decode()
    assert json.loads(call.arguments) == {"body": expected.removesuffix("\n")}
