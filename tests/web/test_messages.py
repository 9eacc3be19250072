"""The page's plain modules, run in the browser: answers, requests, storage, export."""

from typing import Any

import pytest

from tests.web.browser import Page

pytestmark = pytest.mark.browser

IMPORTS = """const m = await import("/web/messages.js");
const c = await import("/web/conversations.js");
const s = await import("/web/settings.js");
const x = await import("/web/conversation_export.js");
class Shelf {
  constructor(limit = Infinity) { this.limit = limit; this.kept = new Map(); }
  getItem(key) { return this.kept.get(key) ?? null; }
  removeItem(key) { this.kept.delete(key); }
  setItem(key, value) {
    if (value.length > this.limit) throw new DOMException("full", "QuotaExceededError");
    this.kept.set(key, value);
  }
}
"""
FOLD = """const answer = m.newAnswer(1000);
args[0].forEach((chunk, index) => m.applyChunk(answer, chunk, 1100 + 100 * index));
m.endAnswer(answer, "done", 3000);
return [answer, m.figures(answer)]"""


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def test_chunks_fold_into_text_thinking_calls_and_times(modules: Page) -> None:
    call = {"index": 0, "id": "call_1", "function": {"name": "f", "arguments": ""}}
    chunks = [
        chunk(role="assistant", content=""),
        {"choices": [], "prompt_progress": {"total": 9, "cache": 0, "processed": 9}},
        chunk(reasoning_content="a"),
        chunk(reasoning_content="b"),
        chunk(content="c"),
        chunk(content="d", tool_calls=[call]),
        chunk(tool_calls=[{"index": 0, "function": {"arguments": '{"k"'}}]),
        chunk(tool_calls=[{"index": 0, "function": {"arguments": ":1}"}}]),
        chunk("tool_calls"),
        {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 12}},
    ]

    answer, figures = modules.run(IMPORTS + FOLD, chunks)

    assert (answer["thinking"], answer["text"], answer["finish"]) == ("ab", "cd", "tool_calls")
    assert answer["toolCalls"] == [{"id": "call_1", "name": "f", "arguments": '{"k":1}'}]
    times = {"sentMs": 1000, "firstMs": 1300, "thoughtMs": 1500, "endMs": 3000}
    assert answer["times"] == times
    assert figures["firstTokenS"] == 0.3
    # Eleven intervals between the first token at 1.3 s and the end at 3 s.
    assert figures["tokensPerSecond"] == pytest.approx(11 / 1.7)
    assert figures["cachedTokens"] is None


def test_figures_prefer_what_the_server_measured(modules: Page) -> None:
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    last = {"choices": [], "usage": usage, "timings": {"predicted_per_second": 50.5}}

    _, figures = modules.run(IMPORTS + FOLD, [chunk(content="a"), last])

    assert figures == {
        "tokensPerSecond": 50.5,
        "firstTokenS": 0.1,
        "promptTokens": 9,
        "cachedTokens": 4,
        "answerTokens": 12,
        "thinkingTokens": 3,
    }


def test_request_holds_system_text_pictures_thinking_and_whole_calls(modules: Page) -> None:
    pictures = [
        {"name": "a.png", "dataUrl": "data:image/png;base64,AA"},
        {"name": "b", "dataUrl": None},
    ]
    calls = [
        {"id": "call_1", "name": "f", "arguments": '{"a":1}'},
        {"id": "call_2", "name": "g", "arguments": '{"a":'},
    ]
    messages = [
        {"role": "user", "text": "look", "images": pictures},
        {"role": "assistant", "text": "yes", "thinking": "hm", "toolCalls": calls},
        {"role": "user", "text": "more", "images": []},
        {"role": "assistant", "text": "", "thinking": "cut", "toolCalls": []},
    ]

    sent = modules.run(IMPORTS + "return m.requestMessages(...args)", messages, "be short")

    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    gone = {"type": "text", "text": "[an image that is no longer available]\n"}
    function = {"name": "f", "arguments": '{"a":1}'}
    assert sent == [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": [url, gone, {"type": "text", "text": "look"}]},
        {
            "role": "assistant",
            "content": "yes",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
        },
        {"role": "user", "content": "more"},
    ]


