"""What a messages body means, and how its faults are named."""

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from ninfer.errors import RequestError
from ninfer.gateway.anthropic_api import MessageHeaders, count_tokens, translate_messages
from ninfer.gateway.error_responses import Family, error_reply
from ninfer.gateway.gateway_settings import GatewaySettings
from ninfer.gateway.request_context import RequestContext
from ninfer.gateway.request_run import GenerationJob
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
from tests.support.png_images import png_bytes
from tests.support.scripted_engine import ScriptedEngine

SETTINGS = GatewaySettings()
HEADERS = MessageHeaders()


def image(width: int = 8, height: int = 8, **source: Any) -> Body:
    """An image block; ``source`` replaces members of its source."""
    data = base64.b64encode(png_bytes(width, height)).decode()
    whole = {"type": "base64", "media_type": "image/png", "data": data, **source}
    return {"type": "image", "source": whole}


def by_url(url: str) -> Body:
    return {"type": "image", "source": {"type": "url", "url": url}}


IMAGE = image()
TOOL_IMAGE: Body = {"type": "tool_result", "tool_use_id": "a", "content": [text("x"), IMAGE]}


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine() as engine:
        yield engine


def a_context() -> RequestContext:
    return RequestContext(Family.ANTHROPIC, "req_1", None, 0.0, lambda: False)


def read(
    engine: ScriptedEngine,
    asked: Body,
    *,
    context: RequestContext | None = None,
    settings: GatewaySettings = SETTINGS,
    headers: MessageHeaders = HEADERS,
) -> GenerationJob:
    return translate_messages(asked, engine, context or a_context(), settings, headers, str)


def rendered(engine: ScriptedEngine, asked: Body) -> str:
    """The prompt without what opens the answer."""
    found = read(engine, asked).prepared.text
    assert found is not None
    return found.removesuffix("<think>\n").removesuffix("<|im_start|>assistant\n")


def refusal(engine: ScriptedEngine, asked: Body) -> tuple[str, str]:
    """Code and message of the error a client sees."""
    with pytest.raises(RequestError) as caught:
        read(engine, asked)
    reply = error_reply(caught.value, retry_after_s=1, request_id="req_1")
    assert reply.status(Family.ANTHROPIC) == 400
    return reply.code, reply.body(Family.ANTHROPIC, "req_1")["error"]["message"]


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

    code, message = refusal(engine, body(user("x"), assistant("One"), thinking=thinking))

    assert code == "conflicting_parameters"
    assert message.startswith("thinking: ")


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
        "cache_control",
        "metadata",
        "service_tier",
        "brand_new",
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


TOOL_RESULT: Body = {"type": "tool_result", "tool_use_id": "toolu_9", "content": "x"}
MARKED: Body = text("x", cache_control={"type": "ephemeral"})


