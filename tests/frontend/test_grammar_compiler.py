"""Compiled grammars: what they allow, what is refused, and how long compilation may take."""

import json
import random
import re
import threading
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ninfer.errors import NinferError, RequestError, UnsupportedFeature
from ninfer.frontend import grammar_compiler
from ninfer.frontend.grammar_compiler import CACHE_SIZE, GrammarCompiler
from ninfer.frontend.grammar_source import (
    ANY_OBJECT,
    GrammarKind,
    GrammarSource,
    choice_source,
    lark_source,
    regex_source,
    schema_source,
)
from ninfer.frontend.output_constraint import (
    CompiledGrammar,
    ConstraintPhase,
    ConstraintPlace,
    OutputConstraint,
)
from tests.support.frontends import frontend
from tests.support.quick_examples import QUICK
from tests.support.scripted_matcher import allowed_by

pytest.importorskip("llguidance", reason="needs the extra [structured]")

FRONTEND = frontend()
TOKENIZER = FRONTEND.tokenizer
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b", 1.5, None]}, "maxItems": 3},
        "place": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/place"}]},
    },
    "required": ["name", "age", "tags", "place"],
    "additionalProperties": False,
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"x": {"type": "boolean"}},
            "additionalProperties": False,
        }
    },
}
SCHEMAS: dict[str, Any] = {
    "person": PERSON,
    "string": {"type": "string", "minLength": 2, "maxLength": 4},
    "pattern": {"type": "string", "pattern": "^[A-F]{3}-[0-9]{2}$"},
    "date": {"type": "string", "format": "date"},
    "tuple": {"type": "array", "prefixItems": [{"const": 1}, {"const": "z"}], "minItems": 2},
    "union": {"oneOf": [{"type": "boolean"}, {"type": "integer", "minimum": 7, "maximum": 9}]},
    "constant": {"const": {"deep": ["ä🦔", 1e3]}},
}


def walk(grammar: CompiledGrammar, seed: int, most: int = 400) -> tuple[str, bool]:
    """Follow allowed tokens at random; the text, and whether it ended by itself."""
    chance = random.Random(seed)
    constraint = OutputConstraint(grammar)
    place = ConstraintPlace(ConstraintPhase.ACTIVE)
    tokens: list[int] = []
    while len(tokens) < most:
        mask = constraint.mask(place)
        assert mask is not None
        allowed = allowed_by(mask)
        ends = allowed & set(FRONTEND.stop_ids)
        if ends:
            assert ends == set(FRONTEND.stop_ids)
        if ends and (ends == allowed or chance.random() < 0.5):
            return TOKENIZER.decode(tokens).decode("utf-8"), True
        token = chance.choice(sorted(allowed - ends))
        assert token not in TOKENIZER.added
        tokens.append(token)
        place = constraint.commit(place.behind(token, grammar.vocabulary.breaks))
    return TOKENIZER.decode(tokens).decode("utf-8", "replace"), False


def compiled(source: GrammarSource) -> CompiledGrammar:
    return FRONTEND.compile_grammar(source, "f")


def check_person(value: Any) -> None:
    assert list(value) == ["name", "age", "tags", "place"]
    assert isinstance(value["name"], str)
    assert len(value["name"]) <= 8
    assert 0 <= value["age"] <= 120
    assert all(tag in ("a", "b", 1.5, None) for tag in value["tags"])


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("seed", range(4))
def test_every_way_through_a_schema_is_compact_json(name: str, seed: int) -> None:
    text, is_ended = walk(compiled(schema_source(SCHEMAS[name], "f")), seed)

    assert is_ended
    value = json.loads(text)
    spelled = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert json.loads(spelled) == value
    assert text == text.strip()


@QUICK
@given(st.integers(0, 10_000))
@example(1661)  # a name with an escape and what looks like a separator
def test_every_person_fits_the_schema(seed: int) -> None:
    text, is_ended = walk(compiled(schema_source(PERSON, "f")), seed)

    assert is_ended
    check_person(json.loads(text))
    between_strings = re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)
    assert re.search(r"\s", between_strings) is None


def test_any_object_is_an_object() -> None:
    mask = compiled(ANY_OBJECT).new_matcher().mask()

    assert all(TOKENIZER.piece(token).startswith(b"{") for token in allowed_by(mask))


@pytest.mark.parametrize("seed", range(5))
def test_other_grammars_are_followed_to_their_end(seed: int) -> None:
    choice, _ = walk(compiled(choice_source(["red", "re[d]", "a\nb"], "f")), seed)
    regex, _ = walk(compiled(regex_source("[0-9]{2}(x|yy)", "f")), seed)
    lark, _ = walk(compiled(lark_source('start: "a" ("b" | "c")', "f")), seed)

    assert choice in ("red", "re[d]", "a\nb")
    assert len(regex.rstrip("xy")) == 2
    assert lark in ("ab", "ac")


