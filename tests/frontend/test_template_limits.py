"""No single operation of a template gets around the limits of a rendering."""

import time
import tracemalloc
from typing import Any

import pytest

from ninfer.errors import InvalidPrompt
from ninfer.frontend.chat_template import ChatTemplate
from ninfer.frontend.marked_text import plain_text
from ninfer.frontend.template_budget import RenderLimits
from tests.support.frontends import resources

LIMITS = RenderLimits(max_characters=1 << 20, max_seconds=0.5)
MOST_BYTES = 48 << 20
MOST_SECONDS = 2.5  # of this thread: other processes do not count

LOOP = "{% for i in range(30000) %}"
DOUBLED = "{% set ns = namespace(x=" + "START) %}" + LOOP + "{% set ns.x = GROWN %}{% endfor %}"
GROWN = [
    ("'a'", "ns.x + ns.x"),
    ("'a'", "ns.x ~ ns.x"),
    ("'a'", "ns.x * 2"),
    ("'a'", "[ns.x, ns.x] | join"),
    ("'a'", "''.join([ns.x, ns.x])"),
    ("'a'", "ns.x.replace('a', 'aa')"),
    ("'a'", "ns.x | replace('a', 'aa')"),
    ("'a'", "'%s%s' % (ns.x, ns.x)"),
    ("'a'", "'%s%s' | format(ns.x, ns.x)"),
    ("'a'", "'{0}{0}'.format(ns.x)"),
    ("'a'", "{'a': ns.x, 'b': ns.x} | string"),
    ("'a'", "[ns.x] | tojson"),
    ("'<'", "ns.x | escape | string"),
    ("'a'", "('<' | safe) + ns.x + ns.x"),
    ("[1]", "ns.x + ns.x"),
    ("[1]", "ns.x * 2"),
    ("[1]", "[ns.x, ns.x]"),
    ("(1,)", "(ns.x, ns.x)"),
    ("{}", "{'a': ns.x, 'b': ns.x}"),
    ("{}", "dict(a=ns.x, b=ns.x)"),
    ("[]", "[ns.x, i]"),
    ("[]", "[ns.x, 'a' * 1000 ~ i]"),
    ("[]", "[ns.x, ('a' * 100000 ~ i)[1:]]"),
    ("[]", "[ns.x, ('a' * 100000 ~ ';b').split(';')[0]]"),
    ("3", "ns.x * ns.x"),
    ("3", "ns.x ** 60"),
]
SINGLE = [
    "{{ ('ab' * 500000) | wordwrap(1) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%.1000000000f' % 1.5 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:{}}'.format(1, 1000000000) }}",
    "{{ '{a:1000000000}'.format_map({'a': 1}) }}",
    "{{ ('a' * 1000).join(['b'] * 10000000) }}",
    "{{ (['b'] * 10000) | join('a' * 100000) }}",
    "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
    "{{ ('a' * 100000) | replace('a', 'b' * 100000) }}",
    "{{ ('a' * 100000).replace('', 'b' * 100000) }}",
    "{{ 'a' | batch(10 ** 9, 'x') | list }}",
    "{{ 'a' | batch(1000000000, 'x') | list }}",
    "{{ 'a' | center(1000000000) }}",
    "{{ 'a'.center(1000000000) }}",
    "{{ 'a'.ljust(1000000000) }}",
    "{{ 'a'.rjust(1000000000) }}",
    "{{ 'a'.zfill(1000000000) }}",
    "{{ ('\t' * 1000).expandtabs(1000000) }}",
    "{{ ('x' * 1000000) | indent(1000000, true) }}",
    "{{ ('x\n' * 10000) | indent(10000) }}",
    "{{ [1] | tojson(indent=1000000000) }}",
    "{{ ([[[[1]]]] * 9000) | tojson(indent=999) }}",
    "{{ [1] | sum(start='a' * 9) }}",
    "{{ [[1]] | sum(start=[]) }}",
    "{{ 12 | round(-1000000000) }}",
    "{{ ('f' * 1000000) | int(base=16) }}",
    "{{ 10 ** (10 ** 10) }}",
    "{{ ('a' * 500000).rfind('b' + 'a' * 250000) }}",
    "{{ ('a' * 500000).rsplit('b' + 'a' * 250000) }}",
    "{{ ('a ' * 500000).split() | length }}",
    "{{ ('a' * 1000000) | list | length }}",
    "{{ 'a'.encode('utf-8') }}",
    "{{ dict([[1, 2]]) }}",
    "{% for c in 'a' * 1000000 if false %}{% endfor %}",
    "{% macro m() %}" + LOOP + LOOP + "{{ i }}" * 100 + "{% endfor %}{% endfor %}{% endmacro %}"
    "{{ m() | length }}",
    "{% macro m() %}" + LOOP + LOOP + "{{ '' }}a{{ i }}{% endfor %}{% endfor %}{% endmacro %}"
    "{{ m() | length }}",
    "{% set a = 'a' * 1000000 %}{% set b = 'a' * 999999 + 'a' %}"
    + LOOP
    + "{% for j in range(30000) if a != b %}{% endfor %}{% endfor %}",
    "{% macro m() %}{{ m(*(range(99999) | list)) }}{% endmacro %}{{ m(*(range(9999) | list)) }}",
]
HOSTILE = SINGLE + [
    DOUBLED.replace("START", start).replace("GROWN", grown) for start, grown in GROWN
]


