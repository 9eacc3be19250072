"""Inventories against the published counts and sizes of official files."""

import json
import math
from collections import Counter

import pytest

from ninfer.models.qwen_hybrid.geometry import geometry_from_config
from ninfer.models.qwen_hybrid.inventory import (
    ExpectedObject,
    ObjectGroup,
    inventory,
)
from ninfer.models.registry import lookup
from ninfer.tensor import TensorFormat
from tests.support.golden import GOLDEN

TOKENIZER_SIZE = 248077
_HIGH_BYTES = {TensorFormat.Q4: 0, TensorFormat.Q5: 8, TensorFormat.Q6: 16, TensorFormat.W8: 0}
_WORD_BYTES = {TensorFormat.BF16: 2, TensorFormat.FP32: 4, TensorFormat.I32: 4}


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


def _nbytes(tensor: ExpectedObject) -> int:
    """Encoded size, straight from the layout formulas."""
    assert tensor.format is not None
    if tensor.format in _WORD_BYTES:
        return math.prod(tensor.shape) * _WORD_BYTES[tensor.format]
    rows, columns = tensor.shape
    groups = _up(columns, 128) // (32 if tensor.format is TensorFormat.W8 else 64)
    high = rows * groups * _HIGH_BYTES[tensor.format]
    return _up(_up(rows * groups * 32, 256) + high, 256) + rows * groups * 2


def _tensors(model_id: str, weights_id: str = "groupwise-int") -> list[ExpectedObject]:
    package = lookup(model_id)
    assert package.geometry is not None
    objects = inventory(package, package.geometry, weights_id, TOKENIZER_SIZE)
    return [wanted for wanted in objects if wanted.format is not None]


def _formats(tensors: list[ExpectedObject]) -> dict[str, int]:
    return dict(Counter(wanted.format.name for wanted in tensors if wanted.format))


def _span(tensors: list[ExpectedObject]) -> int:
    cursor = 0
    for wanted in tensors:
        cursor = _up(cursor, 256) + _nbytes(wanted)
    return cursor


def _device_bytes(tensors: list[ExpectedObject]) -> dict[str, int]:
    totals: Counter[str] = Counter()
    for wanted in tensors:
        totals[wanted.group.value] += _up(_nbytes(wanted), 256)
    return dict(totals)


def test_27b_has_the_published_tensors() -> None:
    tensors = _tensors("qwen3.6-27b")

    assert len(tensors) == 1118
    assert _formats(tensors) == {
        "BF16": 582, "FP32": 96, "I32": 1, "Q4": 183, "Q5": 246, "Q6": 3, "W8": 7,
    }  # fmt: skip
    assert Counter(wanted.group.value for wanted in tensors) == {
        "text": 771, "draft_head": 2, "mtp": 12, "vision": 333,
    }  # fmt: skip


def test_27b_has_the_published_bytes() -> None:
    tensors = _tensors("qwen3.6-27b")

    assert _span(tensors) == 17_482_356_224
    assert _device_bytes(tensors) == {
        "text": 16_378_329_088,
        "draft_head": 357_040_128,
        "mtp": 451_267_584,
        "vision": 295_719_424,
    }


def test_35b_has_the_published_tensors() -> None:
    tensors = _tensors("qwen3.6-35b-a3b")

    assert len(tensors) == 934
    assert _formats(tensors) == {
        "BF16": 487, "FP32": 60, "I32": 1, "Q4": 95, "Q5": 91, "Q6": 5, "W8": 195,
    }  # fmt: skip
    assert Counter(wanted.group.value for wanted in tensors) == {
        "text": 533, "draft_head": 2, "mtp": 15, "vision": 333, "dflash": 51,
    }  # fmt: skip


def test_35b_has_the_published_bytes() -> None:
    tensors = _tensors("qwen3.6-35b-a3b")

    assert _span(tensors) == 22_770_260_992
    assert _device_bytes(tensors) == {
        "text": 21_038_469_632,
        "draft_head": 143_130_624,
        "mtp": 897_934_336,
        "vision": 280_672_768,
        "dflash": 410_053_632,
    }


def test_35b_keeps_three_down_projections_finer() -> None:
    q6 = [wanted.name for wanted in _tensors("qwen3.6-35b-a3b") if wanted.format is TensorFormat.Q6]

    assert q6 == [
        *(f"text/layers/{layer}/moe/routed_down" for layer in (34, 38, 39)),
        "text/output_head",
        "vision/patch_embedding",
    ]


