"""Links of the documentation lead somewhere, and its examples run."""

import re
from pathlib import Path

import pytest

from tests.support.tiny_model import artifact_path

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_exist(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf-8"))

    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", ["README.md", "docs/library.md"])
def test_python_examples_run(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)

    for block in blocks:
        model = str(artifact_path("tiny-dense", "bf16"))
        exec(compile(re.sub(r'"[^"]*\.ninfer"', repr(model), block), page, "exec"), {})

    assert blocks
    assert capsys.readouterr().out.strip()
