"""The page's files themselves: no inline code, no foreign address, all of them installed."""

import re
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest

from tests.test_architecture import LONGEST_FILE

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(path for path in (ROOT / "web").iterdir() if path.suffix != ".py" and path.is_file())
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
# Names of the SVG vocabulary are written like addresses and never fetched.
NAMESPACE = "http://www.w3.org/2000/svg"


class Tags(HTMLParser):
    """Collects the start tags of a document, and text inside script and style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.code: list[str] = []
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open = tag

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open in ("script", "style") and data.strip():
            self.code.append(data)


@pytest.fixture(scope="module")
def document() -> Tags:
    return Tags((ROOT / "web" / "index.html").read_text(encoding="utf-8"))


def test_page_has_no_inline_script_or_style(document: Tags) -> None:
    inline = [
        (tag, name)
        for tag, attributes in document.tags
        for name in attributes
        if name == "style" or name.startswith("on")
    ]

    assert document.code == []
    assert inline == []
    assert "style" not in {tag for tag, _ in document.tags}


def test_page_refers_to_its_own_files_only(document: Tags) -> None:
    targets = [
        attributes[name] or ""
        for _, attributes in document.tags
        for name in ("src", "href")
        if name in attributes
    ]
    names = [target.removeprefix("/web/") for target in targets if not target.startswith("#")]

    assert {target[0] for target in targets} == {"/", "#"}
    assert set(names) <= {path.name for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_file_names_a_foreign_address(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace(NAMESPACE, "")

    assert re.findall(r"""(?:https?:)?//[\w-]+\.[\w.-]+|@import|url\(""", text) == []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_no_script_parses_markup_or_code(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|Function\("
    )

    assert re.findall(forbidden, text) == []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_every_script_says_its_purpose_and_stays_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")

    assert text.startswith("/**\n")
    assert text.count("\n") <= LONGEST_FILE


def test_every_control_has_a_name(document: Tags) -> None:
    text = (ROOT / "web" / "index.html").read_text(encoding="utf-8")
    bare = [
        button
        for button in re.findall(r"<button.*?</button>", text, re.DOTALL)
        if "aria-label" not in button and not re.sub(r"<[^>]*>", "", button).strip()
    ]

    assert bare == []


def test_every_label_and_reference_has_its_target(document: Tags) -> None:
    ids = [attributes["id"] for _, attributes in document.tags if "id" in attributes]
    references = [
        attributes[name]
        for _, attributes in document.tags
        for name in ("for", "aria-controls", "aria-labelledby", "aria-describedby", "popovertarget")
        if name in attributes
    ]

    assert len(ids) == len(set(ids))
    assert set(references) <= set(ids)


def test_installed_package_holds_every_file() -> None:
    installed = {entry.name for entry in resources.files("ninfer.web").iterdir()}

    assert {path.name for path in FILES} <= installed


def test_packages_are_listed_for_installation() -> None:
    setup = (ROOT / "setup.cfg").read_text(encoding="utf-8")
    found = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in (ROOT / "ninfer").rglob("__init__.py")
    }
    patterns = re.search(r"^ninfer\.web = (.*)$", setup.split("package_data")[1], re.MULTILINE)

    listed = set(re.findall(r"^    (ninfer[\w.]*)$", setup, re.MULTILINE))
    assert listed == found | {"ninfer.web"}
    assert patterns is not None
    assert {f"*{path.suffix}" for path in FILES} <= set(patterns[1].split(", "))
