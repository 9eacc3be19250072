import json
from typing import Any

import numpy as np
import pytest

from tests.support.golden import GOLDEN, load
from tests.support.oracles.sampling import Settings, draw, first_words, philox, probabilities
from tests.support.sampling_rows import F32, MARGIN, Counts, Permitted, Row, choose

INDEX: dict[str, Any] = json.loads((GOLDEN / "sampling" / "sampling.json").read_text())
VOCABULARY = 96


def golden_case(index: int) -> tuple[F32, Settings]:
    """Logits with the steps that are not the op's (bias, repetition), and the settings."""
    case = INDEX["cases"][index]
    params = case["params"]
    logits = load("sampling", "sampling.safetensors")["logits"][case["logits"]].astype(np.float32)
    for token, bias in params.get("logit_bias", {}).items():
        logits[int(token)] += np.float32(bias)
    seen = sorted({*INDEX["prompt"], *INDEX["output"]})
    penalty = np.float32(params.get("repetition_penalty", 1.0))
    logits[seen] = np.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
    settings = Settings(
        temperature=params["temperature"],
        top_k=params.get("top_k", 0),
        top_p=params.get("top_p", 1.0),
        min_p=params.get("min_p", 0.0),
        presence=params.get("presence_penalty", 0.0),
        frequency=params.get("frequency_penalty", 0.0),
    )
    return logits, settings


OUTPUT_COUNTS: Counts = np.bincount(INDEX["output"], minlength=VOCABULARY).astype(np.int32)
ADDRESSABLE: Permitted = np.arange(VOCABULARY) < INDEX["addressable"]
CASES = range(len(INDEX["cases"]))
SAMPLED = [i for i in CASES if INDEX["cases"][i]["params"]["temperature"] > 0]


@pytest.mark.parametrize("vector", INDEX["philox"])
def test_oracle_generates_the_published_words(vector: dict[str, list[int]]) -> None:
    assert list(philox(tuple(vector["counter"]), tuple(vector["key"]))) == vector["words"]


def test_words_of_many_tokens_are_those_of_each() -> None:
    tokens = np.array([0, 1, 7, 248_076, 2**32 - 1], np.uint64)

    for seed, position in ((0, 0), (2**64 - 1, 2**32 - 1), (0x1234_5678_9ABC_DEF0, 4711)):
        words = first_words(position, tokens, seed)
        key = seed & 0xFFFFFFFF, seed >> 32
        assert list(words) == [philox((position, int(t), 0, 0), key)[0] for t in tokens]


@pytest.mark.parametrize("index", SAMPLED)
def test_oracle_filters_as_the_fixtures_do(index: int) -> None:
    logits, settings = golden_case(index)

    got = probabilities(logits.astype(np.float64), OUTPUT_COUNTS, ADDRESSABLE, settings)

    expected = load("sampling", "sampling.safetensors")["probabilities"][index]
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("index", CASES)
def test_recorded_draws_are_repeated(index: int) -> None:
    logits, settings = golden_case(index)
    draws = [d for d in INDEX["cases"][index]["draws"] if d["margin"] > MARGIN]

    rows = [Row(logits, settings, d["seed"], d["position"], OUTPUT_COUNTS) for d in draws]
    got = choose(rows, INDEX["addressable"])

    assert {d["purpose"] for d in draws} == {0}
    assert got == [d["token"] for d in draws]


@pytest.mark.parametrize("index", SAMPLED)
def test_many_draws_follow_the_recorded_distribution(index: int) -> None:
    logits, settings = golden_case(index)
    expected = load("sampling", "sampling.safetensors")["probabilities"][index]
    recorded = [draw(expected, 77, position) for position in range(40)]

    rows = [Row(logits, settings, 77, at, OUTPUT_COUNTS) for at in range(40)]
    got = choose(rows, INDEX["addressable"])

    clear = [i for i, (_, margin) in enumerate(recorded) if margin > MARGIN]
    assert [got[i] for i in clear] == [recorded[i][0] for i in clear]
    assert len(clear) > 30
