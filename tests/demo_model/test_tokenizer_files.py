"""The tokenizer is the family's in form, and is trained again to the same bytes."""

import json
from typing import Any

import pytest

from tests.demo_model.test_rendering import demo_frontend
from tests.support.golden import GOLDEN
from tools.demo_model.data.encoding import TOKENIZER_FOLDER, tokenizer
from tools.demo_model.tokenizer_files import NUM_CONVERSATIONS, NUM_ENTRIES, SEED, files, train


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


@pytest.mark.slow
def test_shipped_tokenizer_is_trained_again_to_the_same_bytes() -> None:
    made = files(train(SEED, NUM_CONVERSATIONS, NUM_ENTRIES), _read("chat_template.jinja"))

    assert made["tokenizer.json"] == _read("tokenizer.json")
