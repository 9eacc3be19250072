"""What is installed is what is there: packages are listed by hand, since one lies elsewhere."""

import configparser
import shutil
import subprocess
import sys
import zipfile
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


def test_wheel_holds_no_leftovers_of_an_earlier_build(tmp_path: Path) -> None:
    tree = tmp_path / "checkout"
    unneeded = shutil.ignore_patterns("__pycache__", "*.ninfer")
    for name in ("ninfer", "web"):
        shutil.copytree(ROOT / name, tree / name, ignore=unneeded)
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    stale = tree / "build" / "lib" / "ninfer" / "long_gone.py"
    stale.parent.mkdir(parents=True)
    stale.touch()
    build = "from setuptools import build_meta; build_meta.build_wheel('out')"

    subprocess.run([sys.executable, "-c", build], cwd=tree, check=True, capture_output=True)

    (wheel,) = (tree / "out").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {"ninfer/py.typed", "ninfer/cli/main.py", "ninfer/web/index.html"} <= names
    assert "ninfer/long_gone.py" not in names
