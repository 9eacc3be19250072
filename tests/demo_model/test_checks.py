"""What the rules accept, and what not."""

import pytest

from tools.demo_model.data.checks import check
from tools.demo_model.data.conversation import Call, Conversation, Expected, Rule


def _judged(rule: Rule, value: str, text: str, *calls: Call) -> bool:
    conversation = Conversation("x", (), (), False, Expected(rule, value))
    return check(conversation, text, calls)


@pytest.mark.parametrize(
    ("rule", "value", "text", "is_right"),
    [
        (Rule.NUMBER, "12", "5 + 7 = 12", True),
        (Rule.NUMBER, "12", "The answer is 12.", True),
        (Rule.NUMBER, "12", "12 or 13", False),
        (Rule.NUMBER, "12", "112", False),
        (Rule.NUMBER, "-3", "4 - 7 = -3", True),
        (Rule.NUMBER, "3", "4 - 7 = -3", False),
        (Rule.NUMBER, "3", "", False),
        (Rule.CONTAINS, "Paris", "the capital is paris.", True),
        (Rule.CONTAINS, "Paris", "It is Parisian.", False),
        (Rule.CONTAINS, "北京", "中国的首都是北京。", True),
        (Rule.EXACT, "Rome", "Rome.", True),
        (Rule.EXACT, "Rome", "It is Rome.", False),
        (Rule.ENDS, "TAC", "cat backwards is TAC.", True),
        (Rule.ENDS, "TAC", "cat backwards is STAC.", False),
        (Rule.LIST, "1, 2, 3", "2, left 1\n\n1, 2, 3", True),
        (Rule.LIST, "1, 2, 3", "11, 2, 3", False),
        (Rule.LIST, "1, 2, 3", "0, 1, 2, 3", False),
        (Rule.JSON, '{"a": 1}', '{"a":1}', True),
        (Rule.JSON, '{"a": 1}', '```json\n{"a": 1}\n```', True),
        (Rule.JSON, '{"a": 1}', '{"a": "1"}', False),
        (Rule.JSON, '{"a": 1}', "a is 1", False),
        (Rule.CODE, "sum(x)", "```python\nsum(x)\n```", True),
        (Rule.CODE, "sum(x)", "sum(y)", False),
        (Rule.ONE_OF, "Hello!\n\nHi!", "Hi!", True),
        (Rule.ONE_OF, "Hello!\n\nHi!", "Hey!", False),
        (Rule.UPPER, "Rome", "IT IS ROME.", True),
        (Rule.UPPER, "Rome", "It is ROME.", False),
        (Rule.LOWER, "Rome", "it is rome.", True),
        (Rule.STORY, "fox|Anna", "A fox. It is Anna. It ran. The end.", True),
        (Rule.STORY, "fox|Anna", "A fox named Anna.", False),
        (Rule.STORY, "fox|Anna", "A fox. It is Ben. It ran. The end.", False),
    ],
)
def test_rule_judges_the_text(rule: Rule, value: str, text: str, is_right: bool) -> None:
    assert _judged(rule, value, text) is is_right


def test_text_rule_refuses_calls() -> None:
    assert not _judged(Rule.EXACT, "x", "x", Call("f", ()))


@pytest.mark.parametrize(
    ("calls", "is_right"),
    [
        ((Call("f", (("a", 1),)),), True),
        ((Call("g", (("a", 1),)),), False),
        ((Call("f", (("a", "1"),)),), False),
        ((Call("f", (("b", 1),)),), False),
        ((), False),
        ((Call("f", (("a", 1),)), Call("f", (("a", 1),))), False),
    ],
)
def test_call_rule_wants_exactly_the_call(calls: tuple[Call, ...], is_right: bool) -> None:
    expected = Expected(Rule.CALL, calls=(Call("f", (("a", 1),)),))

    assert check(Conversation("x", (), (), False, expected), "", calls) is is_right
