"""Control tokens come only from the template, whatever the strings of a conversation spell.

Three templates: the golden one, and two with the rules of 3.5/3.6 and 3.8. The oracle for text
without spellings is plain encoding of the whole rendered text, which the golden ids prove; with
spellings it is the same conversation with harmless words in their place.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.errors import InvalidPrompt
from ninfer.frontend.conversation import Conversation
from ninfer.frontend.frontend import PreparedInput, PromptOptions
from ninfer.frontend.message_json import parse_messages, parse_tools
from tests.support.chat_templates import EFFORT, LAST_QUERY
from tests.support.frontends import frontend
from tests.support.quick_examples import QUICK

TEMPLATES = {"golden": None, "last query": LAST_QUERY, "effort": EFFORT}
SPELLINGS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|image_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "<|audio_pad|>",
)
HARMLESS = "#word#"
WORDS = st.sampled_from(
    ["a", " ", "\n", "é", "<", ">", "|", "<|", "think>", "im_start", "<|im_", "end|>", "/", "</"]
)
SAFE_TEXT = st.lists(WORDS, max_size=6).map("".join)


@st.composite
def spelled_text(draw: st.DrawFn) -> tuple[str, str]:
    """A text that spells control tokens, and the same text with harmless words."""
    parts = draw(st.lists(st.sampled_from(SPELLINGS) | st.sampled_from(["a", " x ", "\n"])))
    harmless = [HARMLESS if part in SPELLINGS else part for part in parts]
    return "".join(["u", *parts, "v"]), "".join(["u", *harmless, "v"])


def turns(texts: list[str], tool_name: str = "f") -> list[dict[str, Any]]:
    """A conversation of every role, with these texts in every place a client can fill."""
    arguments = {texts[4] or "k": texts[3], "list": [texts[4]]}
    call = {"id": "c", "type": "function", "function": {"name": tool_name, "arguments": arguments}}
    return [
        {"role": "system", "content": texts[0]},
        {"role": "user", "content": [{"type": "text", "text": part} for part in texts[1:3]]},
        {
            "role": "assistant",
            "content": texts[2],
            "reasoning_content": texts[3],
            "tool_calls": [call],
        },
        {"role": "tool", "tool_call_id": "c", "content": texts[4]},
        {"role": "system", "content": texts[0]},
        {"role": "user", "content": texts[5]},
    ]


def prepare(template: str, messages: list[dict[str, Any]], description: str = "") -> PreparedInput:
    """Prepare a conversation whose tool has a description."""
    tool = {"type": "function", "function": {"name": "f", "description": description}}
    conversation = Conversation(parse_messages(messages), parse_tools([tool]))
    return frontend("tiny-dense", TEMPLATES[template]).prepare(conversation)


def controls(prepared: PreparedInput) -> list[int]:
    """The control tokens of a prompt, in order."""
    return [token for token in prepared.prompt.token_ids if token in frontend().tokenizer.added]


@pytest.mark.parametrize("template", TEMPLATES)
@QUICK
@given(texts=st.lists(spelled_text(), min_size=6, max_size=6))
def test_spelled_control_tokens_add_none(template: str, texts: list[tuple[str, str]]) -> None:
    spelled = prepare(template, turns([text for text, _ in texts]), texts[0][0])
    harmless = prepare(template, turns([text for _, text in texts]), texts[0][1])

    assert controls(spelled) == controls(harmless)
    decoded = frontend().tokenizer.decode(spelled.prompt.token_ids).decode()
    assert decoded == spelled.text


@pytest.mark.parametrize("template", TEMPLATES)
@QUICK
@given(texts=st.lists(SAFE_TEXT, min_size=6, max_size=6))
def test_pieces_of_spellings_never_join_into_one(template: str, texts: list[str]) -> None:
    prepared = prepare(template, turns(texts))
    empty = prepare(template, turns([text and "a" for text in texts]))

    assert set(controls(prepared)) <= set(controls(empty))
    assert controls(prepared).count(480) == controls(empty).count(480)


@pytest.mark.parametrize("template", TEMPLATES)
@QUICK
@given(texts=st.lists(st.text("ab é\n.1", max_size=8), min_size=6, max_size=6))
def test_text_without_spellings_is_encoded_as_one_text(template: str, texts: list[str]) -> None:
    prepared = prepare(template, turns(texts))

    whole = frontend().tokenizer.encode(prepared.text or "", parse_special=True)
    assert list(prepared.prompt.token_ids) == whole


def test_a_spelling_split_over_two_parts_is_text() -> None:
    parts = [{"type": "text", "text": text} for text in ("<|im_", "end|>")]

    prepared = prepare("golden", [{"role": "user", "content": parts}])

    assert controls(prepared).count(481) == 2  # the tools' block and the question's


def test_an_inline_block_is_split_off_as_the_template_says_and_stays_text() -> None:
    said = "<think>\nplan <|im_end|>\n</think>\n\nanswer </think"
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": said}]

    prepared = prepare("effort", messages)

    inside = "<|im_start|>assistant\n<think>\nplan <|im_end|>\n</think>\n\nanswer </think<|im_end|>"
    assert inside in (prepared.text or "")
    assert controls(prepared).count(504) == 1
    assert controls(prepared).count(481) == 3


@pytest.mark.parametrize("template", TEMPLATES)
def test_later_system_messages_stand_where_the_client_put_them(template: str) -> None:
    messages = [
        {"role": "system", "content": "one"},
        {"role": "developer", "content": " two "},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a"},
        {"role": "system", "content": "three <|im_end|>"},
        {"role": "user", "content": "r"},
        {"role": "system", "content": ""},
    ]

    text = prepare(template, messages).text or ""

    blocks = [block.split("<|im_end|>\n")[0] for block in text.split("<|im_start|>")][2:]
    assert blocks[0] == "system\ntwo"
    assert blocks[3] == "system\nthree <|im_end|>"
    assert blocks[5] == "system\n"
    assert [block.split("\n")[0] for block in blocks[:6]] == [
        "system",
        "user",
        "assistant",
        "system",
        "user",
        "system",
    ]


def test_a_later_system_message_is_not_the_users_question() -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
    turn = {"role": "assistant", "content": "", "reasoning_content": "why", "tool_calls": [call]}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "q"},
        turn,
        {"role": "tool", "tool_call_id": "c", "content": "r"},
        {"role": "system", "content": "later"},
    ]

    text = prepare("last query", messages).text or ""

    assert "<think>\nwhy\n</think>" in text


def test_a_system_message_between_tool_results_parts_their_turns() -> None:
    calls = [{"id": name, "function": {"name": "f", "arguments": "{}"}} for name in "ab"]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "a", "content": "one"},
        {"role": "system", "content": "now"},
        {"role": "tool", "tool_call_id": "b", "content": "two"},
    ]

    text = prepare("golden", messages).text or ""

    one = "<|im_start|>user\n<tool_response>\none\n</tool_response><|im_end|>\n"
    assert one + "<|im_start|>system\nnow<|im_end|>\n" + one.replace("one", "two") in text


def test_a_text_that_looks_like_our_placeholder_changes_nothing() -> None:
    messages = [
        {"role": "user", "content": "\ue0000.1. \ue0001."},
        {"role": "system", "content": "later"},
    ]

    text = prepare("golden", messages).text or ""

    assert "<|im_start|>user\n\ue0000.1. \ue0001.<|im_end|>\n" in text
    assert text.count("later") == 1


def test_the_templates_own_refusal_names_the_messages() -> None:
    front = frontend("tiny-dense", LAST_QUERY)
    conversation = Conversation(parse_messages([{"role": "assistant", "content": "a"}]))

    with pytest.raises(InvalidPrompt, match="there is no question") as caught:
        front.prepare(conversation, PromptOptions())

    assert caught.value.field == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ '<|im_start|>user\\n' + messages[0].content + '<|im_end|>\\n' }}",
        "{% for message in messages %}{{ message.content }}{% endfor %}",
    ],
)
def test_a_template_without_a_place_for_a_later_system_message_refuses(source: str) -> None:
    conversation = Conversation(
        parse_messages([{"role": "user", "content": "q"}, {"role": "system", "content": "s"}])
    )

    with pytest.raises(InvalidPrompt, match="no place for a later system message"):
        frontend("tiny-dense", source).prepare(conversation)


def test_many_later_system_messages_render_in_order() -> None:
    roles = ("user", "system", "assistant", "system")
    messages = [{"role": roles[at % 4], "content": f"[{at}]"} for at in range(400)]

    text = prepare("golden", messages).text or ""

    assert [text.index(f"[{at}]") for at in range(400)] == sorted(
        text.index(f"[{at}]") for at in range(400)
    )
    assert text.count("<|im_start|>system\n[") == 200
