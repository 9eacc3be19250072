"""Held-out accuracy of the demo model, skill by skill, measured through ninfer.

    python -m tools.demo_model.evaluate --model demo.ninfer --count 100 --json accuracy.json

Every conversation is one whose exercise no training conversation has (`data.partition`). It is
rendered, answered greedily and parsed by ninfer as a client would get it, up to eight at a time,
and judged by the rule it carries. ``typed`` is no skill: questions written by hand in words of
their own, each asked with and without thinking. The tables of the model card are made from the JSON
file.
"""

import argparse
import collections
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ninfer.config import EngineConfig
from ninfer.frontend.conversation import Conversation as Chat
from ninfer.frontend.conversation import Message, Role, ToolCallRequest, ToolDefinition
from ninfer.frontend.frontend import PreparedInput, PromptOptions
from ninfer.generation import GenerationResult, SamplingParams
from ninfer.runtime import Engine, GenerationHandle, RequestOptions
from ninfer.version import __version__
from tools.demo_model.data.checks import check
from tools.demo_model.data.conversation import (
    Call,
    Conversation,
    Expected,
    Rule,
    Speaker,
    Turn,
)
from tools.demo_model.data.mixture import AREAS, skills
from tools.demo_model.data.stream import held_out
from tools.demo_model.data.tables import rows as table_rows
from tools.docs.model_card import accuracy

CONCURRENCY: Final = 8
MAX_NEW_TOKENS: Final = 400
SEED: Final = 1_000_000
TYPED: Final = "typed"
_MAX_CONTEXT: Final = 2048


@dataclass(frozen=True, slots=True)
class Answered:
    """One held-out conversation and what the model made of it."""

    conversation: Conversation
    text: str
    calls: tuple[Call, ...]

    @property
    def is_right(self) -> bool:
        """Whether the answer keeps the conversation's rule."""
        return check(self.conversation, self.text, self.calls)


def typed_conversations() -> Iterator[Conversation]:
    """Questions of ``tables/typed.csv``, with and without thinking."""
    for row in table_rows(TYPED):
        asked = (Turn(Speaker.USER, row["question"]), Turn(Speaker.ASSISTANT))
        expected = Expected(Rule[row["rule"]], row["value"])
        for is_thinking in (True, False):
            yield Conversation(TYPED, asked, (), is_thinking, expected)


def chat_of(conversation: Conversation, turns: Sequence[Turn]) -> Chat:
    """Give turns of a conversation, with its tools, the form ninfer takes."""
    tools = tuple(ToolDefinition(tool.definition) for tool in conversation.tools)
    return Chat(tuple(map(_message, turns)), tools)


def _message(turn: Turn) -> Message:
    calls = tuple(ToolCallRequest(call.name, dict(call.arguments)) for call in turn.calls)
    reasoning = turn.thinking if turn.speaker is Speaker.ASSISTANT else None
    return Message(Role(turn.speaker.value), turn.text, reasoning, calls)


def prompt_of(engine: Engine, conversation: Conversation) -> PreparedInput:
    """Render everything before the answer that is judged."""
    options = PromptOptions(enable_thinking=conversation.is_thinking)
    return engine.frontend.prepare(chat_of(conversation, conversation.prompt), options)


def answered(engine: Engine, asked: Iterable[Conversation]) -> Iterator[Answered]:
    """Answer conversations, as many at a time as the engine takes, in order."""
    options = RequestOptions(sampling=SamplingParams(temperature=0), max_new_tokens=MAX_NEW_TOKENS)
    waiting: collections.deque[tuple[Conversation, GenerationHandle]] = collections.deque()
    for conversation in asked:
        if len(waiting) == 2 * engine.config.max_concurrency:
            yield _finished(*waiting.popleft())
        handle = engine.submit(prompt_of(engine, conversation), options)
        waiting.append((conversation, handle))
    while waiting:
        yield _finished(*waiting.popleft())


def _finished(conversation: Conversation, handle: GenerationHandle) -> Answered:
    with handle:
        result: GenerationResult = handle.result()
    calls = tuple(
        Call(call.name, tuple(json.loads(call.arguments).items()))
        for call in result.summary.tool_calls
    )
    return Answered(conversation, result.summary.content, calls)


def measure(
    engine: Engine, names: Sequence[str], count: int, seed: int
) -> tuple[dict[str, dict[str, int]], list[Answered]]:
    """Measure skills.

    Returns:
        For each skill how many were asked and right, in all and with thinking; and every
        conversation that was answered wrongly.
    """
    rows: dict[str, dict[str, int]] = {}
    wrong: list[Answered] = []
    for skill in names:
        row = dict.fromkeys(("asked", "right", "thinking_asked", "thinking_right"), 0)
        asked = typed_conversations() if skill == TYPED else held_out(skill, count, seed)
        for one in answered(engine, asked):
            row["asked"] += 1
            row["right"] += one.is_right
            row["thinking_asked"] += one.conversation.is_thinking
            row["thinking_right"] += one.conversation.is_thinking and one.is_right
            if not one.is_right:
                wrong.append(one)
        rows[skill] = row
        print(f"{skill:18} {row['right']:5} of {row['asked']:5}", file=sys.stderr)
    return rows, wrong


def area_rows(rows: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """Sum skills into the areas of the model card; areas without a measured skill are left out."""
    summed: dict[str, dict[str, int]] = {}
    for area, names in (AREAS | {"questions typed freely": (TYPED,)}).items():
        found = [rows[name] for name in names if name in rows]
        if found:
            summed[area] = {key: sum(row[key] for row in found) for key in found[0]}
    return summed


def document(engine: Engine, rows: dict[str, dict[str, int]], seed: int) -> dict[str, Any]:
    """Results with everything that is needed to repeat them."""
    return {
        "ninfer": __version__,
        "model_id": engine.model_id,
        "weights_id": engine.weights_id,
        "fingerprint": engine.fingerprint,
        "seed": seed,
        "areas": area_rows(rows),
        "skills": rows,
    }


def _failure(one: Answered) -> dict[str, Any]:
    last = one.conversation.turns[-1]
    return {
        "skill": one.conversation.skill,
        "is_thinking": one.conversation.is_thinking,
        "question": one.conversation.turns[-2].text,
        "wanted": last.text or str(last.calls or one.conversation.expected.value),
        "text": one.text,
        "calls": [str(call) for call in one.calls],
    }


def main(arguments: list[str] | None = None) -> int:
    """Measure, print the tables of the model card, write the files that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m tools.demo_model.evaluate")
    parser.add_argument("--model", required=True, help="artifact file")
    parser.add_argument("--count", type=int, default=100, help="conversations of each skill")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--skills", help="names, separated by commas (default: all)")
    parser.add_argument("--device", default="host", help="host, auto or a number")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--failures", type=Path, help="write wrong answers here, one a line")
    options = parser.parse_args(arguments)
    known = (*skills(), TYPED)
    names = known if options.skills is None else tuple(options.skills.split(","))
    unknown = sorted(set(names) - set(known))
    if unknown:
        parser.error(f"no such skill: {', '.join(unknown)}")
    config = EngineConfig(
        device=options.device,
        max_concurrency=CONCURRENCY,
        max_pending=2 * CONCURRENCY,
        max_context=_MAX_CONTEXT,
        shrinks_context=True,
    )
    with Engine(options.model, config=config) as engine:
        rows, wrong = measure(engine, names, options.count, options.seed)
        results = document(engine, rows, options.seed)
    print(accuracy(results))
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if options.failures is not None:
        lines = [json.dumps(_failure(one), ensure_ascii=False) + "\n" for one in wrong]
        options.failures.write_text("".join(lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
