"""The sandboxed template: golden texts, published globals, limits, refusals."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ninfer.errors import CheckpointError, InvalidPrompt
from ninfer.frontend.chat_template import ChatTemplate
from ninfer.frontend.marked_text import plain_text
from ninfer.frontend.prompt_identity import encode_marked
from ninfer.frontend.template_budget import RenderLimits
from tests.support.chat_templates import EFFORT, LAST_QUERY
from tests.support.frontends import CASES, cases, frontend, resources
from tests.support.quick_examples import QUICK

GOLDEN = [pytest.param(case, index, id=f"{case}-{index}") for case in CASES for index in range(5)]


def rendered(source: str, messages: list[dict[str, Any]] | None = None, **variables: Any) -> str:
    """Text of a template over some messages."""
    template = ChatTemplate(source)
    return plain_text(template.render(messages or [], variables=variables))


@pytest.mark.parametrize(("case", "index"), GOLDEN)
def test_golden_template_input_has_the_golden_text_and_ids(case: str, index: int) -> None:
    golden = cases(case, "chat_cases.json")[index]
    given = dict(golden["input"])
    template = ChatTemplate(resources(case)["frontend/chat_template.jinja"].decode())

    text = template.render(
        given.pop("messages"),
        tools=given.pop("tools", None),
        add_generation_prompt=given.pop("add_generation_prompt"),
        variables=given,
    )

    encoded = encode_marked(frontend(case).tokenizer, text)
    assert encoded.text == golden["text"]
    assert list(encoded.token_ids) == golden["ids"]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ {'a': '<é>', 'b': [1, 2.5]} | tojson }}", '{"a": "<é>", "b": [1, 2.5]}'),
        ("{{ [1] | tojson(indent=1) }}", "[\n 1\n]"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% for i in 'abc' %}{% if i == 'b' %}{% continue %}{% endif %}{{ i }}{% endfor %}", "ac"),
        ("a\n  {% if true %}\nb\n  {% endif %}\nc", "a\nb\nc"),
        ("{% generation %}x{{ 1 }}{% endgeneration %}", "x1"),
        ("{{ ['a', 'b'] | join('-') }}{{ 'xyx' | replace('x', 'z') }}", "a-bzyz"),
        ("{{ [{'n': 1}, {'n': 2}] | join(',', attribute='n') }}", "1,2"),
        ("{{ 'a' ~ 1 ~ none }}{{ '%s' | format('b') }}{{ 2 ** 3 }}{{ 'ab' * 2 }}", "a1Noneb8abab"),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m('k') }}", "<k>"),
        ("{% set ns = namespace(a=1) %}{% set ns.a = 2 %}{{ ns.a }}", "2"),
        ("{{ ('a', 'b')[1] }}{{ {'k': 'v'}['k'] }}{{ ['x'][0] }}", "bvx"),
    ],
)
def test_templates_render_as_the_published_engine_does(source: str, text: str) -> None:
    assert rendered(source) == text


def published_engine(source: str) -> Any:
    """The template in the engine library itself, set up as the published code does it."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(source)


SOURCES = {
    "golden": resources()["frontend/chat_template.jinja"].decode(),
    "last query": LAST_QUERY,
    "effort": EFFORT,
}
OURS = {name: ChatTemplate(source) for name, source in SOURCES.items()}
PUBLISHED = {name: published_engine(source) for name, source in SOURCES.items()}
SAID = st.text("ab \n<>/é", max_size=6) | st.sampled_from(
    ["<think>\na\n</think>\n\nb", "</think>", "<tool_response>x</tool_response>", " <|im_end|> "]
)
CALLS = st.lists(
    st.fixed_dictionaries({"x": SAID, "y": st.lists(SAID, max_size=2), "z": st.integers()}),
    max_size=2,
).map(lambda calls: [{"function": {"name": "f", "arguments": call}} for call in calls])
TURNS = st.lists(
    st.one_of(
        st.fixed_dictionaries({"role": st.sampled_from(["user", "tool"]), "content": SAID}),
        st.fixed_dictionaries(
            {"role": st.just("assistant"), "content": SAID},
            optional={"reasoning_content": SAID, "tool_calls": CALLS},
        ),
    ),
    max_size=6,
)