def test_38_differs_from_36_in_vocabulary_and_companion() -> None:
    tensors = _tensors("qwen3.8-27b")
    companion = [wanted for wanted in tensors if wanted.group is ObjectGroup.DFLASH2]
    others = [wanted for wanted in tensors if wanted.group is not ObjectGroup.DFLASH2]

    assert len(companion) == 66
    assert sum(_nbytes(wanted) for wanted in companion) == 2_226_792_960
    assert _formats(others) == {
        "BF16": 582, "FP32": 96, "I32": 1, "Q4": 183, "Q5": 246, "Q6": 1, "W8": 9,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("model_id", "payload_start", "file_bytes"),
    [
        ("qwen3.6-27b", 176_128, 17_495_365_888),
        ("qwen3.6-35b-a3b", 151_552, 22_783_246_080),
    ],
)
def test_published_file_sizes_leave_the_same_bytes_for_the_resources(
    model_id: str, payload_start: int, file_bytes: int
) -> None:
    assert file_bytes - payload_start - _span(_tensors(model_id)) == 12_833_536


def test_published_38_file_size_is_reproduced() -> None:
    tensors = [w for w in _tensors("qwen3.8-27b") if w.group is not ObjectGroup.DFLASH2]

    # Its resources are 3,840 bytes larger than those of the other two.
    assert 176_128 + 12_833_536 + 3_840 + _span(tensors) == 18_210_531_328


@pytest.mark.parametrize("model_id", ["qwen3.6-27b", "qwen3.6-35b-a3b"])
def test_official_resources_come_first_in_order(model_id: str) -> None:
    package = lookup(model_id)
    assert package.geometry is not None

    objects = inventory(package, package.geometry, "groupwise-int", TOKENIZER_SIZE)

    required = [o.name for o in objects if o.format is None and not o.is_optional]
    assert required == [
        "frontend/tokenizer.json",
        "frontend/tokenizer_config.json",
        "frontend/chat_template.jinja",
        "frontend/generation_config.json",
        "frontend/preprocessor_config.json",
        "frontend/video_preprocessor_config.json",
    ]
    assert [o.format is None for o in objects].index(False) == len(required) + 1


def test_bf16_profile_has_single_parents_and_direct_words() -> None:
    tensors = _tensors("qwen3.6-27b", "bf16")
    names = {wanted.name: wanted.shape for wanted in tensors}

    assert set(_formats(tensors)) == {"BF16", "FP32", "I32"}
    assert names["text/layers/3/attention/query_key_gate_value"] == (14336, 5120)
    assert names["text/layers/0/gdn/query_key_value_z"] == (16384, 5120)
    assert names["text/layers/0/gdn/a_b_projection"] == (96, 5120)
    assert "text/layers/0/gdn/value_z" not in names


def test_tied_model_stores_no_head_and_a_w8_embedding() -> None:
    config = json.loads((GOLDEN / "tiny-dense" / "checkpoint" / "config.json").read_bytes())

    objects = inventory(lookup("tiny-dense"), geometry_from_config(config), "groupwise-int", 512)

    by_name = {wanted.name: wanted for wanted in objects}
    assert "text/output_head" not in by_name
    assert by_name["text/token_embedding"].format is TensorFormat.W8
    assert by_name["text/draft_head"].shape == (512, 64)


def test_layer_order_is_the_contract_s() -> None:
    names = [wanted.name for wanted in _tensors("qwen3.6-27b")]

    first = names.index("text/layers/0/input_norm")
    assert [name.removeprefix("text/layers/0/") for name in names[first : first + 13]] == [
        "input_norm", "gdn/a_log", "gdn/dt_bias", "gdn/convolution", "gdn/a_projection",
        "gdn/b_projection", "gdn/query_key", "gdn/value_z", "gdn/norm", "gdn/output",
        "post_attention_norm", "mlp/gate_up", "mlp/down",
    ]  # fmt: skip
    first = names.index("text/layers/3/input_norm")
    assert [name.removeprefix("text/layers/3/") for name in names[first : first + 9]] == [
        "input_norm", "attention/query_key", "attention/gate_value", "attention/query_norm",
        "attention/key_norm", "attention/output", "post_attention_norm", "mlp/gate_up", "mlp/down",
    ]  # fmt: skip


def test_only_multiplied_or_gathered_tables_are_matrices() -> None:
    tensors = _tensors("qwen3.8-27b")

    plain = {w.name.rpartition("/")[2] for w in tensors if len(w.shape) == 2 and not w.is_matrix}

    assert plain == {
        "convolution", "position_embedding", "predecessor_codebook", "successor_codebook",
    }  # fmt: skip