@pytest.mark.parametrize(
    ("changes", "capabilities", "expected"),
    [
        ({}, {}, {}),
        ({}, {"thinking": True}, {"enable_thinking": True}),
        ({"temperature": 0, "seed": -1}, {}, {"temperature": 0, "seed": -1}),
        (
            {"isThinking": False, "thinking_budget": 5},
            {"thinking": True},
            {"enable_thinking": False},
        ),
        (
            {"thinking_budget": 0, "reasoning_effort": "low"},
            {"thinking": True, "reasoning_efforts": ["low"]},
            {"enable_thinking": True, "thinking_budget": 0, "reasoning_effort": "low"},
        ),
        (
            {"reasoning_effort": "max"},
            {"thinking": True, "reasoning_efforts": ["low"]},
            {"enable_thinking": True},
        ),
    ],
)
def test_only_settings_that_say_something_are_sent(
    modules: Page, changes: dict[str, Any], capabilities: dict[str, Any], expected: dict[str, Any]
) -> None:
    fields = modules.run(
        IMPORTS + "return s.requestFields({...s.defaultSettings(), ...args[0]}, args[1])",
        changes,
        {"capabilities": capabilities},
    )

    assert fields == expected


@pytest.mark.parametrize("damage", ["not json", "null", '{"strange":1}', "[]"])
def test_damaged_settings_become_the_defaults(modules: Page, damage: str) -> None:
    loaded, default = modules.run(
        IMPORTS
        + """const shelf = new Shelf();
        shelf.setItem("ninfer.settings", args[0]);
        return [s.loadSettings(shelf), s.defaultSettings()]""",
        damage,
    )

    assert loaded == default


def test_list_has_the_last_changed_first_and_forgets_the_removed(modules: Page) -> None:
    titles = modules.run(
        IMPORTS
        + """const store = new c.ConversationStore(new Shelf());
        const [first, second, third] = [1, 2, 3].map((ms) => {
          const one = c.newConversation(ms);
          one.messages.push(m.newQuestion(`  number ${ms}\\nmore`, []));
          store.save(one);
          return one;
        });
        first.updatedMs = 9;
        store.save(first);
        store.remove(second.id);
        return [store.list().map((entry) => entry.title), store.load(second.id)]"""
    )

    assert titles == [["number 1", "number 3"], None]


def test_answer_that_was_running_when_the_page_closed_counts_as_stopped(modules: Page) -> None:
    state = modules.run(
        IMPORTS
        + """const store = new c.ConversationStore(new Shelf());
        const one = c.newConversation(1);
        one.messages.push(m.newQuestion("a", []), m.newAnswer(1));
        store.save(one);
        return store.load(one.id).messages[1].state"""
    )

    assert state == "stopped"


@pytest.mark.parametrize(
    ("limit", "outcome"), [(10**6, "kept"), (1000, "kept-without-images"), (10, "refused")]
)
def test_full_storage_gives_up_images_first(modules: Page, limit: int, outcome: str) -> None:
    results = modules.run(
        IMPORTS
        + """const store = new c.ConversationStore(new Shelf(args[0]));
        const one = c.newConversation(1);
        const image = {name: "a", dataUrl: "data:image/png;base64," + "A".repeat(5000)};
        one.messages.push(m.newQuestion("hello", [image]));
        return [store.save(one), store.load(one.id)?.messages[0].text ?? "hello",
          one.messages[0].images[0].dataUrl.length > 5000]""",
        limit,
    )

    assert results == [outcome, "hello", True]


def test_export_to_markdown_holds_every_part(modules: Page) -> None:
    text, name = modules.run(
        IMPORTS
        + """const one = c.newConversation(1);
        Object.assign(one, {title: "Tea / kettle?", isNamed: true});
        const answer = m.newAnswer(1);
        answer.thinking = "hm\\nso";
        answer.text = "Boil it.";
        answer.toolCalls = [{id: "1", name: "boil", arguments: "{}"}];
        one.messages.push(m.newQuestion("How?", [{name: "k.png", dataUrl: null}]), answer);
        return [x.toMarkdown(one), x.fileName(one.title, "md")]"""
    )

    assert text == (
        "# Tea / kettle?\n\n## You\n\n*(image: k.png)*\n\nHow?\n\n## Answer\n\n> hm\n> so\n\n"
        "Boil it.\n\n```json boil\n{}\n```\n"
    )
    assert name == "Tea-kettle.md"