@pytest.mark.parametrize("source", HOSTILE)
def test_an_operation_without_bounds_ends_in_time_and_in_little_memory(source: str) -> None:
    template = ChatTemplate(source, limits=LIMITS)
    begun = time.thread_time()
    tracemalloc.start()
    try:
        with pytest.raises(InvalidPrompt, match="refuses this"):
            template.render([])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert time.thread_time() - begun < MOST_SECONDS
    assert peak < MOST_BYTES


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("{{ 'a' | wordwrap(1) }}", "wordwrap"),
        ("{{ 'a' | center(1) }}", "center"),
        ("{{ ['a'] | map('urlize') | list }}", "urlize"),
        ("{{ 'a'.expandtabs(2) }}", "expandtabs"),
        ("{{ [1].__len__() }}", "__len__"),
        ("{{ 'a'.translate({}) }}", "translate"),
    ],
)
def test_what_templates_may_not_use_is_refused_by_name(source: str, name: str) -> None:
    with pytest.raises(InvalidPrompt, match=name):
        ChatTemplate(source).render([])


def test_what_templates_may_not_use_is_no_obstacle_where_it_is_not_reached() -> None:
    template = ChatTemplate("{% if false %}{{ 'a' | wordwrap(1) }}{% endif %}b")

    assert plain_text(template.render([])) == "b"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'a-b' | replace('-', '') | upper | trim }}", "AB"),
        ("{{ [3, 1, 2] | sort | reverse | join(',') }}", "3,2,1"),
        ("{{ [{'a': 1}, {'a': 2}] | map(attribute='a') | list }}", "[1, 2]"),
        ("{{ [{'a': 1}, {}] | selectattr('a', 'defined') | list | length }}", "1"),
        ("{{ [{'a': 1}] | rejectattr('a', 'equalto', 1) | list | tojson }}", "[]"),
        ("{{ [1, 2, 3] | select('odd') | list }}{{ [1, 2] | sum }}", "[1, 3]3"),
        ("{% for k, v in {'b': 1, 'a': 2} | dictsort %}{{ k ~ v }}{% endfor %}", "a2b1"),
        ("{% for k, v in {'b': 1}.items() %}{{ k ~ v }}{% endfor %}", "b1"),
        ("{{ {'a': 1}.get('a') }}{{ {'a': 1}.keys() | list }}", "1['a']"),
        ("{{ 'a,b,,c'.split(',', 1) }}{{ 'a b'.rsplit(' ')[-1] }}", "['a', 'b,,c']b"),
        ("{{ '%05.1f|%s' % (2.25, 'x') }}{{ '%(a)s%%' | format(a=1) }}", "002.2|x1%"),
        ("{{ '{:>3}{a}'.format(1, a='b') }}", "  1b"),
        ("{{ [1, 2, 3][::-1] }}{{ 'abc'[1:] }}{{ (1, 2)[:1] }}", "[3, 2, 1]bc(1,)"),
        ("{{ 'x\ny' | indent(2, first=true) }}", "  x\n  y"),
        ("{{ {'a': [1]} | tojson(indent=2) | safe }}", '{\n  "a": [\n    1\n  ]\n}'),
        ("{% set ns = namespace(l=[]) %}{% set ns.l = ns.l + ['a'] %}{{ ns.l }}", "['a']"),
        (
            "{% for x in [[1, [2]]] recursive %}{{ x if x is number else loop(x) }}{% endfor %}",
            "12",
        ),
        ("{% set c = cycler('a', 'b') %}{{ c.next() ~ c.next() }}{{ loop is defined }}", "abFalse"),
        (
            "{% for i in [1, 2] %}{{ loop.cycle('a', 'b') }}{{ loop.last }}{% endfor %}",
            "aFalsebTrue",
        ),
        ("{% filter upper %}a{% endfilter %}{% set x %}b{% endset %}{{ x }}", "Ab"),
        (
            "{% macro m(a) %}{{ a }}{{ caller() }}{% endmacro %}{% call m(0) %}d{% endcall %}",
            "0d",
        ),
        ("{{ '5' | int + 1.0 }}{{ 2.345 | round(1) }}{{ -3 | abs }}", "6.02.33"),
        ("{{ 'ab' | first ~ 'ab' | last }}{{ 'x' in 'xy' }}{{ {} | length }}", "abTrue0"),
    ],
)
def test_what_published_templates_use_renders_as_ever(source: str, text: str) -> None:
    assert plain_text(ChatTemplate(source).render([])) == text


def conversation(size: int) -> list[dict[str, Any]]:
    """A conversation of about so many characters."""
    text = "<think>\nso\n</think>\n\nSome words of an answer, and a few more.\n" * 8
    turn = [{"role": "user", "content": text}, {"role": "assistant", "content": text}]
    return turn * (size // (2 * len(text)))


def test_a_long_conversation_renders_within_a_second_or_so() -> None:
    template = ChatTemplate(resources()["frontend/chat_template.jinja"].decode())
    messages = [*conversation(1 << 20), {"role": "user", "content": "last"}]
    begun = time.thread_time()

    text = template.render(messages)

    assert len(text) > 1 << 19
    assert time.thread_time() - begun < MOST_SECONDS


def test_values_that_are_no_longer_used_cost_nothing() -> None:
    source = (
        "{% set ns = namespace(x='a' * 100000) %}{% for i in range(999) %}"
        "{% set ns.x = (ns.x ~ 'b')[1:] %}{% endfor %}{{ ns.x | length }}"
    )
    limits = RenderLimits(max_characters=1 << 18, max_seconds=20)

    assert plain_text(ChatTemplate(source, limits=limits).render([])) == "100000"
