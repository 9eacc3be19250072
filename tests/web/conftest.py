"""One browser for all tests of the page, and one tab that every test starts over."""

from collections.abc import Callable, Iterator

import pytest

from tests.web.browser import Browser, Page
from tests.web.stand_in_server import StandInServer


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with Browser() as running:
        yield running


@pytest.fixture(scope="session")
def tab(browser: Browser) -> Page:
    return Page(browser)


@pytest.fixture
def server() -> Iterator[StandInServer]:
    with StandInServer() as running:
        yield running


@pytest.fixture
def open_page(tab: Page, server: StandInServer) -> Callable[..., Page]:
    """Opens the page of the test's server and waits until it knows the state of the server."""

    def open_one(**size: int) -> Page:
        tab.open(server.url, **size)
        tab.wait_for("document.getElementById('model').textContent !== 'Connecting'")
        return tab

    return open_one


@pytest.fixture
def page(open_page: Callable[..., Page]) -> Page:
    return open_page()


@pytest.fixture(scope="module")
def modules(browser: Browser) -> Iterator[Page]:
    """A tab in which the page's modules can be imported; shared, for tests that leave nothing."""
    with StandInServer() as server:
        tab = Page(browser)
        tab.open(server.url)
        yield tab
        tab.close()
