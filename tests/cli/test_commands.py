import io
import json
from pathlib import Path

import pytest

from tests.cli.command_line import run
from tests.support.golden import GOLDEN
from tests.support.tiny_model import artifact_path


@pytest.fixture(scope="module")
def model() -> Path:
    return artifact_path("tiny-dense", "bf16")


def test_tokenize_agrees_with_the_golden_ids(model: Path) -> None:
    cases = json.loads((GOLDEN / "tiny-dense/tokenizer_cases.json").read_text())

    outcome = run(
        "tokenize", model, "--text", cases[0]["text"], "--format", "json", "--parse-special"
    )

    assert outcome.document["tokens"] == cases[0]["ids"]


def test_tokenize_renders_messages_like_generate(model: Path, tmp_path: Path) -> None:
    messages = tmp_path / "messages.json"
    messages.write_text(json.dumps([{"role": "user", "content": "Name three metals."}]))

    tokens = run("tokenize", model, "--messages", messages, "--format", "json").document["tokens"]
    answer = run(
        *("generate", model, "--messages", messages, "--greedy", "--max-new", 1),
        *("--output", "json", "--return-token-ids"),
    )

    assert answer.document["ninfer"]["prompt_token_ids"] == tokens
    assert answer.document["usage"]["prompt_tokens"] == len(tokens)


def test_bench_measures_every_cell(model: Path) -> None:
    outcome = run(
        *("bench", model, "--prompt-lens", "8,16", "--gen-len", 4, "--concurrency", "1,2"),
        *("--repeat", 1, "--warmup", 0, "--format", "json"),
    )

    cells = outcome.document["cells"]
    assert [(c["prompt_tokens"], c["concurrency"]) for c in cells] == [
        (8, 1),
        (8, 2),
        (16, 1),
        (16, 2),
    ]
    assert all(cell["decode_per_s"] > 0 for cell in cells)


def test_answer_in_a_file_has_no_byte_more_than_was_generated(model: Path) -> None:
    outcome = run("generate", model, "--greedy", "--prompt", "Name three metals.")

    assert outcome.out == "Brass, iron, silver."


def test_limit_is_an_exit_code_only_when_asked_for(model: Path) -> None:
    arguments = ("generate", model, "--greedy", "--prompt", "Name three metals.", "--max-new", 2)

    assert run(*arguments).code == 0
    assert run(*arguments, "--require-complete").code == 6


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--prompt", "hi", "--temperature", "3"), 5, "temperature"),
        (("--prompt", "hi", "--top-k", "100000"), 5, "top_k"),
        (("--prompt", "hi", "--stop", ""), 5, "stop[0]"),
        (("--prompt", "hi", "--image", "x.png"), 5, "images"),
        (("--prompt", "x " * 6000), 5, "prompt is too long"),
        (("--prompt", "hi", "--device", "99"), 4, "cuda"),
        (("--prompt", "hi", "--device", "tpu"), 2, "device"),
        (("--prompt", "hi", "--prefill-chunk", "100"), 2, "prefill_chunk"),
        (("--prompt", "hi", "--max-context", "100000"), 2, "max_context"),
        (("--prompt", "hi", "--spec", "mtp", "--draft-tokens", "3"), 5, "speculat"),
        (("--prompt", "hi", "--vision"), 5, "vision"),
        (("--prompt-file", "/nonexistent"), 2, "cannot read"),
        (("--prompt", "hi", "--raw", "--nonsense"), 2, "unrecognized"),
        ((), 2, "required"),
    ],
)
def test_refusal_names_its_cause(
    model: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    outcome = run("generate", model, *arguments)

    assert outcome.code == code
    assert words in outcome.err
    assert outcome.out == ""


@pytest.mark.parametrize("backend", ["mtp", "dflash", "dflash2"])
@pytest.mark.parametrize("more", [(), ("--draft-tokens", 3), ("--draft-head", "short")])
@pytest.mark.parametrize(
    "command", [("generate", "--prompt", "hi"), ("chat",), ("serve",), ("score", "--file", "-")]
)
def test_speculation_is_refused_with_what_there_is(
    command: tuple[str, ...],
    more: tuple[object, ...],
    backend: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"hi")))

    outcome = run(*command, "--spec", backend, *more)

    assert outcome.code == 5
    assert f"error: --spec {backend}: speculative decoding is not available yet" in outcome.err
    assert "--spec none" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--prompt", "a", "--raw", "--system", "b"), "--system does not go with --raw"),
        (("--prompt", "a", "--raw", "--tools", "f"), "--tools does not go with --raw"),
        (("--prompt", "a", "--raw", "--reasoning-effort", "low"), "--reasoning-effort does not go"),
        (("--prompt-file", "f", "--raw", "--chat-template", "g"), "--chat-template does not go"),
        (("--messages", "f", "--system", "b"), "--system goes with --prompt or --prompt-file"),
        (("--messages", "f", "--raw"), "--raw goes with --prompt or --prompt-file"),
        (("--prompt-tokens", "f", "--tools", "g"), "--tools does not go with --prompt-tokens"),
        (("--prompt", "a", "--return-token-ids"), "--return-token-ids goes with --output json"),
        (("--prompt", "a", "--raw", "--no-thinking"), "--no-thinking does not go with --raw"),
        (("--prompt-tokens", "f", "--preserve-thinking"), "--preserve-thinking does not go with"),
        (
            ("--prompt", "a", "--no-thinking", "--thinking-budget", "3"),
            "--thinking-budget does nothing without thinking",
        ),
        (
            ("--prompt", "a", "--reasoning-effort", "none", "--thinking-budget", "0"),
            "--thinking-budget does nothing without thinking",
        ),
        (
            ("--prompt", "a", "--output", "json", "--no-show-thinking"),
            "--no-show-thinking goes with --output text",
        ),
        (("--prompt", "a", "--greedy", "--temperature", "1"), "--temperature does nothing beside"),
        (("--prompt", "a", "--greedy", "--presence-penalty", "1"), "--presence-penalty does no"),
    ],
)
def test_option_that_would_do_nothing_is_refused(arguments: tuple[str, ...], words: str) -> None:
    outcome = run("generate", "does-not-exist.ninfer", *arguments)

    assert outcome.code == 2
    assert f"error: {words}" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--text", "a", "--tools", "f"), "--tools goes with --messages"),
        (("--messages", "f", "--parse-special"), "--parse-special goes with --text"),
    ],
)
def test_tokenize_refuses_what_would_do_nothing(arguments: tuple[str, ...], words: str) -> None:
    outcome = run("tokenize", "does-not-exist.ninfer", *arguments)

    assert outcome.code == 2
    assert f"error: {words}" in outcome.err


