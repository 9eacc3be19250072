"""What a person does on the chat page, in a real browser, against scripted streams."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.png_images import png_bytes
from tests.web.browser import Page
from tests.web.exchange import DONE, answered, ask
from tests.web.stand_in_server import ROLE, Gate, Refusal, StandInServer, delta, finish

pytestmark = pytest.mark.browser

ALT, SHIFT = 1, 8


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


@pytest.mark.parametrize(
    ("entry", "start"),
    [("menu-markdown", "# First\n\n## You\n\nFirst"), ("menu-json", '{\n  "id": "')],
)
def test_conversation_is_exported_as_a_file(
    page: Page, server: StandInServer, entry: str, start: str
) -> None:
    answered(page, server, "First")
    page.run(
        """window.saved = [];
        const make = URL.createObjectURL;
        URL.createObjectURL = (blob) => (window.saved.push(blob), make.call(URL, blob));"""
    )
    page.click("#open-menu")
    page.click(f"#{entry}")

    text = page.evaluate("window.saved[0].text()")
    assert text.startswith(start)
    assert "reply to First" in text
    assert page.problems == []


def test_escape_closes_what_is_open_before_it_stops_the_answer(
    page: Page, server: StandInServer
) -> None:
    server.scripts.append([ROLE, delta(content="So far"), Gate()])
    ask(page, "Hello")
    page.wait_for("document.querySelector('.answer > .prose')?.textContent")
    page.click("#open-menu")
    page.press("Escape")
    page.click("#open-settings")
    page.press("Escape")
    page.click("[aria-label='Edit message']")
    page.press("Escape")
    is_running = page.count("#stop")
    page.press("Escape")
    page.wait_for(DONE.format(1))

    assert is_running == 1
    assert page.count("dialog, .menu, .edit") == 0


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
