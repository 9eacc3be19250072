"""How a faulty wish for a structured answer is refused: before admission, with its field."""

from collections.abc import Iterator

import pytest

from tests.gateway.structured_bodies import BOX, Json, ask, by_schema
from tests.support.gateway_server import RunningServer, running_server
from tests.support.scripted_engine import ScriptedEngine

pytest.importorskip("llguidance", reason="needs the extra [structured]")


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with ScriptedEngine() as engine, running_server(engine) as server:
        yield server


@pytest.mark.parametrize(
    ("members", "code", "param"),
    [
        ({"response_format": {}}, "missing_field", "response_format.type"),
        ({"response_format": "json"}, "invalid_type", "response_format"),
        ({"response_format": {"type": "xml"}}, "invalid_value", "response_format.type"),
        (
            {"response_format": {"type": "json_schema"}},
            "missing_field",
            "response_format.json_schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "missing_field",
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": by_schema({"type": "strin"})},
            "invalid_json_schema",
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": by_schema({"type": "string", "pattern": "(("})},
            "invalid_json_schema",
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": by_schema({"patternProperties": {"a": {}}})},
            "invalid_json_schema",
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": by_schema({"const": "x" * 70_000})},
            "invalid_json_schema",
            "response_format.json_schema.schema",
        ),
        ({"structured_outputs": {}}, "missing_field", "structured_outputs"),
        (
            {"structured_outputs": {"json": True, "whitespace": "any"}},
            "unsupported_parameter",
            "structured_outputs.whitespace",
        ),
        (
            {"structured_outputs": {"regex": "a", "choice": ["b"]}},
            "conflicting_parameters",
            "structured_outputs",
        ),
        ({"structured_outputs": {"regex": 3}}, "invalid_type", "structured_outputs.regex"),
        ({"structured_outputs": {"regex": ""}}, "invalid_json_schema", "structured_outputs.regex"),
        ({"structured_outputs": {"choice": "a"}}, "invalid_type", "structured_outputs.choice"),
        ({"structured_outputs": {"choice": []}}, "invalid_value", "structured_outputs.choice"),
        ({"structured_outputs": {"json": []}}, "invalid_type", "structured_outputs.json"),
        (
            {"structured_outputs": {"grammar": "start: nowhere"}},
            "invalid_json_schema",
            "structured_outputs.grammar",
        ),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "conflicting_parameters",
            "structured_outputs",
        ),
        (
            {"response_format": by_schema(BOX), "ignore_eos": True},
            "conflicting_parameters",
            "ignore_eos",
        ),
        (
            {
                "response_format": by_schema(BOX),
                "tools": [{"type": "function", "function": {"name": "f"}}],
            },
            "unsupported_parameter",
            "tools",
        ),
    ],
)
def test_a_faulty_wish_is_refused_before_admission(
    server: RunningServer, members: Json, code: str, param: str
) -> None:
    before = server.gateway.life.loaded_engine().status().counters.accepted

    reply = ask(server, **members)

    assert reply.status == 400
    assert (reply.code, reply.json["error"]["param"]) == (code, param)
    assert server.gateway.life.loaded_engine().status().counters.accepted == before


@pytest.mark.parametrize(
    ("output_format", "start"),
    [
        ({}, "output_config.format.type: is missing"),
        ({"type": "json_schema"}, "output_config.format.schema: is missing"),
        ({"type": "json_schema", "schema": {"type": "x"}}, "output_config.format.schema: is not"),
        ({"type": "json_schema", "schema": {}, "extra": 1}, "output_config.format.extra: "),
    ],
)
def test_a_faulty_format_of_a_message_is_named(
    server: RunningServer, output_format: Json, start: str
) -> None:
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "output_config": {"format": output_format},
    }

    reply = server.post("/v1/messages", body)

    assert reply.status == 400
    assert reply.json["error"]["message"].startswith(start)


def test_a_begun_answer_cannot_be_given_a_format(server: RunningServer) -> None:
    body = {
        "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "{"}],
        "output_config": {"format": {"type": "json_schema", "schema": BOX}},
    }

    reply = server.post("/v1/messages", body)

    assert reply.status == 400
    assert reply.json["error"]["message"].startswith("output_config.format: ")
