"""One question and its answer on the page, as several tests need it."""

from typing import Final

import pytest

from tests.web.browser import Page
from tests.web.stand_in_server import ROLE, StandInServer, delta, finish

DONE: Final = "document.querySelectorAll('.figures').length === {}"
"""True when so many answers have ended."""
WIDTHS: Final = pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
# Elements that stick out of the view sideways; what scrolls on its own may.
OVERFLOW: Final = """return [...document.querySelectorAll("body *")]
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
