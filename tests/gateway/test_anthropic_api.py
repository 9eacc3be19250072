"""What a messages body means, and how its faults are named."""

from collections.abc import Iterator
from typing import Any

import pytest

from ninfer.errors import RequestError
from ninfer.gateway.anthropic_api import MessageHeaders, count_tokens
from ninfer.gateway.gateway_settings import GatewaySettings
from ninfer.generation import CacheMode, Channel
from tests.gateway.anthropic_bodies import (
    B06_MESSAGES,
    CORPUS,
    LAMP,
    LAMP_HISTORY,
    Body,
    assistant,
    body,
    text,
    user,
)
from tests.gateway.anthropic_reading import HEADERS, SETTINGS, a_context, read
from tests.support.scripted_engine import ScriptedEngine


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine() as engine:
        yield engine


def rendered(engine: ScriptedEngine, asked: Body) -> str:
    """The prompt without what opens the answer."""
    found = read(engine, asked).prepared.text
    assert found is not None
    return found.removesuffix("<think>\n").removesuffix("<|im_start|>assistant\n")


def block(role: str, *lines: str) -> str:
    return f"<|im_start|>{role}\n" + "\n".join(lines) + "<|im_end|>\n"


def test_system_text_and_turns_stand_in_wire_order(engine: ScriptedEngine) -> None:
    prompt = rendered(engine, body(*B06_MESSAGES, system=[text("Be kind."), text(" Be brief.")]))

    assert prompt == "".join(
        (
            block("system", "Be kind. Be brief."),
            block("user", "Log entry 7 is red."),
            block("assistant", "Noted."),
            block("system", "Answer in one word."),
            block("user", "Which colour?"),
        )
    )


def test_neighbours_of_one_role_are_one_turn(engine: ScriptedEngine) -> None:
    prompt = rendered(
        engine, body(user("a"), user([text(""), text("b")]), assistant("c"), user("d"))
    )

    assert prompt == block("user", "ab") + block("assistant", "c") + block("user", "d")


def test_a_call_and_its_result_reach_the_template(engine: ScriptedEngine) -> None:
    prompt = rendered(engine, body(*LAMP_HISTORY, tools=[LAMP]))

    assert '"name": "lamp_set", "description": "Set a lamp.", "parameters": {' in prompt
    assert "<parameter=level>\n10\n</parameter>" in prompt
    assert "<tool_response>\nok\n</tool_response>" in prompt
    assert prompt.index("</tool_response>") < prompt.index("And the kitchen?")


def test_results_follow_the_order_of_the_calls(engine: ScriptedEngine) -> None:
    calls = [
        {"type": "tool_use", "id": name, "name": "f", "input": {"q": name}} for name in ("a", "b")
    ]
    results = [
        {"type": "tool_result", "tool_use_id": name, "content": [text(f"result {name}")]}
        for name in ("b", "a")
    ]

    prompt = rendered(engine, body(user("x"), assistant(calls), user(results)))

    assert prompt.index("result a") < prompt.index("result b")


def test_a_failed_tool_is_shown_as_an_error(engine: ScriptedEngine) -> None:
    call = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "is_error": True, "content": "no lamp"}

    prompt = rendered(engine, body(user("x"), assistant([call]), user([result])))

    assert "<tool_response>\nError: no lamp\n</tool_response>" in prompt


def test_redacted_thinking_is_dropped_and_thinking_kept(engine: ScriptedEngine) -> None:
    blocks = [
        {"type": "redacted_thinking", "data": "secret"},
        {"type": "thinking", "thinking": "plain", "signature": ""},
        text("done"),
    ]

    prompt = rendered(engine, body(user("x"), assistant(blocks), user("y")))

    assert "secret" not in prompt
    assert "<think>\nplain\n</think>\n\ndone" in prompt


def test_the_billing_header_is_removed_unless_it_is_kept(engine: ScriptedEngine) -> None:
    asked = body(system=[text("x-anthropic-billing-header: cc=1; h=ab;"), text("Be kind.")])

    kept = read(engine, asked, settings=GatewaySettings(keeps_billing_header=True)).prepared.text

    assert rendered(engine, asked).startswith(block("system", "Be kind."))
    assert kept is not None
    assert "x-anthropic-billing-header: cc=1" in kept


def test_only_the_line_of_the_header_is_removed_from_a_text(engine: ScriptedEngine) -> None:
    prompt = rendered(engine, body(system="x-anthropic-billing-header: v=1;\nBe kind."))

    assert prompt.startswith(block("system", "Be kind."))


