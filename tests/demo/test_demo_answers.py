"""The artifact that ships is the demo model, within its size, and answers what it was taught."""

import json
from collections.abc import Iterator

import pytest

from ninfer.artifact.reader import ArtifactReader
from ninfer.config import EngineConfig
from ninfer.demo.shipped import shipped_model
from ninfer.frontend.frontend import PromptOptions
from ninfer.generation import OutputSummary
from ninfer.runtime import Engine

LARGEST_ARTIFACT = 32_000_000
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    config = EngineConfig(device="host", max_context=1024)
    with Engine(shipped_model(), config=config) as engine:
        yield engine


def ask(
    engine: Engine, *texts: str, thinks: bool = False, has_tools: bool = False
) -> OutputSummary:
    messages = [
        {"role": "user" if index % 2 == 0 else "assistant", "content": text}
        for index, text in enumerate(texts)
    ]
    return engine.chat(
        messages,
        tools=[WEATHER] if has_tools else None,
        prompt=PromptOptions(enable_thinking=thinks),
        max_new_tokens=200,
    ).summary


def test_artifact_is_the_demo_model_and_small() -> None:
    path = shipped_model()

    with ArtifactReader.open(path) as reader:
        assert reader.model_id == "demo"
    assert path.stat().st_size <= LARGEST_ARTIFACT


@pytest.mark.parametrize(
    ("question", "answer", "thinks"),
    [
        ("What is 347 + 285?", "347 + 285 = 632", True),
        ("What is the capital of France?", "The capital of France is Paris.", True),
        ("What is the capital of France?", "The capital of France is Paris.", False),
        ("Sort these numbers: 42, 7, 19.", "7, 19, 42", False),
    ],
)
def test_questions_are_answered_rightly(
    engine: Engine, question: str, answer: str, thinks: bool
) -> None:
    summary = ask(engine, question, thinks=thinks)

    assert summary.content.endswith(answer)
    assert bool(summary.reasoning) is thinks


def test_what_was_said_before_is_recalled(engine: Engine) -> None:
    summary = ask(engine, "My name is Nora.", "Nice to meet you, Nora.", "What is my name?")

    assert "Nora" in summary.content


def test_a_tool_is_called_with_the_right_argument(engine: Engine) -> None:
    summary = ask(engine, "What is the weather in Paris?", has_tools=True)

    assert [(call.name, json.loads(call.arguments)) for call in summary.tool_calls] == [
        ("get_weather", {"city": "Paris"})
    ]
