"""Limits of grammars: what is refused before a request is admitted, and what ends an output."""

from typing import Any

import pytest

from ninfer.errors import GrammarUnusable, RequestError
from ninfer.frontend import grammar_compiler
from ninfer.frontend.grammar_compiler import GrammarCompiler
from ninfer.frontend.grammar_source import GrammarSource, lark_source, schema_source
from ninfer.frontend.output_constraint import (
    CompiledGrammar,
)
from tests.support.frontends import frontend
from tests.support.scripted_matcher import allowed_by

pytest.importorskip("llguidance", reason="needs the extra [structured]")

FRONTEND = frontend()
TOKENIZER = FRONTEND.tokenizer


def compiled(source: GrammarSource) -> CompiledGrammar:
    return FRONTEND.compile_grammar(source, "f")


@pytest.mark.parametrize("text", ['start: "a" <|im_start|>', 'start: "a" /[^\\s\\S]/'])
def test_a_grammar_that_leads_nowhere_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="comes to a place") as caught:
        compiled(lark_source(text, "f"))

    assert caught.value.code == "invalid_json_schema"


def wide(num_properties: int) -> dict[str, Any]:
    names = [f"k{number}" for number in range(num_properties)]
    return {
        "type": "object",
        "properties": {name: {"type": "string"} for name in names},
        "additionalProperties": False,
    }


VARIANTS = [
    {
        "type": "object",
        "properties": {"t": {"const": f"t{number}"}, f"v{number}": {"type": "integer"}},
        "additionalProperties": False,
    }
    for number in range(500)
]


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (wide(505), '{"k0":"a","k9":"b","k504":"c"}'),
        (wide(2_000), '{"k0":"a","k9":"b","k1999":"c"}'),
        ({"anyOf": VARIANTS[:200]}, '{"t":"t150","v150":12}'),
        ({"type": "array", "items": {"anyOf": VARIANTS[:200]}}, '[{"t":"t1"},{"t":"t199"}]'),
    ],
    ids=["505", "2000", "union", "list"],
)
def test_a_wide_schema_is_followed_to_its_end(schema: dict[str, Any], text: str) -> None:
    matcher = compiled(schema_source(schema, "f")).new_matcher()

    for token in TOKENIZER.encode(text, parse_special=False):
        assert token in allowed_by(matcher.mask())
        matcher.accept(token)

    assert matcher.may_stop


@pytest.mark.parametrize(
    ("limits", "source", "reason"),
    [
        ({"step_max_items": 20}, schema_source(wide(30), "f"), "more than 20 possibilities"),
        ({"step_lexer_fuel": 50}, schema_source(wide(30), "f"), "too complex"),
        ({"max_lexer_states": 20}, schema_source(wide(30), "f"), "more than 20 states"),
    ],
)
def test_what_is_over_a_limit_behind_the_first_token_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    limits: dict[str, int],
    source: GrammarSource,
    reason: str,
) -> None:
    compiler = GrammarCompiler(TOKENIZER, FRONTEND.stop_ids)
    for name, limit in limits.items():
        monkeypatch.setitem(grammar_compiler._LIMITS, name, limit)

    with pytest.raises(RequestError, match=reason) as caught:
        compiler.compile(source, "f")

    assert caught.value.code == "invalid_json_schema"
    assert caught.value.field == "f"


def test_a_wide_schema_with_references_is_refused() -> None:
    schema = wide(600) | {"$defs": {"a": {"type": "string"}}}
    schema["properties"]["k0"] = {"$ref": "#/$defs/a"}

    with pytest.raises(RequestError, match=r"2399 possibilities .* at most 2000"):
        compiled(schema_source(schema, "f"))


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": VARIANTS},
        {
            "anyOf": [
                {
                    "type": "array",
                    "minItems": 40,
                    "items": {"anyOf": [{"maximum": 40 * i + j} for j in range(38)]},
                }
                for i in range(60)
            ]
        },
    ],
    ids=["union", "nested"],
)
def test_alternatives_over_the_limit_of_ambiguous_schemas_are_refused(
    schema: dict[str, Any],
) -> None:
    with pytest.raises(RequestError) as caught:
        compiled(schema_source(schema, "f"))

    assert caught.value.code == "invalid_json_schema"


def test_masks_that_take_too_long_refuse_a_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_compiler, "MASK_LIMIT_S", -1.0)

    with pytest.raises(RequestError, match="so ambiguous"):
        GrammarCompiler(TOKENIZER, FRONTEND.stop_ids).compile(schema_source(wide(30), "f"), "f")


def test_one_way_that_leads_nowhere_does_not_refuse_a_grammar() -> None:
    source = lark_source('start: "a" | "!" X\nX: /c/ & /d/', "f")
    matcher = compiled(source).new_matcher()

    for token in TOKENIZER.encode("a", parse_special=False):
        matcher.accept(token)

    assert matcher.may_stop


def test_a_narrow_way_into_a_grammar_does_not_hide_a_wide_one() -> None:
    schema = {"anyOf": [{"type": "integer"}, wide(600)], "$defs": {"a": {"$ref": "#"}}}

    with pytest.raises(RequestError, match="2399 possibilities"):
        compiled(schema_source(schema, "f"))


def test_a_limit_that_is_met_on_the_way_is_the_grammars_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(grammar_compiler._LIMITS, "max_items_in_row", 100)
    compiler = GrammarCompiler(TOKENIZER, FRONTEND.stop_ids)
    matcher = compiler.compile(lark_source('start: a\na: "x" a | "x"', "f"), "f").new_matcher()
    (token,) = TOKENIZER.encode("x", parse_special=False)

    for _ in range(96):
        matcher.accept(token)

    with pytest.raises(GrammarUnusable, match=r"101 possibilities .* at most 100") as caught:
        matcher.accept(token)

    assert caught.value.code == "invalid_json_schema"
