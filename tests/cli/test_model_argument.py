"""Commands without MODEL use the demo model that ships with ninfer, and say so in one line."""

from pathlib import Path

import pytest

from ninfer.cli import model_argument
from ninfer.cli.main import build_parser
from ninfer.cli.model_argument import NOTICE
from ninfer.demo.shipped import shipped_model
from tests.cli.command_line import run
from tests.support.demo_model import stand_in_demo
from tests.support.tiny_model import artifact_path

MODEL_COMMANDS = ("generate", "chat", "serve", "bench", "tokenize", "score", "inspect")
SHORT = ("--max-new", 2, "--greedy", "--device", "host")


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation whose demo model is the stand-in."""
    path = stand_in_demo()
    monkeypatch.setattr(model_argument, "shipped_model", lambda: shipped_model(path.parent))
    return path


@pytest.fixture
def no_demo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An installation without a demo model."""
    monkeypatch.setattr(model_argument, "shipped_model", lambda: shipped_model(tmp_path))


@pytest.mark.usefixtures("demo")
def test_generate_answers_with_the_demo_model_and_says_so_once() -> None:
    outcome = run("generate", "--prompt", "Hello", *SHORT, "--output", "json")

    assert outcome.code == 0
    assert outcome.document["model"] == "demo"
    assert outcome.err.splitlines().count(NOTICE) == 1


@pytest.mark.usefixtures("demo")
def test_chat_talks_with_the_demo_model(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(["Hello"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines, "/quit"))

    outcome = run("chat", *SHORT)

    assert outcome.code == 0
    assert outcome.err.splitlines()[0] == NOTICE
    assert "demo is ready" in outcome.err


@pytest.mark.usefixtures("demo")
def test_bench_measures_the_demo_model() -> None:
    outcome = run(
        *("bench", "--prompt-lens", 8, "--gen-len", 2, "--repeat", 1, "--warmup", 0),
        *("--device", "host", "--format", "json"),
    )

    assert outcome.document["model"] == "demo"
    assert NOTICE in outcome.err.splitlines()


def test_bench_of_an_artifact_and_a_synthetic_model_is_a_usage_error() -> None:
    outcome = run("bench", artifact_path("tiny-dense"), "--synthetic", "tiny-dense")

    assert outcome.code == 2
    assert "either an artifact or --synthetic" in outcome.err


@pytest.mark.usefixtures("demo")
def test_tokenize_uses_the_demo_tokenizer() -> None:
    outcome = run("tokenize", "--text", "247", "--format", "json")

    assert len(outcome.document["tokens"]) == 3
    assert NOTICE in outcome.err.splitlines()


@pytest.mark.usefixtures("demo")
def test_score_uses_the_demo_model(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("one two three")

    outcome = run("score", "--file", text, "--device", "host", "--format", "json")

    assert outcome.document["num_scored"] == len(outcome.document["tokens"]) - 1
    assert NOTICE in outcome.err.splitlines()


def test_inspect_shows_the_demo_model(demo: Path) -> None:
    outcome = run("inspect")

    assert outcome.code == 0
    assert str(demo) in outcome.out
    assert outcome.err == NOTICE + "\n"


def test_serve_loads_the_demo_model(demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    def load(model: str, **options: object) -> None:
        loaded.append(model)

    def serve(plan: object) -> None:
        plan.load(*[lambda done, total: None] * 2)  # type: ignore[attr-defined]

    monkeypatch.setattr("ninfer.cli.serve.Engine", load)
    monkeypatch.setattr("ninfer.cli.serve.serve", serve)

    outcome = run("serve", "--port", 0)

    assert loaded == [str(demo)]
    assert outcome.err.splitlines() == [NOTICE]


@pytest.mark.parametrize("command", MODEL_COMMANDS)
@pytest.mark.usefixtures("no_demo")
def test_without_model_and_without_demo_the_command_names_both(command: str) -> None:
    needed = {
        "generate": ("--prompt", "x"),
        "tokenize": ("--text", "x"),
        "score": ("--file", __file__),
    }

    outcome = run(command, *needed.get(command, ()))

    assert outcome.code == 2
    assert "no MODEL was given" in outcome.err
    assert NOTICE not in outcome.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("generate", "some.ninfer", "--prompt", "x"),
        ("generate", "--prompt", "x", "some.ninfer"),
        ("generate", "--prompt", "x", "--greedy", "some.ninfer"),
        ("generate", "--greedy", "some.ninfer", "--prompt", "x"),
        ("chat", "--no-thinking", "some.ninfer"),
        ("serve", "--port", "0", "some.ninfer", "--metrics-public"),
        ("bench", "--concurrency", "1,2", "some.ninfer"),
        ("tokenize", "--text", "x", "some.ninfer"),
        ("score", "--file", "x", "some.ninfer", "--window", "4"),
        ("inspect", "--tensors", "some.ninfer"),
    ],
)
def test_model_is_found_before_between_and_behind_options(arguments: tuple[str, ...]) -> None:
    assert build_parser().parse_args(arguments).model == "some.ninfer"


@pytest.mark.usefixtures("demo")
def test_named_model_is_used_without_a_notice() -> None:
    outcome = run("tokenize", artifact_path("tiny-dense"), "--text", "x")

    assert outcome.code == 0
    assert NOTICE not in outcome.err


def test_prompt_given_as_model_is_a_usage_error() -> None:
    outcome = run("generate", "Why is the sky blue?")

    assert outcome.code == 2
    assert "--prompt" in outcome.err
