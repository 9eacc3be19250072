"""Synthetic models: the contract of a real artifact's text part, and limits computed from it."""

from collections.abc import Iterator
from functools import cache

import pytest

from ninfer.errors import ConfigurationError
from ninfer.frontend.frontend import Frontend
from ninfer.models.qwen_hybrid import synthetic
from ninfer.models.qwen_hybrid.inventory import ObjectGroup, inventory
from ninfer.models.qwen_hybrid.limits import ModelLimits
from ninfer.models.qwen_hybrid.synthetic import Normal, spread_of, synthetic_model
from ninfer.models.qwen_hybrid.synthetic_tokenizer import synthetic_resources
from ninfer.models.registry import PACKAGES, lookup

COPY = 4.3e12
MATMUL = 790e12


@pytest.fixture(autouse=True, scope="module")
def vocabularies_made_once() -> Iterator[None]:
    """Models of one vocabulary share its resources, which nobody changes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthetic, "synthetic_resources", cache(synthetic_resources))
        yield


def limits(model_id: str, profile: str) -> ModelLimits:
    model = synthetic_model(model_id, profile)
    return ModelLimits(model.geometry, model.objects[ObjectGroup.TEXT], kv_element_bytes=2.0)


@pytest.mark.parametrize(
    ("model_id", "profile"),
    [
        (package.model_id, profile)
        for package in PACKAGES
        for profile in sorted(package.weights_ids)
    ],
)
def test_objects_are_those_of_a_real_file(model_id: str, profile: str) -> None:
    model = synthetic_model(model_id, profile)

    real = inventory(
        lookup(model_id), lookup(model_id).expected_geometry, profile, model.addressable_tokens
    )
    assert model.objects == {
        ObjectGroup.TEXT: tuple(o for o in real if o.group is ObjectGroup.TEXT)
    }
    for stored in model.objects[ObjectGroup.TEXT]:
        spread = spread_of(stored)
        assert not isinstance(spread, Normal) or 0 < spread.deviation <= 1


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="no-such-model"):
        synthetic_model("no-such-model", "bf16")
    with pytest.raises(ConfigurationError, match="fp8"):
        synthetic_model("tiny-dense", "fp8")


@pytest.mark.parametrize("num_tokens", [258, 259, 544, 66_000, 66_100])
def test_tokenizer_addresses_every_id_and_reads_its_own_text(num_tokens: int) -> None:
    frontend = Frontend(synthetic_resources(num_tokens))
    tokenizer = frontend.tokenizer

    assert tokenizer.addressable == num_tokens
    assert frontend.stop_ids == {num_tokens - 2, num_tokens - 1}
    text = "Any text, 123 ünïcode"
    ids = tokenizer.encode(text, parse_special=False)
    assert tokenizer.decode(ids).decode() == text


def test_a_vocabulary_without_room_for_bytes_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        synthetic_resources(257)


@pytest.mark.parametrize(
    ("model_id", "profile", "alone", "eight"),
    [
        ("qwen3.6-27b", "groupwise-int", 265, 1557),
        ("qwen3.6-27b", "bf16", 83, 594),
        ("qwen3.6-35b-a3b", "groupwise-int", 1527, 4070),
        ("qwen3.6-35b-a3b", "bf16", 695, 1664),
    ],
)
def test_decode_ceilings_at_8k_are_the_published_ones(
    model_id: str, profile: str, alone: int, eight: int
) -> None:
    found = limits(model_id, profile)

    assert COPY / found.round_bytes(1, 8192) == pytest.approx(alone, abs=0.6)
    assert 8 * COPY / found.round_bytes(8, 8192) == pytest.approx(eight, abs=1.1)


@pytest.mark.parametrize(
    ("model_id", "rate"), [("qwen3.6-27b", 15_569), ("qwen3.6-35b-a3b", 138_029)]
)
def test_prefill_ceilings_at_8k_are_the_published_ones(model_id: str, rate: int) -> None:
    found = limits(model_id, "groupwise-int")

    assert 8192 * MATMUL / found.prefill_flop(8192) == pytest.approx(rate, rel=2e-3)


def test_a_tied_model_reads_its_vocabulary_once() -> None:
    found = limits("tiny-dense", "bf16")
    untied = limits("tiny-moe", "bf16")

    assert found.geometry.is_tied
    assert not untied.geometry.is_tied
    assert found.round_bytes(1, 0) > 2 * 544 * 64
    assert all(stored.name != "text/output_head" for stored in found.objects)
