"""The frontend over the golden checkpoints: exact ids, switches, limits, boundaries."""

import json
from typing import Any

import pytest

from ninfer.errors import CheckpointError, ContextLengthExceeded, RequestError, UnsupportedFeature
from ninfer.frontend.conversation import (
    Conversation,
    MediaKind,
    MediaPart,
    Message,
    Role,
    ToolChoice,
)
from ninfer.frontend.frontend import Frontend, OutputOptions, PreparedInput, PromptOptions
from ninfer.frontend.message_json import parse_messages, parse_tools
from ninfer.generation import BoundaryKind, Channel, SamplingParams
from tests.support.chat_templates import EFFORT, LAST_QUERY
from tests.support.frontends import CASES, cases, frontend, resources

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


def text_before(front: Frontend, prepared: PreparedInput, frontier: int) -> str:
    """Text of a prompt's first tokens."""
    return front.tokenizer.decode(prepared.prompt.token_ids[:frontier]).decode()


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


def test_turn_closure_stands_before_thinking_that_the_next_turn_drops() -> None:
    front = frontend("tiny-dense", LAST_QUERY)
    messages = parse_messages(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "lamp on"},
            {"role": "assistant", "reasoning_content": "a call", "content": "Done."},
        ]
    )

    prepared = front.prepare(Conversation(messages))

    places = {boundary.kind: boundary.frontier for boundary in prepared.prompt.boundaries}
    assert text_before(front, prepared, places[BoundaryKind.SHARED_STABLE]).endswith(
        "Be brief.<|im_end|>\n"
    )
    assert text_before(front, prepared, places[BoundaryKind.TURN_CLOSURE]).endswith(
        "lamp on<|im_end|>\n"
    )
    assert text_before(front, prepared, places[BoundaryKind.RESPONSE_REPLAY]).endswith(
        "Done.<|im_end|>\n"
    )


def test_kept_thinking_moves_the_turn_closure_to_the_opener() -> None:
    front = frontend("tiny-dense", LAST_QUERY)
    messages = parse_messages(
        [
            {"role": "user", "content": "lamp on"},
            {"role": "assistant", "reasoning_content": "a call", "content": "Done."},
        ]
    )

    prepared = front.prepare(Conversation(messages), PromptOptions(preserve_thinking=True))

    kinds = {boundary.kind for boundary in prepared.prompt.boundaries}
    assert kinds == {BoundaryKind.TURN_CLOSURE, BoundaryKind.RESPONSE_REPLAY}
    assert len({boundary.frontier for boundary in prepared.prompt.boundaries}) == 1


def test_the_next_turn_begins_with_the_tokens_before_its_turn_closure() -> None:
    front = frontend("tiny-dense", LAST_QUERY)
    first = [
        {"role": "user", "content": "lamp on"},
        {"role": "assistant", "reasoning_content": "a call", "content": "Done."},
        {"role": "user", "content": "lamp off"},
    ]
    answer = {"role": "assistant", "reasoning_content": "again", "content": "Done."}

    now = front.prepare(Conversation(parse_messages(first))).prompt
    later = front.prepare(
        Conversation(parse_messages([*first, answer, {"role": "user", "content": "thanks"}]))
    ).prompt

    closure = max(b.frontier for b in now.boundaries if b.kind is BoundaryKind.TURN_CLOSURE)
    assert later.token_ids[:closure] == now.token_ids[:closure]


@pytest.mark.parametrize("template", [None, LAST_QUERY, EFFORT])
def test_tools_are_a_shared_prefix_of_prompts_with_other_system_texts(template: str | None) -> None:
    front = frontend("tiny-dense", template)
    prompts = [
        front.prepare(
            Conversation(
                (Message(Role.SYSTEM, text), Message(Role.USER, "Hi")), parse_tools([LAMP])
            )
        )
        for text in ("Be brief.", "  Answer in verse.\n")
    ]

    shared = [
        [b.frontier for b in p.prompt.boundaries if b.kind is BoundaryKind.SHARED_STABLE]
        for p in prompts
    ]

    behind_tools = shared[0][0]
    assert [len(frontiers) for frontiers in shared] == [2, 2]
    assert shared[1][0] == behind_tools
    first, second = (p.prompt.token_ids[:behind_tools] for p in prompts)
    assert first == second
    assert "lamp_set" in text_before(front, prompts[0], behind_tools)
    assert text_before(front, prompts[0], shared[0][1]).endswith("Be brief.<|im_end|>\n")


def test_identity_tells_ids_and_modes_apart() -> None:
    front = frontend()
    chat = ask().prompt
    raw = front.prepare_tokens(chat.token_ids).prompt
    same = ask().prompt

    digests = {chat.identity, raw.identity, ask("Ho").prompt.identity}

    assert same.identity == chat.identity
    assert len(digests) == 3
    assert raw.token_ids == chat.token_ids


def test_raw_text_parses_spellings_only_when_asked() -> None:
    front = frontend()

    plain = front.prepare_raw("<|im_start|>")
    parsed = front.prepare_raw("<|im_start|>", parse_special=True)

    assert len(plain.prompt.token_ids) > 1
    assert parsed.prompt.token_ids == (480,)
    assert plain.start is Channel.CONTENT
    assert (plain.is_chat, ask().is_chat) == (False, True)


def test_raw_ids_outside_the_vocabulary_are_refused_with_their_place() -> None:
    with pytest.raises(RequestError) as caught:
        frontend().prepare_tokens([1, 512])

    assert (caught.value.code, caught.value.field) == ("invalid_token_id", "prompt[1]")