@pytest.mark.parametrize(
    "source",
    [
        schema_source({"type": "strin"}, "f"),
        schema_source({"type": "string", "pattern": "(("}, "f"),
        schema_source({"type": "string", "format": "unheard-of"}, "f"),
        schema_source({"not": {}}, "f"),
        schema_source({"type": "array", "uniqueItems": True}, "f"),
        schema_source({"oneOf": [{"minLength": 1}, {"type": "string"}]}, "f"),
        schema_source({"$ref": "https://example.com/schema"}, "f"),
        schema_source({"$ref": "#/$defs/nowhere"}, "f"),
        schema_source({"enum": []}, "f"),
        schema_source({"type": "integer", "minimum": 2, "maximum": 1}, "f"),
        schema_source({"properties": 3}, "f"),
        regex_source("(", "f"),
        lark_source("start: nowhere", "f"),
        lark_source("\x00", "f"),
    ],
)
def test_what_cannot_be_honoured_is_refused(source: GrammarSource) -> None:
    with pytest.raises(RequestError) as caught:
        compiled(source)

    assert caught.value.code == "invalid_json_schema"
    assert caught.value.field == "f"
    assert "\n" not in str(caught.value)


def test_matchers_of_one_grammar_are_independent() -> None:
    grammar = compiled(choice_source(["ab", "ac"], "f"))
    first, second = grammar.new_matcher(), grammar.new_matcher()

    first.accept(TOKENIZER.encode("a", parse_special=False)[0])

    assert allowed_by(first.mask()) != allowed_by(second.mask())
    assert grammar.new_matcher().mask() == second.mask()


def test_a_broken_matcher_never_falls_back_to_free_text() -> None:
    matcher = compiled(choice_source(["ab"], "f")).new_matcher()

    with pytest.raises(NinferError) as caught:
        matcher.accept(TOKENIZER.encode("z", parse_special=False)[0])

    assert caught.value.code == "internal_error"
    with pytest.raises(NinferError):
        matcher.mask()
    with pytest.raises(NinferError):
        _ = matcher.may_stop


def test_a_grammar_is_compiled_once_and_forgotten_when_others_are_newer() -> None:
    compiler = GrammarCompiler(TOKENIZER, FRONTEND.stop_ids)
    first = compiler.compile(choice_source(["0"], "f"), "f")

    for number in range(1, CACHE_SIZE):
        compiler.compile(choice_source([str(number)], "f"), "f")
    kept = compiler.compile(choice_source(["0"], "f"), "f")
    for number in range(CACHE_SIZE):
        compiler.compile(choice_source([f"n{number}"], "f"), "f")

    assert kept is first
    assert compiler.compile(choice_source(["0"], "f"), "f") is not first


def test_kinds_with_one_text_are_different_grammars() -> None:
    regex = compiled(GrammarSource(GrammarKind.REGEX, 'start: "a"'))
    lark = compiled(GrammarSource(GrammarKind.LARK, 'start: "a"'))

    assert regex.new_matcher().mask() != lark.new_matcher().mask()


def test_compiling_stops_waiting_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    compiler = GrammarCompiler(TOKENIZER, FRONTEND.stop_ids, limit_s=0.05)
    monkeypatch.setattr(grammar_compiler, "_compiled", lambda *unused: release.wait(120))

    try:
        for _ in range(grammar_compiler.MAX_COMPILERS + 1):
            with pytest.raises(RequestError, match="takes longer"):
                compiler.compile(ANY_OBJECT, "f")
    finally:
        release.set()


def test_a_compiler_that_breaks_refuses_the_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*unused: object) -> None:
        raise MemoryError

    compiler = GrammarCompiler(TOKENIZER, FRONTEND.stop_ids)
    monkeypatch.setattr(grammar_compiler, "_compiled", broken)

    with pytest.raises(RequestError, match="gave up"):
        compiler.compile(ANY_OBJECT, "f")


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_compiler, "_imported", lambda: None)

    with pytest.raises(UnsupportedFeature, match=r"the extra \[structured\]") as caught:
        compiled(ANY_OBJECT)

    assert caught.value.code == "unsupported_parameter"
    assert caught.value.field == "f"


def test_many_threads_compile_one_grammar() -> None:
    compiler = GrammarCompiler(TOKENIZER, FRONTEND.stop_ids)
    masks: list[bytes] = []

    def compile_one() -> None:
        masks.append(compiler.compile(schema_source(PERSON, "f"), "f").new_matcher().mask())

    threads = [threading.Thread(target=compile_one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(masks) == 6
    assert len(set(masks)) == 1
