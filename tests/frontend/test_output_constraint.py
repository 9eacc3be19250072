"""Where a constraint begins, what it allows, and that asking for it changes nothing."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.errors import NinferError, RequestError, UnsupportedFeature
from ninfer.frontend.conversation import ToolDefinition
from ninfer.frontend.frontend import OutputOptions, PreparedInput
from ninfer.frontend.output_constraint import MaskVocabulary, bits_of
from ninfer.frontend.output_session import SessionSettings, TokenOutputSession
from ninfer.generation import Channel, FinishReason, TokenMask
from tests.support.frontends import frontend
from tests.support.quick_examples import QUICK
from tests.support.scripted_matcher import ScriptedMatcher, allowed_by, scripted_grammar

FRONTEND = frontend()
TOKENIZER = FRONTEND.tokenizer
STOPS = sorted(FRONTEND.stop_ids)
WORDS = TOKENIZER.encode("red, blue", parse_special=False)
BREAK = TOKENIZER.encode("\n", parse_special=False)[0]
(CLOSE,) = TOKENIZER.encode("</think>", parse_special=True)


def session(
    matcher: ScriptedMatcher,
    *,
    start: Channel = Channel.CONTENT,
    budget: int | None = None,
) -> TokenOutputSession:
    settings = SessionSettings(
        start=start,
        stop_ids=FRONTEND.stop_ids,
        think_end=CLOSE,
        grammar=scripted_grammar(TOKENIZER, STOPS, matcher),
        thinking_budget=budget,
        forced_close=() if budget is None else FRONTEND.forced_close(budget),
    )
    return TokenOutputSession(settings, TOKENIZER)


def say(output: TokenOutputSession, *tokens: int, is_forced: bool = False) -> FinishReason | None:
    preview = output.preview(tokens, is_forced=is_forced, is_budget_end=False)
    output.commit(preview)
    return preview.finish


def allowed(output: TokenOutputSession) -> set[int]:
    mask = output.token_mask()
    assert mask is not None
    return allowed_by(mask)


def layout_tokens(most: int) -> set[int]:
    wanted = {b"\n" * count for count in range(1, most + 1)}
    return {t for t in range(TOKENIZER.addressable) if TOKENIZER.piece(t) in wanted}


def test_an_output_without_grammar_is_free() -> None:
    assert TokenOutputSession(SessionSettings(), TOKENIZER).token_mask() is None


def test_the_grammar_decides_from_the_first_token_of_content() -> None:
    output = session(ScriptedMatcher(WORDS))

    for token in WORDS:
        assert allowed(output) == {token}
        say(output, token)

    assert allowed(output) == set(STOPS)
    assert say(output, STOPS[0]) is FinishReason.STOP
    assert output.summary().content == "red, blue"


def test_thinking_is_free_and_its_layout_is_no_part_of_the_grammar() -> None:
    matcher = ScriptedMatcher(WORDS)
    output = session(matcher, start=Channel.THINKING)

    assert output.token_mask() is None
    say(output, *TOKENIZER.encode("hm\n", parse_special=False))
    assert output.token_mask() is None
    say(output, CLOSE)
    assert allowed(output) == {WORDS[0]} | layout_tokens(2)
    say(output, BREAK)
    assert allowed(output) == {WORDS[0]} | layout_tokens(1)
    say(output, BREAK)
    assert allowed(output) == {WORDS[0]}
    say(output, *WORDS[:1])
    assert allowed(output) == {WORDS[1]}
    assert matcher.accepted == WORDS[:1]


def test_the_layout_may_be_left_out() -> None:
    output = session(ScriptedMatcher(WORDS), start=Channel.THINKING)

    say(output, CLOSE)
    say(output, WORDS[0])

    assert allowed(output) == {WORDS[1]}


def test_a_break_of_the_grammar_waits_until_the_layout_is_over() -> None:
    output = session(ScriptedMatcher([BREAK, WORDS[0]]), start=Channel.THINKING)
    say(output, CLOSE)

    say(output, BREAK)
    say(output, BREAK)

    assert allowed(output) == {BREAK}
    say(output, BREAK)
    assert allowed(output) == {WORDS[0]}


def test_a_forced_close_starts_the_constraint_too() -> None:
    output = session(ScriptedMatcher(WORDS), start=Channel.THINKING, budget=1)
    say(output, WORDS[0])

    say(output, *output.forced_suffix(), is_forced=True)

    assert allowed(output) == {WORDS[0]} | layout_tokens(2)


def test_a_preview_leaves_the_matcher_alone() -> None:
    matcher = ScriptedMatcher(WORDS)
    output = session(matcher)

    output.preview(WORDS[:1], is_forced=False, is_budget_end=False)
    before = output.token_mask()
    preview = output.preview(WORDS[:1], is_forced=False, is_budget_end=False)

    assert matcher.accepted == []
    assert output.token_mask() == before
    output.commit(preview)
    assert matcher.accepted == WORDS[:1]


def test_a_token_the_grammar_does_not_allow_ends_the_request_alone() -> None:
    output = session(ScriptedMatcher(WORDS))
    preview = output.preview(WORDS[1:2], is_forced=False, is_budget_end=False)

    with pytest.raises(NinferError) as caught:
        output.commit(preview)

    assert caught.value.code == "internal_error"


def test_a_matcher_that_breaks_says_so_with_the_mask() -> None:
    output = session(ScriptedMatcher(WORDS, breaks_at=1))
    output.token_mask()

    with pytest.raises(NinferError, match="broke"):
        output.token_mask()


def test_a_grammar_that_allows_nothing_is_an_error_not_free_text() -> None:
    output = session(ScriptedMatcher([CLOSE]))

    with pytest.raises(NinferError, match="no token"):
        output.token_mask()


def test_a_cut_output_needs_no_complete_grammar() -> None:
    output = session(ScriptedMatcher(WORDS))

    preview = output.preview(WORDS[:1], is_forced=False, is_budget_end=True)
    output.commit(preview)

    assert preview.finish is FinishReason.LENGTH


@QUICK
@given(st.data())
def test_every_split_of_the_output_ends_at_the_same_place(data: st.DataObject) -> None:
    text = "hm</think>\n\nred, blue"
    tokens = TOKENIZER.encode(text, parse_special=True)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(tokens) - 1))))
    matcher = ScriptedMatcher(WORDS)
    output = session(matcher, start=Channel.THINKING)

    for start, end in pairwise([0, *cuts, len(tokens)]):
        say(output, *tokens[start:end])

    assert matcher.accepted == WORDS
    assert allowed(output) == set(STOPS)
    assert output.summary().content == "red, blue"


def test_tokens_are_sorted_by_what_they_spell() -> None:
    vocabulary = MaskVocabulary.of(TOKENIZER, STOPS)

    def in_bits(bits: int) -> set[int]:
        mask: TokenMask = bits.to_bytes(4 * vocabulary.num_words, "little")
        return allowed_by(mask)

    assert in_bits(vocabulary.ends) == set(STOPS)
    assert in_bits(vocabulary.ordinary) == set(range(TOKENIZER.addressable)) - set(TOKENIZER.added)
    assert all(TOKENIZER.piece(t).startswith(b"\n") for t in in_bits(vocabulary.break_openers))
    assert BREAK in in_bits(vocabulary.break_openers)


@QUICK
@given(st.sets(st.integers(0, 3000)))
def test_a_set_of_tokens_survives_as_bits(tokens: set[int]) -> None:
    assert allowed_by(bits_of(tokens).to_bytes(400, "little")) == tokens


def test_a_grammar_and_ignored_end_tokens_contradict() -> None:
    grammar = scripted_grammar(TOKENIZER, STOPS, ScriptedMatcher(WORDS))
    prepared = FRONTEND.prepare_raw("x")

    with pytest.raises(RequestError) as caught:
        FRONTEND.open_session(prepared, OutputOptions(grammar=grammar, ignore_eos=True))

    assert caught.value.code == "conflicting_parameters"


def test_a_grammar_and_tools_are_not_offered_together() -> None:
    grammar = scripted_grammar(TOKENIZER, STOPS, ScriptedMatcher(WORDS))
    raw = FRONTEND.prepare_raw("x")
    prepared = PreparedInput(raw.prompt, None, tools=(ToolDefinition.of("f"),))

    with pytest.raises(UnsupportedFeature):
        FRONTEND.open_session(prepared, OutputOptions(grammar=grammar))
