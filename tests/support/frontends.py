"""Frontends over the golden checkpoints, and ways to drive their sessions."""

import functools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ninfer.frontend.frontend import Frontend, OutputOptions, PreparedInput
from ninfer.frontend.message_json import parse_tools
from ninfer.frontend.output_session import TokenOutputSession
from ninfer.frontend.tool_calls import CallIds
from ninfer.generation import (
    Channel,
    FinishReason,
    OutputDelta,
    OutputSummary,
    TextDelta,
    ToolCall,
    ToolCallArguments,
    ToolCallStart,
)
from tests.support.golden import GOLDEN

CASES = ("tiny-dense", "tiny-moe", "tiny-vision", "real-head-dense", "real-head-moe")
IDS = CallIds(b"test")
RESOURCES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)


def resources(case: str = "tiny-dense") -> dict[str, bytes]:
    """Frontend resources of a golden checkpoint, by artifact name."""
    folder = GOLDEN / case / "checkpoint"
    return {f"frontend/{name}": (folder / name).read_bytes() for name in RESOURCES}


def cases(case: str, file: str) -> list[dict[str, Any]]:
    """Cases of a golden JSON file."""
    found: list[dict[str, Any]] = json.loads((GOLDEN / case / file).read_bytes())
    return found


@functools.cache
def frontend(case: str = "tiny-dense", chat_template: str | None = None) -> Frontend:
    """Frontend of a golden checkpoint; frontends are immutable, so tests share one."""
    return Frontend(resources(case), chat_template=chat_template)


@dataclass(frozen=True, slots=True)
class Folded:
    """What one run of a session gave."""

    deltas: tuple[OutputDelta, ...]
    summary: OutputSummary
    finish: FinishReason | None
    accepted: int


def open_session(
    *,
    tools: Sequence[dict[str, Any]] = (),
    start: Channel = Channel.CONTENT,
    **options: Any,
) -> TokenOutputSession:
    """Session of the first golden frontend behind a one-token prompt."""
    front = frontend()
    prompt = front.prepare_raw("x").prompt
    prepared = PreparedInput(prompt, None, start, parse_tools(list(tools)))
    return front.open_session(prepared, OutputOptions(call_ids=IDS, **options))


def ids_of(text: str) -> list[int]:
    """Tokens of a model's output, control tokens parsed."""
    return frontend().tokenizer.encode(text, parse_special=True)


def run_groups(
    session: TokenOutputSession, groups: Iterable[Sequence[int]], *, is_budget: bool = False
) -> Folded:
    """Preview and commit group after group until the session ends the output.

    ``is_budget`` says that the budget ends with the last token of the last group.
    """
    deltas: list[OutputDelta] = []
    accepted = 0
    finish = None
    listed = [list(group) for group in groups if group]
    for index, group in enumerate(listed):
        is_last = is_budget and index + 1 == len(listed)
        preview = session.preview(group, is_forced=False, is_budget_end=is_last)
        deltas += session.commit(preview)
        accepted += preview.accepted
        finish = preview.finish
        if finish is not None:
            break
    return Folded(tuple(deltas), session.summary(), finish, accepted)


def fold(deltas: Iterable[OutputDelta]) -> tuple[str, str, tuple[ToolCall, ...]]:
    """Content, reasoning and calls a client puts together from deltas."""
    text = dict.fromkeys(Channel, "")
    calls: list[ToolCall] = []
    for delta in deltas:
        match delta:
            case TextDelta():
                text[delta.channel] += delta.text
            case ToolCallStart():
                calls.append(ToolCall(delta.call_id, delta.name, ""))
            case ToolCallArguments():
                old = calls[delta.index]
                calls[delta.index] = ToolCall(old.call_id, old.name, old.arguments + delta.fragment)
    return text[Channel.CONTENT], text[Channel.THINKING], tuple(calls)