def test_variable_that_does_nothing_here_is_no_mistake(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NINFER_SYSTEM", "Be brief.")
    monkeypatch.setenv("NINFER_RETURN_TOKEN_IDS", "1")
    arguments = ("generate", model, "--prompt", "a", "--raw", "--max-new", 1)

    assert run(*arguments).code == 0
    assert run(*arguments, "--system", "Be long.").code == 2


def test_draft_head_without_speculation_is_refused() -> None:
    outcome = run("generate", "--prompt", "hi", "--draft-head", "short")

    assert outcome.code == 2
    assert "--draft-head short goes with --spec" in outcome.err


def test_missing_model_is_a_usage_error() -> None:
    assert run("generate", "/nonexistent.ninfer", "--prompt", "hi").code == 2


def test_environment_gives_defaults_and_the_command_line_wins(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NINFER_MAX_NEW", "2")
    arguments = (
        "generate",
        model,
        "--greedy",
        "--prompt",
        "Name three metals.",
        "--output",
        "json",
    )

    from_environment = run(*arguments).document["usage"]["completion_tokens"]
    from_option = run(*arguments, "--max-new", 3).document["usage"]["completion_tokens"]

    assert (from_environment, from_option) == (2, 3)


def test_environment_value_that_does_not_parse_is_refused(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NINFER_MAX_CONTEXT", "many")

    outcome = run("generate", model, "--prompt", "hi")

    assert outcome.code == 2
    assert "NINFER_MAX_CONTEXT" in outcome.err


def test_convert_writes_what_inspect_reads(tmp_path: Path) -> None:
    output = tmp_path / "tiny.ninfer"

    converted = run("convert", GOLDEN / "tiny-moe/checkpoint", output, "--profile", "bf16")
    again = run("convert", GOLDEN / "tiny-moe/checkpoint", output, "--profile", "bf16")

    assert converted.code == 0
    assert again.code != 0
    assert run("inspect", output, "--format", "json").document["model_id"] == "tiny-moe"


def test_input_options_have_no_variable(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NINFER_PROMPT", "Name three metals.")

    outcome = run("generate", model)

    assert outcome.code == 2
    assert "--prompt" in outcome.err


@pytest.mark.parametrize("arguments", [("--nonsense",), ("a", "b"), ("--prompt", "a", "--promt")])
def test_unknown_words_are_answered_by_their_command(arguments: tuple[str, ...]) -> None:
    outcome = run("chat", *arguments)

    first, second = outcome.err.splitlines()
    assert outcome.code == 2
    assert first.startswith("ninfer chat: error: unrecognized arguments: ")
    assert second == "see ninfer chat --help"


def test_unknown_option_without_a_command_is_answered_by_the_whole() -> None:
    outcome = run("--nonsense")

    assert outcome.code == 2
    assert outcome.err.splitlines()[1] == "see ninfer --help"


def test_folder_given_as_a_model_is_explained() -> None:
    outcome = run("generate", GOLDEN / "tiny-dense/checkpoint", "--prompt", "hi")

    assert outcome.code == 2
    assert "ninfer convert" in outcome.err


def test_request_is_refused_before_the_model_is_loaded() -> None:
    outcome = run("generate", "/nonexistent.ninfer", "--prompt", "hi", "--top-p", "3")

    assert outcome.code == 5
    assert "top_p" in outcome.err


def test_list_variable_of_bench_is_read(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NINFER_CONCURRENCY", "1,2")
    monkeypatch.setenv("NINFER_PROMPT_LENS", "8")

    outcome = run(
        *("bench", model, "--gen-len", 2, "--repeat", 1, "--warmup", 0, "--format", "json")
    )

    assert [cell["concurrency"] for cell in outcome.document["cells"]] == [1, 2]


@pytest.mark.parametrize(
    ("option", "value"),
    [("--concurrency", "0,1"), ("--concurrency", "9"), ("--gen-len", "100000"), ("--warmup", "-1")],
)
def test_bench_refuses_what_it_could_not_measure(model: Path, option: str, value: str) -> None:
    assert run("bench", model, "--prompt-lens", "8", option, value).code == 2


def test_repeated_option_replaces_the_variable_whole(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NINFER_STOP", "iron")
    arguments = ("generate", model, "--greedy", "--prompt", "Name three metals.")

    assert run(*arguments).out == "Brass, "
    assert run(*arguments, "--stop", "silver").out == "Brass, iron, "


def test_variable_of_another_command_is_not_read(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NINFER_PORT", "nonsense")

    assert run("inspect", model).code == 0
