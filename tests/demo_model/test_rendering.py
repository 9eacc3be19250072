"""Training text is, token for token, what inference reads and writes."""

import functools
import json
from collections.abc import Sequence

import pytest

from ninfer.frontend.frontend import Frontend, PromptOptions
from tools.demo_model.data.conversation import Conversation, Speaker, Turn
from tools.demo_model.data.encoding import TOKENIZER_FOLDER, encode_all, tokenizer
from tools.demo_model.data.mixture import skills
from tools.demo_model.data.rendering import render
from tools.demo_model.data.stream import held_out, samples
from tools.demo_model.evaluate import chat_of

_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)


@functools.cache
def demo_frontend() -> Frontend:
    """Frontend over the files a checkpoint of the demo model carries."""
    return Frontend({f"frontend/{name}": (TOKENIZER_FOLDER / name).read_bytes() for name in _FILES})


def _prompt(conversation: Conversation, turns: Sequence[Turn]) -> tuple[str, tuple[int, ...]]:
    options = PromptOptions(enable_thinking=conversation.is_thinking)
    prepared = demo_frontend().prepare(chat_of(conversation, turns), options)
    return prepared.text or "", prepared.prompt.token_ids


def _of_every_skill(count: int) -> list[Conversation]:
    return [found for skill in skills() for found in held_out(skill, count, seed=5)]


def _check_prompts(conversation: Conversation) -> None:
    """Before each learned piece stands exactly the prompt inference renders there."""
    pieces = render(conversation)
    token_ids, mask = next(iter(encode_all([conversation])))
    ends = [at for at, turn in enumerate(conversation.turns) if turn.speaker is Speaker.USER]
    answers = [
        at
        for at, turn in enumerate(conversation.turns)
        if turn.speaker is Speaker.ASSISTANT and at > ends[-1]
    ]
    places = [at for at, (_, is_learned) in enumerate(pieces) if is_learned]
    starts = [at for at in range(len(mask)) if mask[at] and not mask[at - 1]]
    assert len(answers) == len(places) == len(starts)
    for turn, piece, start in zip(answers, places, starts, strict=True):
        text, prompt_ids = _prompt(conversation, conversation.turns[:turn])
        assert "".join(part for part, _ in pieces[:piece]) == text
        assert tuple(token_ids[:start]) == prompt_ids


def test_prompt_of_every_skill_stands_before_what_is_learned() -> None:
    for conversation in _of_every_skill(6):
        _check_prompts(conversation)


@pytest.mark.slow
def test_prompts_of_thousands_of_conversations_are_the_rendered_ones() -> None:
    for conversation in samples(seed=9, start=0, count=5000):
        _check_prompts(conversation)


def test_samples_cover_thinking_tools_results_systems_and_several_turns() -> None:
    found = _of_every_skill(6)

    assert {conversation.is_thinking for conversation in found} == {True, False}
    assert any(conversation.tools for conversation in found)
    assert any(turn.speaker is Speaker.TOOL for one in found for turn in one.turns)
    assert any(one.tools and one.turns[0].speaker is Speaker.SYSTEM for one in found)
    assert any(sum(turn.speaker is Speaker.USER for turn in one.turns) > 2 for one in found)


def test_pieces_encode_to_the_tokens_of_the_whole_text() -> None:
    found = _of_every_skill(6)

    encoded = [ids for ids, _ in encode_all(found)]

    whole = ["".join(text for text, _ in render(conversation)) for conversation in found]
    assert encoded == [one.ids for one in tokenizer().encode_batch(whole)]


def test_learned_pieces_end_with_the_end_of_the_turn_and_are_what_a_session_reads() -> None:
    end = demo_frontend().tokenizer.find_added("<|im_end|>")

    for token_ids, mask in encode_all(_of_every_skill(6)):
        last = [token_ids[at] for at in range(len(mask) - 1) if mask[at] and not mask[at + 1]]
        assert last
        assert set(last) == {end}


def test_answers_read_back_through_the_output_session_are_the_turns() -> None:
    front = demo_frontend()
    for conversation in _of_every_skill(4):
        turn = conversation.turns[-1]
        chat = chat_of(conversation, conversation.prompt)
        options = PromptOptions(enable_thinking=conversation.is_thinking)
        session = front.open_session(front.prepare(chat, options))
        token_ids, mask = next(iter(encode_all([conversation])))
        start = max(at for at in range(len(mask)) if mask[at] and not mask[at - 1])
        answer = [token for token, learned in zip(token_ids, mask, strict=True) if learned]
        answer = answer[-sum(mask[start:]) :]

        session.commit(session.preview(answer, is_forced=False, is_budget_end=False))

        summary = session.summary()
        assert summary.content == turn.text
        assert (summary.reasoning or "").strip() == turn.thinking
        calls = [(call.name, json.loads(call.arguments)) for call in summary.tool_calls]
        assert calls == [(call.name, dict(call.arguments)) for call in turn.calls]
