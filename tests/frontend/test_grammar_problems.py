"""What is told of a grammar that cannot be used: the reason, without the library's insides."""

from typing import Any

import pytest

from ninfer.errors import GrammarUnusable, NinferError, RequestError
from ninfer.frontend.grammar_problems import matcher_failure
from ninfer.frontend.grammar_source import GrammarSource, lark_source, regex_source, schema_source
from tests.support.frontends import frontend

FRONTEND = frontend()


def refusal(source: GrammarSource) -> str:
    pytest.importorskip("llguidance", reason="needs the extra [structured]")
    with pytest.raises(RequestError) as caught:
        FRONTEND.compile_grammar(source, "f")
    assert caught.value.code == "invalid_json_schema"
    return str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        schema_source({"$ref": "#"}, "f"),
        regex_source(r"[^\s\S]", "f"),
        lark_source('start: a\na: a "x"', "f"),
    ],
)
def test_a_grammar_without_any_answer_is_told_so(source: GrammarSource) -> None:
    assert refusal(source) == "f allows no answer"


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("((", "the expression '((' is invalid: unclosed group"),
        ("x(?=y)", "look-around, including look-ahead and look-behind, is not supported"),
        (r"(a)\1", "backreferences are not supported"),
        ("a{3,1}", "invalid repetition count range, the start must be <= the end"),
        ("a" * 90 + "(", " is invalid: unclosed group"),
        ("a\n(\nb", "unclosed group"),
        (r"\p{Foo}", "Unicode property not found"),
    ],
)
@pytest.mark.parametrize("kind", ["regex", "schema", "lark"])
def test_a_bad_expression_is_refused_with_the_reason(kind: str, pattern: str, reason: str) -> None:
    schema: dict[str, Any] = {"type": "string", "pattern": pattern}
    escaped = pattern.replace("\n", r"\n")
    source = {
        "regex": regex_source(pattern, "f"),
        "schema": schema_source(schema, "f"),
        "lark": lark_source(f"start: /{escaped}/", "f"),
    }[kind]

    message = refusal(source)

    assert reason in message
    assert "regex parse error" not in message
    assert ("line 1" in message) is (kind == "lark")
    assert "\n" not in message
    assert len(message) < 250


def test_an_expression_of_a_grammar_is_found_by_its_line() -> None:
    message = refusal(lark_source('start: "a" b\nb: /[z-a]/', "f"))

    assert message.startswith("f is not usable: line 2: the expression '[z-a]' is invalid: ")


def test_a_fault_of_a_grammar_is_found_by_its_line() -> None:
    message = refusal(lark_source('start: "a" b\nb: nowhere', "f"))

    assert message == 'f is not usable: line 2: unknown name: "nowhere"'


def test_unknown_controls_are_not_answered_with_a_list() -> None:
    message = refusal(lark_source("start: <|nope|>", "f"))

    assert message == 'f is not usable: line 1: unknown special token: "<|nope|>"'


def test_a_forbidden_token_is_our_fault_and_not_quoted() -> None:
    error = matcher_failure("Parser Error: token \"secret\" doesn't satisfy the grammar; got 's'")

    assert type(error) is NinferError
    assert "forbids the token" in str(error)
    assert "secret" not in str(error)


def test_what_the_library_newly_says_is_told_without_its_quotations() -> None:
    error = matcher_failure('something "sec\\"ret" and \'secret\' happened\n<non-verbose/>')

    assert type(error) is NinferError
    assert str(error) == "the grammar could not be followed: something ... and ... happened"


def test_a_dead_end_is_the_grammars_fault() -> None:
    error = matcher_failure("NoExtensionBias\n<non-verbose/>")

    assert isinstance(error, GrammarUnusable)
    assert str(error).endswith("it comes to a place where nothing can follow")
