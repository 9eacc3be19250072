"""Continuations and rounds against traces of an independent implementation."""

import json
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from tests.demo_model.torch_models import golden_models
from tests.support.golden import GOLDEN, load
from tools.demo_model.acceptance import (
    Rounds,
    Text,
    candidate_walk,
    draft_accepted,
    mtp_accepted,
    run_trunk,
    walk,
)
from tools.demo_model.greedy import continuations

NO_STOP = -1


def trace(case: str, way: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / case / f"{way}_trace.json").read_text())
    return found


def addressable(case: str) -> int:
    return int(json.loads((GOLDEN / case / "info.json").read_text())["addressable"])


def text_of(case: str, index: str, tokens: list[int]) -> Text:
    prompt = load(case)[f"prompt_ids.{index}"].tolist()
    return Text([*prompt, *tokens], len(prompt) + 1)


@pytest.mark.parametrize("case", ["tiny-dense", "real-head-dense"])
def test_rows_of_different_length_are_continued_as_each_alone_is(case: str) -> None:
    trunk, _, _ = golden_models(case)
    golden = load(case)
    prompts = [golden[f"prompt_ids.{index}"].tolist() for index in (0, 1, 2)]

    found = continuations(trunk, prompts, NO_STOP, 32, addressable(case))

    assert found == [golden[f"greedy.{index}"].tolist() for index in (0, 1, 2)]


def test_a_row_ends_with_the_first_stop_token_or_at_the_limit() -> None:
    trunk, _, _ = golden_models("tiny-dense")
    golden = load("tiny-dense")
    prompts = [golden[f"prompt_ids.{index}"].tolist() for index in (0, 1, 2)]
    whole = [golden[f"greedy.{index}"].tolist() for index in (0, 1, 2)]
    stop, limit = whole[1][5], 12

    found = continuations(trunk, prompts, stop, limit, addressable("tiny-dense"))

    assert found == [
        tokens[: tokens.index(stop) + 1] if stop in tokens[:limit] else tokens[:limit]
        for tokens in whole
    ]
    assert {tokens[-1] == stop for tokens in found} == {True, False}


@pytest.mark.parametrize("case", ["tiny-dense", "real-head-dense"])
def test_rounds_of_the_mtp_head_are_those_of_the_trace(case: str) -> None:
    trunk, mtp, _ = golden_models(case)
    for index, run in trace(case, "mtp").items():
        text = text_of(case, index, run["tokens"])
        tokens = torch.tensor(text.tokens)
        hidden, _ = run_trunk(trunk, tokens)

        accepted = mtp_accepted(mtp, trunk, hidden, tokens, addressable(case))

        last = len(text.tokens) - 1
        for each in run["rounds"]:
            wanted = min(each["accepted"], last - each["frontier"])
            assert accepted[each["frontier"]] == wanted, (index, each)


def test_rounds_of_the_drafter_are_those_of_the_trace() -> None:
    case = "real-head-dense"
    trunk, _, draft = golden_models(case)
    # Its window is shorter than the text; rounds that reach back further are another computation.
    window = 40
    checked = 0
    for index, run in trace(case, "dflash2").items():
        text = text_of(case, index, run["tokens"])
        _, features = run_trunk(trunk, torch.tensor(text.tokens))
        accepted = draft_accepted(draft, trunk, features, text, addressable(case))
        for each in run["rounds"]:
            if each["frontier"] + 7 < window:
                assert accepted[each["frontier"]] == each["accepted"]
                checked += 1
    assert checked >= 2


def test_proposals_of_a_block_are_those_of_the_trace() -> None:
    case = "real-head-dense"
    trunk, _, draft = golden_models(case)
    run = trace(case, "dflash2")["1"]
    text = text_of(case, "1", run["tokens"])
    tokens = torch.tensor(text.tokens)
    _, features = run_trunk(trunk, tokens)
    first = run["rounds"][0]
    anchors = torch.tensor([[first["frontier"]]])
    inputs = torch.full((1, 1, 8), draft.geometry.mask_token_id)
    inputs[..., 0] = first["anchor"]

    hidden = draft(
        features, torch.arange(len(tokens))[None], anchors, trunk.embed_tokens(inputs), 8
    )
    proposed = candidate_walk(
        draft, trunk, hidden[0, :, 1:], torch.tensor([first["anchor"]]), addressable(case)
    )

    assert proposed[0].tolist() == first["drafts"]


def test_a_walk_counts_accepted_tokens_and_one_more_and_ends_with_the_text() -> None:
    rounds = Rounds()
    text = Text(list(range(9)), prompt_tokens=2)

    # Anchors 1, 4, 5 and 6: 2 + 1, 0 + 1, 0 + 1, then 2 of which the text has room for all.
    walk(text, [9, 2, 9, 9, 0, 0, 2, 9, 9], rounds)

    assert rounds.accepted == [2, 0, 0, 2]
    assert rounds.emitted == 7
    assert rounds.tokens_per_round == pytest.approx(7 / 4)
    assert rounds.reach(3) == [0.5, 0.5, 0.0]
