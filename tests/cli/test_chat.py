import json
from pathlib import Path

import pytest

from ninfer.cli import chat
from ninfer.cli.console import Console
from ninfer.cli.exit_codes import ExitCode
from ninfer.errors import EngineFailed
from ninfer.generation import GenerationEvent, GenerationResult
from ninfer.runtime import GenerationHandle
from tests.cli.command_line import Outcome, run
from tests.support.tiny_model import artifact_path

RESTART = "/reset starts a new conversation, /save FILE keeps this one"


def talk(monkeypatch: pytest.MonkeyPatch, lines: list[str], *options: object) -> Outcome:
    """Say these lines to the tiny model and leave."""
    typed = iter([*lines, "/quit"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed))
    return run("chat", artifact_path("tiny-dense", "bf16"), "--greedy", *options)


def test_chat_keeps_its_history_and_can_save_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = tmp_path / "talk.json"
    lines = iter(["Name three metals.", f"/save {saved}", "/nonsense", "/reset", "/quit"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))

    outcome = run("chat", artifact_path("tiny-dense", "bf16"), "--greedy")

    assert outcome.code == 0
    assert outcome.out == "Brass, iron, silver.\n"
    assert json.loads(saved.read_text()) == [
        {"role": "user", "content": "Name three metals."},
        {"role": "assistant", "content": "Brass, iron, silver."},
    ]


def test_conversation_that_outgrows_the_context_is_told_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = ["Name three metals.", "x " * 60, "/reset", "Name three metals."]

    outcome = talk(monkeypatch, lines, "--max-context", 64)

    assert f"64 maximum; {RESTART}\n" in outcome.err
    assert outcome.out == "Brass, iron, silver.\n" * 2


def test_first_message_over_the_context_is_not_told_to_reset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcome = talk(monkeypatch, ["x " * 200], "--max-context", 64, "--system", "Be brief.")

    assert "maximum; send a shorter message, or start with a larger --max-context\n" in outcome.err
    assert RESTART not in outcome.err


def test_thinking_budget_without_room_is_told_the_way_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    earlier = tmp_path / "talk.json"
    earlier.write_text('[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "x"}]')
    lines = [f"/load {earlier}", "/think on", "Name three metals."]

    outcome = talk(monkeypatch, lines, "--max-context", 64, "--thinking-budget", 60)

    assert "thinking_budget is 60; with" in outcome.err
    assert f"are allowed; {RESTART}\n" in outcome.err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('[{"role": "robot", "content": "hi"}]', "error: messages[0].role is 'robot'"),
        ('[{"role": "user", "content": 3}]', "error: messages[0].content"),
        ('["hi"]', "error: messages[0]"),
    ],
)
def test_conversation_that_cannot_go_on_is_not_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str, said: str
) -> None:
    earlier = tmp_path / "talk.json"
    earlier.write_text(content)

    outcome = talk(monkeypatch, [f"/load {earlier}", "Name three metals."])

    assert said in outcome.err
    assert "loaded" not in outcome.err
    assert outcome.out == "Brass, iron, silver.\n"


def test_answer_that_fills_the_context_is_told_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcome = talk(monkeypatch, ["Name three metals."], "--max-context", 30)

    assert f"\nthe context of 30 tokens is full; {RESTART}\n" in outcome.err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/save", "usage: /save FILE"),
        ("/load  ", "usage: /load FILE"),
        ("/think", "usage: /think on|off"),
        ("/think maybe", "usage: /think on|off"),
        ("/quit now", "usage: /quit"),
        ("/reset all", "usage: /reset"),
        ("/sav x", "unknown command /sav; /help "),
    ],
)
def test_known_command_in_a_wrong_form_is_told_the_right_one(
    monkeypatch: pytest.MonkeyPatch, line: str, said: str
) -> None:
    assert f"\n{said}" in talk(monkeypatch, [line]).err


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--temperature", 5], ExitCode.REFUSED, "temperature is 5.0; allowed is 0..2"),
        (
            ["--temperature", 0.5],
            ExitCode.USAGE,
            "--temperature does nothing beside --greedy or NINFER_GREEDY",
        ),
    ],
)
def test_value_that_no_model_takes_is_refused_before_the_model_loads(
    options: list[object], code: ExitCode, said: str
) -> None:
    greedy = [] if code is ExitCode.REFUSED else ["--greedy"]

    outcome = run("chat", "absent.ninfer", *greedy, *options)

    assert (outcome.code, outcome.err) == (code, f"error: {said}\n")


def test_interrupt_that_broke_a_lock_still_only_ends_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torn = iter([True])

    def write(event: GenerationEvent, console: Console, *, shows_thinking: bool) -> None:
        if next(torn, False):
            try:
                raise KeyboardInterrupt
            finally:
                raise RuntimeError("cannot release un-acquired lock")

    monkeypatch.setattr(chat, "write_event", write)

    outcome = talk(monkeypatch, ["Name three metals."] * 2)

    assert outcome.code == 0
    assert "[cancelled]" in outcome.err
    assert "[stop]" in outcome.err


def test_engine_that_fails_after_an_interrupt_is_a_failure_and_no_interrupt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(event: GenerationEvent, console: Console, *, shows_thinking: bool) -> None:
        raise KeyboardInterrupt

    def failed(handle: GenerationHandle) -> GenerationResult:
        raise EngineFailed("the engine failed")

    monkeypatch.setattr(chat, "write_event", interrupted)
    monkeypatch.setattr(GenerationHandle, "result", failed)

    outcome = talk(monkeypatch, ["Name three metals."])

    assert (outcome.code, "error: the engine failed\n" in outcome.err) == (1, True)


def test_other_refusal_comes_without_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = talk(monkeypatch, ["hi"], "--top-k", 100000)

    assert "top_k" in outcome.err
    assert "/reset s" not in outcome.err
