"""The chat page in a real browser, against scripted streams."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.png_images import png_bytes
from tests.web.browser import Page
from tests.web.stand_in_server import (
    ROLE,
    Break,
    Gate,
    Refusal,
    StandInServer,
    delta,
    event,
    finish,
)

pytestmark = pytest.mark.browser

DONE = "document.querySelectorAll('.figures').length === {}"
WIDTHS = pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
ALT, SHIFT = 1, 8
OVERFLOW = """return [...document.querySelectorAll("body *")]
  .filter((node) => node.checkVisibility())
  .filter((node) => !node.closest("[inert], pre, .table, svg, .skip, .visually-hidden"))
  .map((node) => [node.outerHTML.slice(0, 80), node.getBoundingClientRect()])
  .filter(([_, box]) => box.width > 0 && (box.right > innerWidth + 1 || box.left < -1))
  .map(([html]) => html)"""


def ask(page: Page, text: str) -> None:
    page.run("document.getElementById('prompt').focus()")
    page.type(text)
    page.click("#send")


def answered(page: Page, server: StandInServer, text: str, *steps: bytes) -> None:
    """One whole exchange."""
    number = page.count(".answer") + 1
    server.scripts.append([ROLE, *(steps or (delta(content=f"reply to {text}"),)), finish()])
    ask(page, text)
    page.wait_for(DONE.format(number))


@WIDTHS
def test_answer_appears_while_it_streams_with_thinking_folded(
    open_page: Callable[..., Page], server: StandInServer, width: int, height: int
) -> None:
    page = open_page(width=width, height=height)
    thinking, text = Gate(), Gate()
    server.scripts.append(
        [
            ROLE,
            delta(reasoning_content="First this.\nThen **that**"),
            thinking,
            delta(content="A *partial* "),
            text,
            delta(content="answer"),
            finish(),
        ]
    )

    ask(page, "Hello there")
    page.wait_for("document.querySelector('.thinking-preview')?.textContent === 'Then **that**'")
    live = [page.text(".thinking-label"), page.count(".thinking-text"), page.count("#stop")]
    page.click(".thinking summary")
    page.wait_for("document.querySelector('.thinking-text strong')?.textContent === 'that'")
    thinking.open()
    page.wait_for("document.querySelector('.answer > .prose em')")
    partial = [page.text(".answer > .prose"), page.count(".figures")]
    label = page.text(".thinking-label")
    text.open()
    page.wait_for(DONE.format(1))

    assert live == ["Thinking", 0, 1]
    assert partial == ["A partial", 0]
    assert label.startswith("Thought for ")
    assert page.text(".answer > .prose") == "A partial answer"
    assert page.text(".bubble") == "Hello there"
    assert page.text(".figures").split("\n")[0] == "47.3 tokens/s"
    assert "1,204 prompt (1,024 cached)" in page.text(".figures")
    assert "318 generated (96 thinking)" in page.text(".figures")
    assert page.count("#stop") == 0
    assert page.run(OVERFLOW) == []
    assert page.problems == []


@WIDTHS
@pytest.mark.parametrize("way", ["button", "Escape"])
def test_stop_ends_the_request_and_keeps_the_text(
    open_page: Callable[..., Page], server: StandInServer, width: int, height: int, way: str
) -> None:
    page = open_page(width=width, height=height)
    server.scripts.append([ROLE, delta(content="So far"), Gate()])

    ask(page, "Go on")
    page.wait_for("document.querySelector('.answer > .prose')?.textContent === 'So far'")
    page.click("#stop") if way == "button" else page.press("Escape")
    page.wait_for(DONE.format(1))

    assert server.client_left.wait(10)
    assert page.text(".answer > .prose") == "So far"
    assert page.text(".note") == "Stopped."
    assert page.count("#send") == 1


@WIDTHS
def test_refusal_is_shown_in_place_and_can_be_retried(
    open_page: Callable[..., Page], server: StandInServer, width: int, height: int
) -> None:
    page = open_page(width=width, height=height)
    server.scripts += [
        Refusal(429, "server_overloaded", "All places are taken <b>now</b>."),
        [ROLE, delta(content="fine"), finish()],
    ]

    ask(page, "Hello")
    page.wait_for("document.querySelector('.error')")
    shown = page.text(".error")
    overflow = page.run(OVERFLOW)
    page.click(".error .button")
    page.wait_for("document.querySelector('.answer > .prose')?.textContent === 'fine'")

    assert shown.startswith("All places are taken <b>now</b>.\n")
    assert "status 429 · server_overloaded · req_0123456789abcdef01234567" in shown
    assert overflow == []
    assert page.count(".error") == 0
    assert page.count(".answer") == 1
    assert server.bodies[0]["messages"] == server.bodies[1]["messages"]


@pytest.mark.parametrize(
    ("ending", "message"),
    [
        (event({"error": {"message": "Too long a queue.", "code": "x"}}), "Too long a queue."),
        (event("[DONE]"), "The connection ended before the answer was complete."),
        (Break(), "The connection to the server broke."),
        (event("{half"), "The server sent something that is not JSON."),
    ],
    ids=["error event", "no finish", "broken connection", "no JSON"],
)  # fmt: skip
def test_failure_inside_a_stream_keeps_the_text_and_says_why(
    page: Page, server: StandInServer, ending: bytes | Break, message: str
) -> None:
    gate = Gate()
    server.scripts.append([ROLE, delta(content="Half an answer"), gate, ending])

    ask(page, "Hello")
    page.wait_for("document.querySelector('.answer > .prose')?.textContent")
    gate.open()
    page.wait_for("document.querySelector('.error')")

    assert page.text(".answer > .prose") == "Half an answer"
    assert page.text(".error").split("\n")[0] == message
    assert page.count(".error .button") == 1


def test_server_that_is_gone_is_told_from_a_refusal(page: Page, server: StandInServer) -> None:
    server.close()

    ask(page, "Hello")
    page.wait_for("document.querySelector('.error')")

    assert page.text(".error").startswith("The server cannot be reached.")


@WIDTHS
def test_dark_and_light_follow_the_system_until_one_is_chosen(
    open_page: Callable[..., Page], width: int, height: int
) -> None:
    page = open_page(width=width, height=height)
    ground = "return getComputedStyle(document.body).backgroundColor"
    page.prefer_colours("light")
    colours = [page.run(ground)]
    page.prefer_colours("dark")
    colours.append(page.run(ground))
    page.run("document.getElementById('open-settings').click()")
    page.click("input[value=light] + span")
    colours.append(page.run(ground))
    page.reload()
    colours.append(page.run(ground))

    light, dark = "rgb(255, 255, 255)", "rgb(21, 23, 27)"
    assert colours == [light, dark, light, light]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_enough_contrast(page: Page, server: StandInServer, scheme: str) -> None:
    page.prefer_colours(scheme)
    answered(
        page, server, "Hi", delta(reasoning_content="t"), delta(content="a `b` [c](https://d.org)")
    )
    server.scripts.append(Refusal(400, "invalid_value", "No."))
    ask(page, "Hi")
    page.wait_for("document.querySelector('.error')")

    ratios = page.run(
        """const canvas = document.createElement("canvas").getContext("2d");
        const rgb = (colour) => {
          canvas.clearRect(0, 0, 1, 1);
          canvas.fillStyle = colour;
          canvas.fillRect(0, 0, 1, 1);
          return [...canvas.getImageData(0, 0, 1, 1).data];
        };
        const light = (colour) => colour.slice(0, 3)
          .map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
          .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
        const ground = (node) => {
          for (; node; node = node.parentElement) {
            const colour = rgb(getComputedStyle(node).backgroundColor);
            if (colour[3] === 255) return colour;
          }
        };
        return [...document.querySelectorAll("body *")]
          .filter((node) => node.checkVisibility() && !node.disabled)
          .filter((node) => [...node.childNodes].some((child) => child.data?.trim()))
          .map((node) => {
            const [a, b] = [light(rgb(getComputedStyle(node).color)), light(ground(node))];
            return [node.outerHTML.slice(0, 60), (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)];
          });"""
    )

    # 4.5 is the threshold of the accessibility guidelines for text (WCAG 2.2, 1.4.3).
    assert len(ratios) > 10
    assert [entry for entry in ratios if entry[1] < 4.5] == []


def test_page_asks_only_its_own_server_and_breaks_no_policy(
    page: Page, server: StandInServer
) -> None:
    hostile = (
        "<script>window.bad = 1</script> <style>body{display:none}</style>"
        " <img src='https://evil.example/x.png' onerror='window.bad = 1'>"
        " ![p](https://evil.example/p.png) [l](javascript:window.bad=1)"
    )
    answered(page, server, hostile, delta(reasoning_content=hostile), delta(content=hostile))
    page.click(".thinking summary")
    page.wait_for("document.querySelector('.thinking-text p')")

    assert page.run("return window.bad ?? null") is None
    assert page.count(".answer script, .answer img, .answer style, .question img") == 0
    assert [url for url in page.requested_urls if not url.startswith(server.url)] == []
    assert page.problems == []


def test_conversations_survive_a_reload_and_can_be_managed(
    page: Page, server: StandInServer
) -> None:
    answered(page, server, "First")
    page.click("#new-conversation")
    answered(page, server, "Second")
    page.reload()
    page.wait_for("document.querySelectorAll('.entry').length === 2")
    restored = [page.text("#title"), page.text(".answer > .prose"), page.count(".figures")]
    page.click("#open-menu")
    page.click("#menu-rename")
    page.run("document.getElementById('rename-title').select()")
    page.type("Better name")
    page.press("Enter")
    page.wait_for("document.getElementById('title').textContent === 'Better name'")
    page.click("#open-menu")
    page.click("#menu-delete")
    deleted = page.run("return [...document.querySelectorAll('.entry')].map((e) => e.textContent)")
    page.click("#notice .button")
    back = page.run("return [...document.querySelectorAll('.entry')].map((e) => e.textContent)")

    assert restored == ["Second", "reply to Second", 1]
    assert deleted == ["First"]
    assert back == ["Better name", "First"]
    assert page.text(".answer > .prose") == "reply to Second"


def test_answer_goes_on_while_another_conversation_is_open(
    page: Page, server: StandInServer
) -> None:
    gate = Gate()
    server.scripts.append([ROLE, delta(content="slow "), gate, delta(content="end"), finish()])
    ask(page, "Slow one")
    page.wait_for("document.querySelector('.answer > .prose')?.textContent === 'slow'")
    page.click("#new-conversation")
    answered(page, server, "Quick one")
    gate.open()
    page.wait_for(
        "localStorage.length && Object.values(localStorage).some((v) => v.includes('slow end'))"
    )
    page.click(".entry[title='Slow one']")

    assert page.text(".answer > .prose") == "slow end"
    assert page.count(".figures") == 1


def test_regenerating_and_editing_replace_what_follows(page: Page, server: StandInServer) -> None:
    answered(page, server, "One")
    answered(page, server, "Two")
    server.scripts.append([ROLE, delta(content="again"), finish()])
    page.click("[aria-label=Regenerate]")
    page.wait_for("document.body.textContent.includes('again')")
    page.wait_for(DONE.format(2))
    page.run("document.querySelectorAll(\"[aria-label='Edit message']\")[0].click()")
    page.type(" and more")
    server.scripts.append([ROLE, delta(content="edited"), finish()])
    page.click(".edit .primary")
    page.wait_for("document.body.textContent.includes('edited')")
    page.wait_for(DONE.format(1))

    contents = [[turn["content"] for turn in body["messages"]] for body in server.bodies]
    assert contents == [
        ["One"],
        ["One", "reply to One", "Two"],
        ["One", "reply to One", "Two"],
        ["One and more"],
    ]
    assert page.count(".message") == 2


def test_settings_become_request_fields_and_the_key_stays_in_the_session(
    page: Page, server: StandInServer
) -> None:
    page.press("s", ALT)
    values = {
        "system": "Be brief.",
        "temperature": "0.5",
        "top_k": "40",
        "seed": "7",
        "max_completion_tokens": "99",
        "thinking_budget": "128",
        "reasoning_effort": "low",
        "api_key": "secret-key",
    }
    page.run(
        """for (const [name, value] of Object.entries(args[0])) {
          const field = document.getElementById("settings-form").elements.namedItem(name);
          field.value = value;
          field.dispatchEvent(new Event("change", {bubbles: true}));
        }""",
        values,
    )
    page.press("Escape")
    answered(page, server, "Hello")
    page.click("#think")
    answered(page, server, "Bye")
    storage = page.run("return [JSON.stringify(localStorage), JSON.stringify(sessionStorage)]")

    first, second = server.bodies
    expected: dict[str, Any] = {
        "model": "qwen3.6-27b",
        "temperature": 0.5,
        "top_k": 40,
        "seed": 7,
        "max_completion_tokens": 99,
        "enable_thinking": True,
        "thinking_budget": 128,
        "reasoning_effort": "low",
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_progress": True,
    }
    assert {name: value for name, value in first.items() if name != "messages"} == expected
    assert first["messages"][0] == {"role": "system", "content": "Be brief."}
    assert second["enable_thinking"] is False
    assert "thinking_budget" not in second
    assert server.keys[-1] == "Bearer secret-key"
    assert "secret-key" not in storage[0]
    assert "secret-key" in storage[1]


def test_missing_key_leads_to_its_field(
    open_page: Callable[..., Page], server: StandInServer
) -> None:
    server.api_key = "k"
    page = open_page()
    badge = page.text("#model")
    ask(page, "Hello")
    page.wait_for("document.querySelector('.error')")
    page.click(".error .button")
    focused = page.evaluate("document.activeElement.name")
    page.type("k")
    page.press("Enter")
    page.wait_for("document.getElementById('model').dataset.state === 'ready'")

    assert badge == "API key needed"
    assert focused == "api_key"


def test_loading_server_is_asked_again(
    open_page: Callable[..., Page], server: StandInServer
) -> None:
    ready = server.model
    server.model = Refusal(503, "model_loading", "The model is being loaded.")
    page = open_page()
    first = page.text("#model")
    server.model = ready
    page.wait_for("document.getElementById('model').dataset.state === 'ready'")

    assert first == "Loading the model"
    assert page.text("#welcome-title") == "Ask qwen3.6-27b"


def test_images_are_attached_only_where_the_model_sees(
    page: Page, server: StandInServer, tmp_path: Path
) -> None:
    small, wide = tmp_path / "small.png", tmp_path / "wide.png"
    small.write_bytes(png_bytes(3, 2))
    wide.write_bytes(png_bytes(4096, 8))
    page.choose_files("#image-files", small, wide, tmp_path / "small.png")
    page.wait_for("document.querySelectorAll('#attachments li').length === 3")
    page.click("#attachments [aria-label='Remove small.png']")
    answered(page, server, "Look")

    first, second, text = server.bodies[0]["messages"][0]["content"]
    assert first["image_url"]["url"].startswith("data:image/png;base64,")
    assert second["image_url"]["url"].startswith("data:image/jpeg;base64,")
    assert text == {"type": "text", "text": "Look"}
    assert page.count(".question canvas") == 2
    assert page.problems == []


def test_model_without_sight_or_thinking_hides_both(
    open_page: Callable[..., Page], server: StandInServer
) -> None:
    server.model = {"id": "plain", "object": "model"}
    page = open_page()
    answered(page, server, "Hi")

    assert page.count("#attach, #think") == 0
    assert "enable_thinking" not in server.bodies[0]


def test_tool_call_is_a_readable_block(page: Page, server: StandInServer) -> None:
    arguments = json.dumps({"path": "a\nb", "id": 12345678901234567890, "flag": True})
    call = {"index": 0, "id": "call_1", "function": {"name": "read", "arguments": ""}}
    answered(
        page,
        server,
        "Read it",
        delta(content="Reading."),
        delta(tool_calls=[call]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": arguments[:9]}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": arguments[9:]}}]),
    )

    text = page.text(".tool-call")
    assert text.split("\n") == [
        *("Calls", "read", "path", "a", "b", "id", "12345678901234567890", "flag", "true")
    ]


def test_copy_buttons_give_the_source_and_the_code(page: Page, server: StandInServer) -> None:
    page.run(
        "window.copied = [];"
        "Object.defineProperty(navigator, 'clipboard', {value:"
        " {writeText: async (text) => { window.copied.push(text); }}})"
    )
    source = "**See**\n```py\nx = 1\n```"
    answered(page, server, "Hi", delta(content=source))
    page.click("[aria-label='Copy code']")
    page.click("[aria-label='Copy answer']")
    page.wait_for("window.copied.length === 2")

    assert page.evaluate("window.copied") == ["x = 1", source]


def test_everything_is_reached_by_keyboard(page: Page, server: StandInServer) -> None:
    server.scripts.append([ROLE, delta(content="ok"), finish()])
    page.run("document.activeElement.blur()")
    page.press("/")
    page.type("two")
    page.press("Enter", SHIFT)
    page.type("lines")
    page.press("Enter")
    page.wait_for(DONE.format(1))
    reached = set()
    for _ in range(30):
        page.press("Tab")
        reached.add(page.run("const e = document.activeElement; return e.ariaLabel ?? e.id"))
    page.press("n", ALT)
    page.wait_for("document.getElementById('title').textContent === 'New conversation'")

    assert server.bodies[0]["messages"][0]["content"] == "two\nlines"
    wanted = {"new-conversation", "open-settings", "Conversation menu", "Attach images", "think"}
    wanted |= {"Copy message", "Edit message", "Copy answer", "Regenerate", "prompt"}
    assert wanted <= reached


def test_list_of_conversations_is_a_drawer_on_a_narrow_screen(
    open_page: Callable[..., Page], server: StandInServer
) -> None:
    page = open_page(width=390, height=844)
    answered(page, server, "One")
    closed = page.evaluate("document.getElementById('sidebar').inert")
    page.click("#open-sidebar")
    page.wait_for("document.getElementById('sidebar').getBoundingClientRect().left === 0")
    is_open = page.evaluate("document.querySelector('main').inert")
    page.press("Escape")
    focused = page.evaluate("document.activeElement.id")

    assert [closed, is_open, focused] == [True, True, "open-sidebar"]
    assert page.evaluate("document.getElementById('sidebar').inert")
