"""What is installed is what is there: packages are listed by hand, since one lies elsewhere."""

import configparser
from importlib import resources
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_every_package_is_listed() -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg", encoding="utf-8")
    listed = settings["options"]["packages"].split()

    found = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in (ROOT / "ninfer").rglob("__init__.py")
    }

    assert sorted(listed) == sorted(found | {"ninfer.web"})


def test_files_of_the_page_are_installed() -> None:
    names = {entry.name for entry in resources.files("ninfer.web").iterdir()}

    assert {"index.html", "chat.js", "style.css"} <= names
