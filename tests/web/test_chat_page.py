"""Answers on the chat page in a real browser, against scripted streams."""

import json
from collections.abc import Callable

import pytest

from tests.web.browser import Page
from tests.web.exchange import DONE, OVERFLOW, WIDTHS, answered, ask
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

    assert server.client_left.wait(60)
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