@pytest.mark.parametrize("name", SOURCES)
@QUICK
@given(turns=TURNS, system=SAID, tools=st.lists(st.dictionaries(SAID, SAID), max_size=2))
def test_any_conversation_renders_as_the_engine_library_renders_it(
    name: str, turns: list[Any], system: str, tools: list[Any]
) -> None:
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": "question"},
        *turns,
    ]

    ours = OURS[name].render(messages, tools=tools)

    expected = PUBLISHED[name].render(messages=messages, tools=tools, add_generation_prompt=True)
    assert plain_text(ours) == expected


def test_a_template_marks_what_it_writes_and_nothing_else() -> None:
    template = ChatTemplate("<a>{{ x | trim }}{{ '<b>' + x + '<c>' }}{{ x.split(';')[0] ~ '<d>' }}")

    text = template.render([], variables={"x": " u;v "})

    marked = "".join(plain_text(text)[first:last] for first, last in text.spans)
    assert plain_text(text) == "<a>u;v<b> u;v <c> u<d>"
    assert marked == "<a><b><c><d>"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no such role') }}",
        "{{ strftime_now('%Y') }}",
        "{{ messages[3].role }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ 1 / 0 }}",
        "{{ missing.member }}",
        "{{ [missing] | tojson }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ 10 ** (10 ** 10) }}",
        "{{ 'x' * 100000000 }}{{ 100000000 * 'x' }}",
    ],
)
def test_whatever_goes_wrong_in_a_template_is_an_invalid_prompt(source: str) -> None:
    with pytest.raises(InvalidPrompt) as caught:
        rendered(source)

    assert caught.value.code == "invalid_prompt"


def test_the_reason_a_template_gives_is_passed_on() -> None:
    with pytest.raises(InvalidPrompt, match="no such role"):
        rendered("{{ raise_exception('no such role') }}")


def test_python_errors_never_show_text_of_the_prompt() -> None:
    with pytest.raises(InvalidPrompt) as caught:
        rendered("{{ messages[0].content + 1 }}", [{"role": "user", "content": "secret"}])

    assert "secret" not in str(caught.value)


def test_a_template_that_writes_too_much_is_stopped() -> None:
    source = "{% for i in range(100) %}{{ 'x' * 50 }}{% endfor %}"
    template = ChatTemplate(source, limits=RenderLimits(max_characters=1000))

    with pytest.raises(InvalidPrompt, match="longer than 1000 characters"):
        template.render([])


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(100) %}{% for j in range(100) %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n-1) ~ m(n-1) }}{% endif %}{% endmacro %}{{ m(20) }}",
    ],
)
def test_a_template_that_runs_too_long_is_stopped(source: str) -> None:
    ticks = iter(range(10**6))
    template = ChatTemplate(
        source, limits=RenderLimits(max_seconds=500), clock=lambda: float(next(ticks))
    )

    with pytest.raises(InvalidPrompt, match="longer than 500 s"):
        template.render([])


def test_each_rendering_has_the_whole_time() -> None:
    ticks = iter(range(10**6))
    template = ChatTemplate(
        "{% for i in range(8) %}{{ i }}{% endfor %}",
        limits=RenderLimits(max_seconds=10),
        clock=lambda: float(next(ticks)),
    )

    texts = {plain_text(template.render([])) for _ in range(5)}

    assert texts == {"01234567"}


@pytest.mark.parametrize("source", ["{% if %}", "{{ 'open", "{% unknown %}"])
def test_a_template_that_does_not_compile_is_refused(source: str) -> None:
    with pytest.raises(CheckpointError, match="chat_template"):
        ChatTemplate(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
        "{{ " + "not " * 5000 + "1 }}",
        "{{ 1" + " | string" * 5000 + " }}",
        "{% for a in b %}" * 60 + "{% endfor %}" * 60,
        "{% if a %}" * 400 + "{% endif %}" * 400,
        "{% macro f(a, a) %}{% endmacro %}",
        "{{ f(a=1, a=2) }}",
        "{{ " + "9" * 6000 + " }}",
    ],
)
def test_a_template_beyond_what_the_compilers_take_is_refused(source: str) -> None:
    with pytest.raises(CheckpointError, match="cannot be compiled"):
        ChatTemplate(source)


def test_variables_are_those_a_caller_may_set() -> None:
    template = ChatTemplate("{% if enable_thinking %}{{ messages }}{{ tools }}{% endif %}")

    assert template.variables == {"enable_thinking"}
