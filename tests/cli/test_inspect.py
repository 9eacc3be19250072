"""What the command that inspects a file says about it."""

from pathlib import Path
from typing import NoReturn

import pytest

from ninfer.errors import CheckpointError
from tests.cli.command_line import run
from tests.support.golden import GOLDEN
from tests.support.tiny_model import artifact_path


@pytest.fixture(scope="module")
def model() -> Path:
    return artifact_path("tiny-dense", "bf16")


def test_inspect_prints_the_directory_of_a_known_model(model: Path) -> None:
    outcome = run("inspect", model, "--format", "json")

    document = outcome.document
    assert outcome.code == 0
    assert (document["version"], document["model_id"]) == (2, "tiny-dense")
    assert document["model_error"] is None
    assert document["capabilities"]["addressable_tokens"] == 512
    assert {"name", "kind", "shape", "format", "layout", "offset", "bytes"} == set(
        next(item for item in document["objects"] if item["kind"] == "tensor")
    )


def test_inspect_accepts_a_valid_file_of_an_unknown_model() -> None:
    outcome = run("inspect", GOLDEN / "artifact/files/mixed.ninfer", "--format", "json")

    assert outcome.code == 0
    assert outcome.document["model_error"] == "unknown_model"
    assert outcome.document["objects"]


def test_inspect_reports_an_invalid_file_as_json() -> None:
    outcome = run("inspect", GOLDEN / "artifact/malformed/overlap.ninfer", "--format", "json")

    error = outcome.document["error"]
    assert outcome.code == 3
    assert error["code"] == "order_or_overlap"
    assert set(error) == {"code", "message", "object"}


def test_inspect_digests_the_whole_file(model: Path) -> None:
    import hashlib

    outcome = run("inspect", model, "--check", "--format", "json")

    assert outcome.document["sha256"] == hashlib.sha256(model.read_bytes()).hexdigest()


def test_inspect_gives_a_verdict_only_when_it_has_checked(model: Path) -> None:
    verdict = "verdict             complete, and this build can run it\n"

    assert run("inspect", model, "--check").out.endswith(verdict)
    assert "verdict" not in run("inspect", model).out
    assert run("inspect", model, "--check", "--format", "json").document["verdict"] == (
        "complete, and this build can run it"
    )


def test_inspect_counts_bytes_that_belong_to_no_object(model: Path, tmp_path: Path) -> None:
    longer = tmp_path / "longer.ninfer"
    longer.write_bytes(model.read_bytes() + bytes(1234))

    outcome = run("inspect", longer, "--check")

    assert outcome.code == 0
    assert outcome.out.endswith(
        "complete, and this build can run it; 1,234 bytes behind its last object are none of it\n"
    )


def test_a_file_of_something_else_is_called_no_artifact(tmp_path: Path) -> None:
    other = tmp_path / "passwd"
    other.write_text("root:x:0:0:root:/root:/bin/bash\n" * 9)

    outcome = run("inspect", other)

    assert outcome.code == 3
    assert outcome.err.endswith("the file is not an artifact\n")


def test_inspect_says_why_a_valid_file_cannot_be_run() -> None:
    outcome = run("inspect", GOLDEN / "artifact/files/mixed.ninfer", "--check")

    assert outcome.code == 0
    last = outcome.out.splitlines()[-1]
    assert "a valid artifact, but this build cannot run it: " in last


def test_inspect_says_why_a_known_model_cannot_talk(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(path: Path) -> NoReturn:
        raise CheckpointError("chat_template.jinja is not UTF-8")

    monkeypatch.setattr("ninfer.cli.inspect.open_frontend", fails)

    outcome = run("inspect", model, "--check")

    assert outcome.out.endswith("cannot run it: chat_template.jinja is not UTF-8\n")


def test_inspect_lists_objects_for_people(model: Path) -> None:
    outcome = run("inspect", model, "--tensors")

    assert "text/token_embedding  BF16 [544,64]" in outcome.out
