import io
import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from ninfer.cli.exit_codes import UsageError
from ninfer.cli.text_input import checked_text, read_text
from ninfer.frontend.tokenizer import Tokenizer
from tests.cli.command_line import run
from tests.support.tiny_model import artifact_path

LATIN = b"caf\xe9".decode("utf-8", "surrogateescape")


@pytest.fixture(scope="module")
def model() -> Path:
    return artifact_path("tiny-dense", "bf16")


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("generate", "--prompt"),
        ("generate", "--system"),
        ("generate", "--stop"),
        ("generate", "--reasoning-effort"),
        ("chat", "--system"),
        ("tokenize", "--text"),
        ("serve", "--model-alias"),
        ("serve", "--allowed-host"),
    ],
)
def test_argument_that_is_no_text_is_placed(command: str, option: str) -> None:
    outcome = run(command, "does-not-exist.ninfer", option, LATIN)

    assert outcome.code == 2
    assert outcome.err == (
        f"ninfer {command}: error: argument {option}: not UTF-8: byte 0xE9 at offset 3\n"
        f"see ninfer {command} --help\n"
    )


def test_variable_that_is_no_text_is_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NINFER_SYSTEM", LATIN)

    outcome = run("chat", "does-not-exist.ninfer")

    assert outcome.code == 2
    assert "NINFER_SYSTEM: not UTF-8: byte 0xE9 at offset 3\n" in outcome.err


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"caf\xe9", "byte 0xE9 at offset 3"),
        (b"one\ntwo\nth\xff", "byte 0xFF at offset 10, in line 3"),
        (b"half \xe2\x82", "byte 0xE2 at offset 5"),
        ("Köln".encode("utf-16"), "it begins like UTF-16"),
    ],
)
@pytest.mark.parametrize("option", ["--prompt-file", "--messages"])
def test_file_that_is_no_text_is_placed(
    tmp_path: Path, option: str, data: bytes, reason: str
) -> None:
    file = tmp_path / "prompt.txt"
    file.write_bytes(data)

    outcome = run("generate", "does-not-exist.ninfer", option, file)

    assert outcome.code == 2
    assert outcome.err == f"error: cannot read {file}: not UTF-8: {reason}\n"


@pytest.mark.parametrize("more", [(), ("--raw",)])
def test_file_far_over_the_context_is_refused_without_being_encoded(
    model: Path, tmp_path: Path, more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(self: Tokenizer, text: str, spans: Iterable[tuple[int, int, int]]) -> list[int]:
        assert len(text) < 100_000, "encoded"
        return known(self, text, spans)

    known = Tokenizer.encode_spans
    monkeypatch.setattr(Tokenizer, "encode_spans", encode)
    file = tmp_path / "book.txt"
    file.write_text("word " * 200_000)

    outcome = run("generate", model, "--prompt-file", file, *more)

    assert outcome.code == 5
    assert "error: prompt is too long: " in outcome.err
    assert outcome.err.endswith(" maximum (at least; it is too long to be counted)\n")


def test_standard_input_that_is_no_text_is_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\xff")))

    with pytest.raises(UsageError, match="cannot read -: not UTF-8: byte 0xFF at offset 3, in li"):
        read_text("-")


def test_text_in_pieces_of_a_locale_without_utf8_is_joined() -> None:
    assert checked_text("Köln".encode().decode("ascii", "surrogateescape")) == "Köln"


def test_line_of_a_talk_that_is_no_text_costs_only_itself(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = iter([LATIN, "Name three metals.", "/quit"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))

    outcome = run("chat", model, "--greedy")

    assert (outcome.code, outcome.out) == (0, "Brass, iron, silver.\n")
    assert "error: not UTF-8: byte 0xE9 at offset 3\n" in outcome.err


def test_json_behind_a_byte_order_mark_is_read(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "messages.json"
    text = json.dumps([{"role": "user", "content": "hi"}])
    file.write_text(text, encoding="utf-8-sig")

    assert run("tokenize", model, "--messages", file).code == 0


def test_key_that_is_no_text_is_taken_as_bytes() -> None:
    outcome = run("serve", "does-not-exist.ninfer", "--port", 0, "--api-key", LATIN)

    assert "does-not-exist.ninfer: No such file or directory" in outcome.err
