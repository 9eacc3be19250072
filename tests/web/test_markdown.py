"""The Markdown of the page, run in the browser: right elements, nothing else, and growing text."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.web.browser import Page

pytestmark = pytest.mark.browser

RENDER = """const {MarkdownView, renderMarkdown} = await import("/web/markdown.js");
const html = (text) => {
  const place = document.createElement("div");
  place.append(renderMarkdown(text));
  // Icons and buttons of code blocks are the page's own.
  place.querySelectorAll("button").forEach((button) => button.remove());
  return place.innerHTML;
};
"""
LINK = 'rel="noopener noreferrer" target="_blank"'
FIGURE = '<figure class="code"><figcaption><span>{0}</span></figcaption>'
FIGURE += '<pre tabindex="0" aria-label="{0} block"><code>{1}</code></pre></figure>'
CASES = [
    ("one\ntwo\n\nthree", "<p>one<br>two</p><p>three</p>"),
    ("# One\n### Three ##\n####### x", "<h3>One</h3><h5>Three</h5><p>####### x</p>"),
    ("#no", "<p>#no</p>"),
    (
        "**a** __b__ *c* _d_ ~~e~~",
        "<p><strong>a</strong> <strong>b</strong> <em>c</em> <em>d</em> <del>e</del></p>",
    ),
    ("***a***", "<p><em><strong>a</strong></em></p>"),
    ("*a **b** c*", "<p><em>a <strong>b</strong> c</em></p>"),
    ("snake_case_name and 2 * 3 * 4", "<p>snake_case_name and 2 * 3 * 4</p>"),
    ("**open and `co*de*", "<p>**open and `co<em>de</em></p>"),
    ("`` a`b `` and `*c*`", "<p><code>a`b</code> and <code>*c*</code></p>"),
    (r"\*no\* \a", r"<p>*no* \a</p>"),
    ("[t](https://a.org/x_(y) 'title')", f'<p><a href="https://a.org/x_(y)" {LINK}>t</a></p>'),
    ("[**t**](http://a.org)", f'<p><a href="http://a.org/" {LINK}><strong>t</strong></a></p>'),
    (
        "see https://a.org/b?c=d.",
        f'<p>see <a href="https://a.org/b?c=d" {LINK}>https://a.org/b?c=d</a>.</p>',
    ),
    ("(<https://a.org>)", f'<p>(<a href="https://a.org/" {LINK}>https://a.org</a>)</p>'),
    ("![p](https://a.org/p.png)", f'<p><a href="https://a.org/p.png" {LINK}>p</a></p>'),
    (
        "[![p](https://a.org/p)](https://b.org)",
        f'<p><a href="https://b.org/" {LINK}>p</a></p>',
    ),
    ("[https://a.org](https://b.org)", f'<p><a href="https://b.org/" {LINK}>https://a.org</a></p>'),
    (
        "![x [y](https://a.org)](https://b.org)",
        f'<p>![x <a href="https://a.org/" {LINK}>y</a>]'
        f'(<a href="https://b.org/" {LINK}>https://b.org</a>)</p>',
    ),
    (
        "[a](javascript:x) [b](data:text/html,x) [c](/d)",
        "<p>[a](javascript:x) [b](data:text/html,x) [c](/d)</p>",
    ),
    ("<b>x</b> &amp; <script>", "<p>&lt;b&gt;x&lt;/b&gt; &amp;amp; &lt;script&gt;</p>"),
    ("a<br>b", "<p>a<br>b</p>"),
    ("```py\na *b*\n\n  c\n```\nd", FIGURE.format("py", "a *b*\n\n  c") + "<p>d</p>"),
    ("~~~\n```\n~~~", FIGURE.format("Code", "```")),
    ("```\nnever closed", FIGURE.format("Code", "never closed")),
    ("- a\n- b\n  - c\n\n    d", "<ul><li>a</li><li>b<ul><li><p>c</p><p>d</p></li></ul></li></ul>"),
    ("3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'),
    ("1. a\n  - b\n2. c", "<ol><li>a<ul><li>b</li></ul></li><li>c</li></ol>"),
    ("- a\n\n- b", "<ul><li><p>a</p></li><li><p>b</p></li></ul>"),
    ("- a\nb\n\nc", "<ul><li>a<br>b</li></ul><p>c</p>"),
    ("a\n2. b\n- c\n2. d", '<p>a<br>2. b</p><ul><li>c</li></ul><ol start="2"><li>d</li></ol>'),
    ("> a\n> - b\n\nc", "<blockquote><p>a</p><ul><li>b</li></ul></blockquote><p>c</p>"),
    ("a\n\n---\n\n* * *", "<p>a</p><hr><hr>"),
    ("a\r\nb\r\n\r\nc", "<p>a<br>b</p><p>c</p>"),
]
FRAGMENTS = [
    *("a", "b ", "*", "**", "_", "`", "```", "~~~", "\n", "\n\n", "- ", "1. ", "2) ", "> ", "# "),
    *("  ", "    ", "| ", "|--|--|\n", "a|b\n", "---", "[", "](https://a.org)", "!", "\\", "<br>"),
    *("https://b.org", "- [x] ", "\r", "é", "😀"),
]
DEEP_TEXTS = {
    "quotes": "> " * 4000,
    "lists": "".join(" " * 2 * depth + "- a\n" for depth in range(300)),
    "emphasis": "*a **b " * 4000 + "c** d* " * 4000,
    "stars": "x" + "*" * 30000 + "y",
    "brackets": "[" * 20000 + "](https://a.org)" * 2000,
    "ticks": "".join("`" * (size % 90 + 1) + "x" for size in range(1500)),
    "addresses": "http://[" * 4000,
    "bars": "|" * 20000 + "\n" + "|-" * 10000,
    "spaces": "a" + " " * 30000 + "b",
    "pictures": "![" * 20000 + "](https://a.org)" * 20000,
    "target": "[a](" + " " * 30000 + "x",
    "fence": "```" + " " * 30000 + "`",
    "heading": "# " + "#" * 30000 + "x " + " " * 30000 + "\u2028",
    "openers": "*a " * 20000 + "_b_ " * 5000,
    "closers": "a* " * 20000 + "**b** " * 5000,
}


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_text_becomes_these_elements(modules: Page, text: str, expected: str) -> None:
    assert modules.run(RENDER + "return html(args[0])", text) == expected


def test_table_keeps_alignment_escaped_bars_and_missing_cells(modules: Page) -> None:
    text = "| a | b | c |\n|:--|:-:|--:|\n| 1 \\| 2 | `x|y` |\nend"

    rows = modules.run(
        RENDER
        + """const place = document.createElement("div");
        place.innerHTML = html(args[0]);
        const cells = (row) => [...row.children].map((cell) => [cell.className, cell.textContent]);
        return [[...place.querySelectorAll("tr")].map(cells), place.lastChild.textContent]""",
        text,
    )

    assert rows == [
        [
            [["align-left", "a"], ["align-center", "b"], ["align-right", "c"]],
            [["align-left", "1 | 2"], ["align-center", "x|y"], ["align-right", ""]],
        ],
        "end",
    ]


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    fragments=st.lists(st.sampled_from(FRAGMENTS), max_size=30),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
)
def test_growing_text_ends_like_the_whole_text(
    modules: Page, fragments: list[str], sizes: list[int]
) -> None:
    text = "".join(fragments)

    grown, whole = modules.run(
        RENDER
        + """const [text, sizes] = args;
        const place = document.createElement("div");
        const view = new MarkdownView(place);
        for (let end = 0, turn = 0; end < text.length; turn += 1) {
          end += sizes[turn % sizes.length];
          view.update(text.slice(0, end));
        }
        place.querySelectorAll("button").forEach((button) => button.remove());
        return [place.innerHTML, html(text)]""",
        text,
        sizes,
    )

    assert grown == whole


def test_settled_blocks_are_not_built_again(modules: Page) -> None:
    is_same = modules.run(
        RENDER
        + """const place = document.createElement("div");
        const view = new MarkdownView(place);
        view.update("# a\\n\\nb\\n\\nc\\nd\\ne");
        const [heading] = place.children;
        view.update("# a\\n\\nb\\n\\nc\\nd\\ne f\\n\\ng");
        return heading === place.firstChild && place.children.length === 4"""
    )

    assert is_same


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.sampled_from(
            [*FRAGMENTS, "<script>", "<img src=x onerror=alert(1)>", "](javascript:alert(1))"]
        ),
        max_size=20,
    )
)
def test_only_harmless_elements_and_links_come_out(modules: Page, fragments: list[str]) -> None:
    allowed = "p br strong em del code a span h3 h4 h5 h6 hr blockquote ul ol li figure figcaption"
    allowed += " pre div table thead tbody tr th td"

    tags, links = modules.run(
        RENDER
        + """const place = document.createElement("div");
        place.innerHTML = html(args[0]);
        const nodes = [...place.querySelectorAll("*")];
        const links = nodes.filter((node) => node.href !== undefined);
        return [
          nodes.map((node) => node.localName),
          links.map((link) => [link.protocol, link.rel]),
        ]""",
        "".join(fragments),
    )

    assert set(tags) <= set(allowed.split())
    assert {protocol for protocol, _ in links} <= {"http:", "https:"}
    assert {rel for _, rel in links} <= {"noopener noreferrer"}


@pytest.mark.parametrize("name", DEEP_TEXTS)
def test_hostile_text_is_rendered_shallow_and_whole(modules: Page, name: str) -> None:
    depth, length = modules.run(
        RENDER
        + """const place = document.createElement("div");
        place.append(renderMarkdown(args[0]));
        const depthOf = (node) => {
          let depth = 0;
          for (; node !== place; node = node.parentNode) depth += 1;
          return depth;
        };
        const leaves = [...place.querySelectorAll(":not(:has(*))")];
        return [Math.max(0, ...leaves.map(depthOf)), place.textContent.length]""",
        DEEP_TEXTS[name],
    )

    assert depth < 80
    assert length > 0
