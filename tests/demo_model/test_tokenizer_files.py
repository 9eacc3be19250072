"""The tokenizer is the family's in form; training gives the same bytes, and replaces none."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.demo_model.test_rendering import demo_frontend
from tests.support.golden import GOLDEN
from tools.demo_model.data.encoding import TOKENIZER_FOLDER, tokenizer
from tools.demo_model.tokenizer_files import NAMES, NUM_ENTRIES, SEED, files, main, train

SMALL = ("--conversations", "100", "--entries", "600")


def _read(name: str) -> str:
    return (TOKENIZER_FOLDER / name).read_text("utf-8")


def _added(config: dict[str, Any]) -> list[tuple[str, bool]]:
    decoder = config["added_tokens_decoder"]
    return [(decoder[i]["content"], decoder[i]["special"]) for i in sorted(decoder, key=int)]


def test_added_tokens_are_the_family_s_in_its_order_behind_the_entries() -> None:
    family = json.loads((GOLDEN / "tiny-dense/checkpoint/tokenizer_config.json").read_bytes())
    config = json.loads(_read("tokenizer_config.json"))

    assert _added(config) == _added(family)
    assert min(map(int, config["added_tokens_decoder"])) == NUM_ENTRIES
    assert demo_frontend().tokenizer.addressable == NUM_ENTRIES + len(_added(config)) <= 8192


def test_pattern_and_normalizer_are_the_family_s() -> None:
    family = json.loads((GOLDEN / "tiny-dense/checkpoint/tokenizer.json").read_bytes())
    ours = json.loads(_read("tokenizer.json"))

    split = ours["pre_tokenizer"]["pretokenizers"][0]["pattern"]
    assert split == family["pre_tokenizer"]["pretokenizers"][0]["pattern"]
    assert ours["normalizer"] == family["normalizer"]
    assert ours["decoder"]["type"] == family["decoder"]["type"]


def test_digits_and_capitals_are_tokens_of_their_own() -> None:
    assert tokenizer().encode("24791").tokens == list("24791")
    assert tokenizer().encode("ANANAB").tokens == list("ANANAB")


@pytest.mark.parametrize(
    "text", ["naïve Čapek 北京 🦊\n\n\t  x", "def f(x):\n    return x**2\n", ""]
)
def test_any_text_comes_back(text: str) -> None:
    front = demo_frontend().tokenizer

    assert front.decode(front.encode(text, parse_special=False)).decode() == text


def test_training_twice_gives_the_same_files() -> None:
    template = _read("chat_template.jinja")

    first, second = (files(train(SEED, 300, 700), template) for _ in range(2))

    assert first == second


def test_config_and_generation_files_belong_to_the_tokenizer() -> None:
    content = json.loads(_read("tokenizer.json"))

    made = files(content, _read("chat_template.jinja"))

    assert {name: _read(name) for name in made} == made


def test_tool_writes_every_file_that_the_shipped_folder_has(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "tokenizer"

    assert main([*SMALL, "--output", str(folder)]) == 0

    assert {path.name for path in folder.iterdir()} == set(NAMES)
    assert {path.name for path in TOKENIZER_FOLDER.iterdir()} == set(NAMES)
    assert (folder / NAMES[0]).read_text("utf-8") == _read(NAMES[0])


@pytest.mark.parametrize("name", NAMES)
def test_tool_leaves_a_tokenizer_that_is_there_alone(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text("kept")

    with pytest.raises(SystemExit):
        main([*SMALL, "--output", str(tmp_path)])

    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "kept")]
    assert f"has {name}" in capsys.readouterr().err


def test_place_that_is_no_folder_is_refused_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(SystemExit):
        main([*SMALL, "--output", str(tmp_path / "file")])

    assert "File exists" in capsys.readouterr().err