@pytest.mark.parametrize(
    ("asked", "code", "start"),
    [
        ({"max_tokens": 4}, "missing_field", "messages: is missing"),
        ({**body(), "messages": []}, "invalid_value", "messages: is empty"),
        ({**body(), "messages": "x"}, "invalid_type", "messages: is a string"),
        ({**body(), "messages": ["x"]}, "invalid_type", "messages.0: is a string"),
        ({**body(), "max_tokens": 0}, "invalid_value", "max_tokens: is 0"),
        ({**body(), "max_tokens": 1.0}, "invalid_type", "max_tokens: must be an integer"),
        ({**body(), "model": ""}, "invalid_value", "model: has 0 characters"),
        ({**body(), "model": 3}, "invalid_type", "model: is a number"),
        (body(temperature=1.1), "invalid_value", "temperature: is 1.1"),
        (body(temperature=True), "invalid_type", "temperature: must be a number"),
        (body(top_k=513), "invalid_value", "top_k: is 513"),
        (body(stop_sequences=["x"] * 17), "invalid_value", "stop_sequences: has 17"),
        (body(stop_sequences=[""]), "invalid_value", "stop_sequences.0: has 0"),
        (body(stop_sequences="x"), "invalid_type", "stop_sequences: is a string"),
        (body({"content": "x"}), "missing_field", "messages.0.role: is missing"),
        (body({"role": "tool", "content": "x"}), "invalid_value", "messages.0.role: is 'tool'"),
        (body({"role": "user"}), "missing_field", "messages.0.content: is missing"),
        (body(user(3)), "invalid_type", "messages.0.content: is a number"),
        (body(user([{"text": "x"}])), "missing_field", "messages.0.content.0.type"),
        (body(user([{"type": "text"}])), "missing_field", "messages.0.content.0.text"),
        (body(user([text("a"), IMAGE])), "vision_disabled", "messages.0.content.1"),
        (
            body(
                user("x"),
                assistant([{"type": "tool_use", "id": "a", "name": "f", "input": {}}]),
                user([TOOL_IMAGE]),
            ),
            "vision_disabled",
            "messages.2.content.0.content.1",
        ),
        (body(user([{"type": "image"}])), "missing_field", "messages.0.content.0.source"),
        (
            body(user([image(type="file")])),
            "unsupported_parameter",
            "messages.0.content.0.source.type: ",
        ),
        (
            body(user([image(data="?")])),
            "invalid_media",
            "messages.0.content.0.source.data: ",
        ),
        (
            body(user([image(data="AAAA", media_type="image/svg+xml")])),
            "invalid_media",
            "messages.0.content.0.source.data: ",
        ),
        (body(user([image(1, 201)])), "invalid_media", "messages.0.content.0.source.data: "),
        (
            body(user([by_url("file:///etc/hostname")])),
            "media_url_forbidden",
            "messages.0.content.0.source.url: ",
        ),
        (
            body(user([by_url("http://127.0.0.1/x.png")])),
            "media_url_forbidden",
            "messages.0.content.0.source.url: ",
        ),
        (body(user([IMAGE] * 65)), "media_budget_exceeded", "messages: has 65 images"),
        (body(user([{"type": "document"}])), "unsupported_parameter", "messages.0.content.0.type"),
        (
            body(user("x"), assistant([{"type": "server_tool_use"}]), user("y")),
            "unsupported_parameter",
            "messages.1.content.0.type: is 'server_tool_use'",
        ),
        (body(system=[IMAGE]), "unsupported_parameter", "system.0.type: is 'image'"),
        (body(system=3), "invalid_type", "system: is a number"),
        (
            body(user("a"), user([TOOL_RESULT])),
            "invalid_tool_history",
            "messages.1.content.0.tool_use_id: is 'toolu_9'",
        ),
        (
            body(user("x"), assistant([{"type": "tool_use", "id": "a", "name": "f"}]), user("y")),
            "missing_field",
            "messages.1.content.0.input",
        ),
        (body(tools=[{"name": "f"}]), "missing_field", "tools.0.input_schema: is missing"),
        (body(tools=[{**LAMP, "name": "a b"}]), "invalid_value", "tools.0.name: is 'a b'"),
        (body(tools=[{**LAMP, "name": "x" * 129}]), "invalid_value", "tools.0.name: has 129"),
        (body(tools=[LAMP, LAMP]), "invalid_value", "tools.1.name: is 'lamp_set' a second time"),
        (
            body(tools=[{**LAMP, "input_schema": {"type": "array"}}]),
            "invalid_value",
            "tools.0.input_schema.type: is 'array'",
        ),
        (
            body(tools=[{"type": "web_search_20250305", "name": "web_search"}]),
            "unsupported_parameter",
            "tools.0.type: is 'web_search_20250305'",
        ),
        (body(tool_choice={"type": "any"}), "unsupported_parameter", "tool_choice: any"),
        (body(tool_choice={}), "missing_field", "tool_choice.type"),
        (body(thinking={"type": "enabled"}), "missing_field", "thinking.budget_tokens"),
        (
            {**body(thinking={"type": "enabled", "budget_tokens": 2000}), "max_tokens": 2000},
            "invalid_value",
            "thinking.budget_tokens: is 2000",
        ),
        (
            {**body(thinking={"type": "enabled", "budget_tokens": 1023}), "max_tokens": 2000},
            "invalid_value",
            "thinking.budget_tokens: is 1023",
        ),
        (
            {**body(thinking={"type": "enabled", "budget_tokens": 1998}), "max_tokens": 2000},
            "thinking_budget_capacity_insufficient",
            "thinking.budget_tokens: ",
        ),
        (
            body(output_config={"effort": "high"}),
            "reasoning_effort_not_supported",
            "output_config.effort: ",
        ),
        (
            body(user([MARKED] * 5)),
            "invalid_value",
            "messages.0.content.4.cache_control: is one too many",
        ),
        (
            body(user([text("x", cache_control={"type": "ephemeral", "ttl": "2h"})])),
            "invalid_value",
            "messages.0.content.0.cache_control.ttl: is '2h'",
        ),
        (body(mcp_servers=[{"url": "x"}]), "unsupported_parameter", "mcp_servers: "),
        (body(user("x"), assistant("One ")), "invalid_value", "messages.1: ends in white space"),
        (body(user("word " * 5000)), "context_length_exceeded", "prompt is too long: "),
    ],
)
def test_a_fault_is_refused_and_named(
    engine: ScriptedEngine, asked: Body, code: str, start: str
) -> None:
    found, message = refusal(engine, asked)

    assert found == code
    assert message.startswith(start)


@pytest.mark.parametrize("name", CORPUS)
def test_counting_reads_what_generating_reads(engine: ScriptedEngine, name: str) -> None:
    asked: dict[str, Any] = CORPUS[name]
    uncounted = {key: value for key, value in asked.items() if key != "max_tokens"}

    counted = count_tokens(uncounted, engine, a_context(), SETTINGS, HEADERS)

    assert counted == {"input_tokens": len(read(engine, asked).prepared.prompt.token_ids)}
