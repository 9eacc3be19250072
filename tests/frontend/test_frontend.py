"""The frontend over the golden checkpoints: exact ids, switches, limits, boundaries."""

import json
from typing import Any

import pytest

from ninfer.frontend.conversation import (
    Conversation,
)
from ninfer.frontend.frontend import PreparedInput, PromptOptions
from ninfer.frontend.message_json import parse_messages, parse_tools
from ninfer.generation import Channel, SamplingParams
from tests.support.frontends import CASES, cases, frontend

LATER_SYSTEM = [
    {"role": "user", "content": "Log entry 7 is red."},
    {"role": "assistant", "content": "Noted."},
    {"role": "system", "content": "Answer in one word."},
    {"role": "user", "content": "Which colour?"},
]
LAMP = {
    "type": "function",
    "function": {
        "name": "lamp_set",
        "parameters": {"type": "object", "properties": {"room": {"type": "string"}}},
    },
}


def prepare(messages: list[dict[str, Any]], **options: Any) -> PreparedInput:
    """Prepare messages given as JSON with the first golden frontend."""
    return frontend().prepare(Conversation(parse_messages(messages)), PromptOptions(**options))


def ask(text: str = "Hi", **options: Any) -> PreparedInput:
    """Prepare one question."""
    return prepare([{"role": "user", "content": text}], **options)


TEXT_CASES = [
    pytest.param(case, index, id=f"{case}-{index}") for case in CASES for index in range(4)
]


@pytest.mark.parametrize(("case", "index"), TEXT_CASES)
def test_golden_conversations_have_exactly_the_golden_ids(case: str, index: int) -> None:
    golden = cases(case, "chat_cases.json")[index]
    given = json.loads(json.dumps(golden["input"]))
    conversation = Conversation(parse_messages(given["messages"]), parse_tools(given.get("tools")))

    prepared = frontend(case).prepare(
        conversation, PromptOptions(enable_thinking=given.get("enable_thinking"))
    )

    assert prepared.text == golden["text"]
    assert list(prepared.prompt.token_ids) == golden["ids"]


def test_output_starts_where_the_rendered_prompt_leaves_off() -> None:
    assert ask().start is Channel.THINKING
    assert ask(enable_thinking=False).start is Channel.CONTENT
    assert ask(reasoning_effort="none").start is Channel.CONTENT


def test_b06_later_system_message_is_a_system_block_at_its_place() -> None:
    text = prepare(LATER_SYSTEM).text

    assert text is not None
    noted = "<|im_start|>assistant\nNoted.<|im_end|>\n"
    system = "<|im_start|>system\nAnswer in one word.<|im_end|>\n"
    assert noted + system + "<|im_start|>user\nWhich colour?<|im_end|>\n" in text


def test_publishers_sampling_values_and_end_tokens_are_known() -> None:
    assert frontend().sampling_defaults == SamplingParams(temperature=0.6, top_p=0.95, top_k=20)
    assert frontend().stop_ids == {479, 481}
