"""Prompts, decisions and small walks that the tests of model units share."""

import numpy as np

from ninfer.generation import SamplingParams
from ninfer.program.contract import PendingBatch, RowDecision
from tests.support.golden import load
from tests.support.program_driver import Lane, ProgramDriver

END = RowDecision(1, is_terminal=True)
CANCELLED = RowDecision(0, is_terminal=True)
PENALISED = SamplingParams(temperature=0.0, presence_penalty=1.5, frequency_penalty=1.75)
REWARDED = SamplingParams(temperature=0.0, presence_penalty=1.5, frequency_penalty=-1.75)
FAVOURED = SamplingParams(temperature=0.0, presence_penalty=-2.0, frequency_penalty=-2.0)
ADDRESSABLE = 512
FORCED = (17, 300, 41, 17, 9)


def golden_prompt(index: int) -> list[int]:
    return [int(token) for token in load("tiny-dense")[f"prompt_ids.{index}"]]


def untrained_prompt() -> list[int]:
    """Text the model was not trained on: small margins, so that a wrong state shows."""
    return [int(token) for token in load("tiny-dense")["prompt_ids.random"]]


def force(driver: ProgramDriver, lane: Lane, tokens: tuple[int, ...]) -> PendingBatch:
    return driver.program.control(lane.handle, tokens)


def continue_alone(
    driver: ProgramDriver, lane: Lane, count: int = 4
) -> tuple[list[int], np.ndarray]:
    lane.tokens.clear()
    lane.logits.clear()
    for _ in range(count):
        driver.round(lane)
    return lane.tokens, np.stack(lane.logits)


def choices_of(
    sampling: SamplingParams, outputs: list[int], tokens: list[int], logits: np.ndarray
) -> list[int]:
    """What greedy choice under two penalties must take, from the raw logits of each step."""
    presence = np.float32(sampling.presence_penalty)
    frequency = np.float32(sampling.frequency_penalty)
    history = list(outputs)
    choices = []
    for row, token in zip(logits, tokens, strict=True):
        counts = np.bincount(history, minlength=row.size)[:ADDRESSABLE].astype(np.float32)
        choices.append(
            int(np.argmax(row[:ADDRESSABLE] - presence * (counts > 0) - frequency * counts))
        )
        history.append(token)
    return choices