def test_a_final_assistant_message_is_continued(engine: ScriptedEngine) -> None:
    prepared = read(engine, body(user("Count."), assistant([text("One"), text(", two")]))).prepared

    assert prepared.text == block("user", "Count.") + "<|im_start|>assistant\nOne, two"
    assert prepared.start is Channel.CONTENT


def test_an_answer_cannot_begin_and_think(engine: ScriptedEngine) -> None:
    thinking = {"type": "adaptive"}

    with pytest.raises(RequestError) as caught:
        read(engine, body(user("x"), assistant("One"), thinking=thinking))

    assert caught.value.code == "conflicting_parameters"
    assert caught.value.field == "thinking"


@pytest.mark.parametrize(
    ("thinking", "start", "budget"),
    [
        (None, Channel.THINKING, None),
        ({"type": "adaptive"}, Channel.THINKING, None),
        ({"type": "disabled"}, Channel.CONTENT, None),
        ({"type": "enabled", "budget_tokens": 1024}, Channel.THINKING, 1024),
    ],
)
def test_thinking_decides_where_the_answer_starts(
    engine: ScriptedEngine, thinking: Body | None, start: Channel, budget: int | None
) -> None:
    job = read(engine, {**body(thinking=thinking), "max_tokens": 2000})

    assert job.prepared.start is start
    assert job.options.output.thinking_budget == budget


def test_tool_choice_none_offers_no_tools(engine: ScriptedEngine) -> None:
    job = read(engine, body(tools=[LAMP], tool_choice={"type": "none"}))

    assert job.prepared.tools == ()


def test_one_call_at_a_time_is_passed_on(engine: ScriptedEngine) -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}

    job = read(engine, body(tools=[LAMP], tool_choice=choice))

    assert not job.options.output.parallel_tool_calls


def test_members_without_effect_are_listed(engine: ScriptedEngine) -> None:
    context = a_context()
    asked = body(
        user([text("x", cache_control={"type": "ephemeral"})]),
        metadata={"user_id": "u"},
        service_tier="auto",
        thinking={"type": "adaptive", "depth": 1},
        tools=[{**LAMP, "input_examples": []}],
        brand_new=1,
    )

    read(engine, asked, context=context)

    assert context.ignored == [
        "thinking.depth",
        "tools[0].input_examples",
        "messages[0].content[0].cache_control",
        "metadata",
        "service_tier",
        "brand_new",
    ]


def test_members_of_blocks_without_effect_are_listed(engine: ScriptedEngine) -> None:
    context = a_context()
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {}, "caller": {"type": "direct"}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [text("ok", extra=2)], "at": 1}
    asked = body(
        {**user([text("x", citations=[], nothing=None)]), "id": "m1"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "more": 1}, call]},
        user([result]),
        system=[text("s", tone="kind")],
    )

    read(engine, asked, context=context)

    assert context.headers()["x-ninfer-ignored"].split(", ") == [
        "system[].tone",
        "messages[].id",
        "messages[].content[].citations",
        "messages[].content[].more",
        "messages[].content[].caller",
        "messages[].content[].content[].extra",
        "messages[].content[].at",
    ]


def test_strict_servers_refuse_unknown_members(engine: ScriptedEngine) -> None:
    with pytest.raises(RequestError) as caught:
        read(engine, body(brand_new=1), settings=GatewaySettings(is_strict=True))

    assert caught.value.code == "unknown_parameter"


def test_headers_name_the_session_and_the_cache(engine: ScriptedEngine) -> None:
    job = read(engine, body(), headers=MessageHeaders("session 1", "off"))

    assert job.options.session_key == "session 1"
    assert job.options.cache is CacheMode.DISABLED


def test_sixteen_stop_sequences_are_accepted(engine: ScriptedEngine) -> None:
    stops = [f"stop {index}" for index in range(16)]

    assert read(engine, body(stop_sequences=stops)).options.output.stop == tuple(stops)


@pytest.mark.parametrize("name", CORPUS)
def test_counting_reads_what_generating_reads(engine: ScriptedEngine, name: str) -> None:
    asked: dict[str, Any] = CORPUS[name]
    uncounted = {key: value for key, value in asked.items() if key != "max_tokens"}

    counted = count_tokens(uncounted, engine, a_context(), SETTINGS, HEADERS)

    assert counted == {"input_tokens": len(read(engine, asked).prepared.prompt.token_ids)}