def test_an_empty_raw_prompt_is_refused() -> None:
    with pytest.raises(RequestError, match="at least one token"):
        frontend().prepare_raw("")


def test_tools_that_may_not_be_called_are_not_rendered() -> None:
    messages = (Message(Role.USER, "Hi"),)
    tools = parse_tools([LAMP])

    offered = frontend().prepare(Conversation(messages, tools))
    none = frontend().prepare(Conversation(messages, tools, ToolChoice.NONE))

    assert "lamp_set" in (offered.text or "")
    assert none.text == ask().text
    assert (len(offered.tools), len(none.tools)) == (1, 0)


def test_pictures_are_refused_while_vision_is_off() -> None:
    message = Message(Role.USER, (MediaPart(MediaKind.IMAGE),))

    with pytest.raises(UnsupportedFeature) as caught:
        frontend().prepare(Conversation((message,)))

    assert caught.value.code == "vision_disabled"
    assert caught.value.field == "messages[0].content[0]"


def test_replayed_arguments_render_with_their_own_digits_and_order() -> None:
    arguments = '{"z": 1.10, "a": [2.50]}'
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "ok"},
    ]

    text = prepare(messages).text

    assert text is not None
    assert "<parameter=z>\n1.10\n</parameter>\n<parameter=a>\n[2.50]\n</parameter>" in text


def test_a_switch_the_template_lacks_is_refused_unless_it_changes_nothing() -> None:
    assert ask(preserve_thinking=True).text == ask().text

    with pytest.raises(UnsupportedFeature) as caught:
        ask(preserve_thinking=False)

    assert caught.value.field == "preserve_thinking"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"reasoning_effort": "low"}, "reasoning_effort_not_supported"),
        ({"reasoning_effort": "none", "enable_thinking": True}, "conflicting_parameters"),
        ({"template_variables": {"colour": 1}}, "invalid_value"),
    ],
)
def test_options_the_template_cannot_honour_are_refused(options: dict[str, Any], code: str) -> None:
    with pytest.raises(RequestError) as caught:
        ask(**options)

    assert caught.value.code == code


def test_efforts_are_those_the_template_accepts() -> None:
    front = frontend("tiny-dense", EFFORT)

    low = front.prepare(
        Conversation((Message(Role.USER, "Hi"),)), PromptOptions(reasoning_effort="low")
    )

    assert front.traits.reasoning_efforts == ("low", "medium", "xhigh")
    assert (low.text or "").startswith("<|im_start|>system\nThink briefly.<|im_end|>\n")
    with pytest.raises(RequestError, match="low, medium, xhigh"):
        front.prepare(
            Conversation((Message(Role.USER, "Hi"),)), PromptOptions(reasoning_effort="high")
        )


def test_a_final_assistant_message_can_be_continued() -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well, I"}]

    prepared = prepare(messages, continues_final=True, enable_thinking=False)

    assert (prepared.text or "").endswith("<|im_start|>assistant\nWell, I")
    assert prepared.start is Channel.CONTENT


@pytest.mark.parametrize("is_thinking", [None, True])
def test_a_continued_message_excludes_thinking(is_thinking: bool | None) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well, I"}]

    with pytest.raises(RequestError) as caught:
        prepare(messages, continues_final=True, enable_thinking=is_thinking)

    assert caught.value.code == "conflicting_parameters"


def test_only_an_assistant_message_can_be_continued() -> None:
    with pytest.raises(RequestError, match="cannot be continued"):
        ask(continues_final=True, enable_thinking=False)


def test_the_output_budget_is_clamped_to_the_context() -> None:
    prompt = ask().prompt
    size = len(prompt.token_ids)

    assert frontend().output_room(prompt, 100, size + 7) == 7
    assert frontend().output_room(prompt, 5, size + 7) == 5
    assert frontend().output_room(prompt, 5, size) == 0
    with pytest.raises(ContextLengthExceeded, match=f"too long: {size} tokens > {size - 1} max"):
        frontend().output_room(prompt, 5, size - 1)


def test_a_thinking_budget_needs_room_for_its_closing_text() -> None:
    front = frontend()
    closing = len(front.forced_close(10))

    front.check_thinking_budget(ask(), 10, 10 + closing + 1)
    front.check_thinking_budget(ask(enable_thinking=False), 10, 1)
    with pytest.raises(RequestError) as caught:
        front.check_thinking_budget(ask(), 10, 10 + closing)

    assert caught.value.code == "thinking_budget_capacity_insufficient"


@pytest.mark.parametrize("stop", ["", "x\ud83d"])
def test_stop_strings_must_be_text(stop: str) -> None:
    with pytest.raises(RequestError) as caught:
        frontend().open_session(ask(), OutputOptions(stop=("ok", stop)))

    assert caught.value.field == "stop[1]"


def test_a_missing_resource_is_named() -> None:
    files = resources()
    del files["frontend/generation_config.json"]

    with pytest.raises(CheckpointError, match=r"generation_config\.json is missing"):
        Frontend(files)


def test_a_template_that_hides_the_origin_of_control_tokens_is_refused() -> None:
    source = "{% set x = '<|IM_START|>' %}{{ x | lower }}{{ messages[0].content }}"

    with pytest.raises(CheckpointError, match="cannot be told"):
        Frontend(resources(), chat_template=source)


def test_a_template_that_cannot_render_a_question_is_refused() -> None:
    with pytest.raises(CheckpointError, match="never"):
        Frontend(resources(), chat_template="{{ raise_exception('never') }}")
