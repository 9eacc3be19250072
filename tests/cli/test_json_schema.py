"""``generate --json-schema``: the answer follows a file."""

import json
from pathlib import Path

import pytest

from ninfer.frontend import grammar_compiler
from tests.cli.command_line import Outcome, run
from tests.gateway.structured_bodies import TOO_WIDE_LATER
from tests.support.tiny_model import artifact_path

pytest.importorskip("llguidance", reason="needs the extra [structured]")

SCHEMA = {
    "type": "object",
    "properties": {"size": {"type": "integer", "minimum": 1, "maximum": 9}, "ok": {"const": True}},
    "required": ["size", "ok"],
    "additionalProperties": False,
}


def generate(schema: Path, *options: object) -> Outcome:
    return run(
        "generate",
        artifact_path("tiny-dense", "bf16"),
        "--device",
        "host",
        "--no-progress",
        "--prompt",
        "hi",
        "--no-thinking",
        "--greedy",
        "--max-context",
        "256",
        "--json-schema",
        schema,
        *options,
    )


def write(folder: Path, text: str) -> Path:
    path = folder / "schema.json"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_answer_fits_the_schema(tmp_path: Path) -> None:
    outcome = generate(write(tmp_path, json.dumps(SCHEMA)))

    assert outcome.code == 0
    assert list(outcome.document) == ["size", "ok"]
    assert outcome.document["ok"] is True


@pytest.mark.parametrize(
    ("text", "code"),
    [("{", 2), ('{"type":"strin"}', 5), ("[]", 5), ('{"patternProperties":{}}', 5)],
)
def test_a_schema_that_cannot_be_used_is_refused(tmp_path: Path, text: str, code: int) -> None:
    outcome = generate(write(tmp_path, text))

    assert outcome.code == code
    assert outcome.out == ""


def test_a_limit_that_is_met_on_the_way_is_told(tmp_path: Path) -> None:
    outcome = generate(
        write(tmp_path, json.dumps(TOO_WIDE_LATER)), "--max-new", "900", "--max-context", "2048"
    )

    assert outcome.code == 5
    assert "possibilities to keep at once; allowed is at most 2000" in outcome.err


def test_without_the_extra_the_message_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_compiler, "_imported", lambda: None)

    outcome = generate(write(tmp_path, json.dumps(SCHEMA)))

    assert outcome.code == 5
    assert "pip install '.[structured]'" in outcome.err
