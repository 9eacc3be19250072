"""Hostile values anywhere in a config: typed refusals only, naming the field and the value."""

import copy
import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.errors import CheckpointError
from ninfer.models.package import Geometry
from ninfer.models.qwen_hybrid.geometry import geometry_from_config
from ninfer.models.qwen_hybrid.inventory import inventory
from ninfer.models.qwen_hybrid.recognition import recognise
from tests.support.golden import GOLDEN

HUGE = 10**400
Path = tuple[str, ...]

HOSTILE = st.one_of(
    st.sampled_from(
        [
            HUGE, -HUGE, 1 << 31, (1 << 31) + 1, 1 << 63, 1 << 64, 0, -1,
            1e308, -1e308, 1.7976931348623157e308, 5e-324, 1e-300, -0.0, 0.0, 0.1, 0.3,
            float("inf"), float("-inf"), float("nan"), True, False, None, "", "\ud800", "9" * 5000,
            [], {}, [HUGE], [HUGE] * 3, [-1, HUGE, 1], [1e308], [[]], [None], {"a": 1},
            [{}], {"rope_type": HUGE},
        ]
    ),
    st.integers(),
    st.integers(1, 1 << 31),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers() | st.floats() | st.text(max_size=4), max_size=4),
)  # fmt: skip


def _load(case: str, folder: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((GOLDEN / case / folder / "config.json").read_bytes())
    return loaded


# Target, and drafter of it when the drafter is what changes.
CASES = {
    "dense": (_load("tiny-dense", "checkpoint"), None),
    "moe": (_load("tiny-moe", "checkpoint"), None),
    "flat": (_load("tiny-moe", "checkpoint-flat-unfused"), None),
    "vision": (_load("tiny-vision", "checkpoint"), None),
    "dflash2": (_load("tiny-dense", "checkpoint"), _load("tiny-dense", "dflash2")),
    "dflash": (_load("tiny-moe", "checkpoint"), _load("tiny-moe", "dflash")),
}


def _fields(values: dict[str, Any], path: Path = ()) -> Iterator[Path]:
    for name, value in values.items():
        yield (*path, name)
        if isinstance(value, dict):
            yield from _fields(value, (*path, name))


ABSENT: list[Path] = [
    ("text_config", "partial_rotary_factor"),
    ("text_config", "full_attention_interval"),
    ("text_config", "quantization_config"),
    ("rope_theta",),
    ("block_size",),
    ("num_target_layers",),
    ("dflash_config", "causal"),
    ("dflash_config", "final_logit_softcapping"),
]
FIELDS = [
    (case, path)
    for case, (target, draft) in CASES.items()
    for path in [*_fields(target if draft is None else draft), *ABSENT]
]


def _copied(values: dict[str, Any]) -> dict[str, Any]:
    """Sections are new, what they hold is not; far quicker than a deep copy."""
    return {
        name: _copied(value) if isinstance(value, dict) else value for name, value in values.items()
    }


@cache
def _unchanged(case: str) -> Geometry:
    return _read(case, {})


def _read(case: str, changes: dict[Path, object]) -> Geometry:
    """Read a case's geometry with changed fields of the config it is about."""
    target, draft = (None if part is None else _copied(part) for part in CASES[case])
    assert target is not None
    changed = target if draft is None else draft
    for path, value in changes.items():
        section: Any = changed
        for name in path[:-1]:
            section = section.get(name) if isinstance(section, dict) else None
        if isinstance(section, dict):
            section[path[-1]] = value
    geometry = geometry_from_config(target, draft)
    inventory(recognise(target), geometry, "bf16", 512)
    return geometry


def _refusal(case: str, changes: dict[Path, object]) -> CheckpointError | None:
    """The refusal of a changed case, None when it is accepted; any other error escapes."""
    try:
        _read(case, changes)
    except CheckpointError as error:
        return error
    return None


@settings(max_examples=4 * settings().max_examples)
@given(
    st.sampled_from(list(CASES)).flatmap(
        lambda case: st.tuples(
            st.just(case),
            st.dictionaries(
                st.sampled_from([path for of, path in FIELDS if of == case]),
                HOSTILE,
                min_size=1,
                max_size=2,
            ),
        )
    )
)
def test_only_typed_refusals_leave_the_reading_of_a_config(
    drawn: tuple[str, dict[Path, object]],
) -> None:
    case, changes = drawn

    refusal = _refusal(case, changes)

    assert refusal is None or (refusal.field and len(str(refusal)) < 1000)


@pytest.mark.parametrize(
    "value",
    [HUGE, -HUGE, 1e308, -0.0, 5e-324, float("nan"), float("inf")],
    ids=lambda value: f"{str(value)[:8]}",
)
def test_hostile_number_is_ignored_or_named(value: float) -> None:
    for case, path in FIELDS:
        refusal = _refusal(case, {path: value})
        if refusal is None:
            assert _read(case, {path: value}) == _unchanged(case), (case, path)
        else:
            assert refusal.field is not None
            assert refusal.field.rpartition(".")[2] == path[-1], (case, path)
            assert repr(value)[:50] in str(refusal), (case, path)


@pytest.mark.parametrize(
    ("case", "path", "value"),
    [
        ("dense", ("text_config", "rms_norm_eps"), HUGE),
        ("dense", ("text_config", "rms_norm_eps"), 10**5000),
        ("dense", ("text_config", "rms_norm_eps"), 1e-300),
        ("dense", ("text_config", "rope_parameters", "rope_theta"), HUGE),
        ("dense", ("text_config", "rope_parameters", "rope_theta"), 1e308),
        ("dense", ("text_config", "rope_parameters", "partial_rotary_factor"), 1e308),
        ("dense", ("text_config", "partial_rotary_factor"), HUGE),
        ("dense", ("text_config", "hidden_size"), 10**5000),
        ("dense", ("text_config", "num_attention_heads"), 1 << 31),
        ("moe", ("text_config", "num_experts"), 1 << 16),
        ("dflash2", ("rope_parameters", "rope_theta"), HUGE),
        ("dflash2", ("rms_norm_eps",), HUGE),
    ],
    ids=lambda value: ".".join(value) if isinstance(value, tuple) else "",
)
def test_number_beyond_its_range_names_field_and_value(case: str, path: Path, value: float) -> None:
    with pytest.raises(CheckpointError, match="allowed is") as caught:
        _read(case, {path: value})

    assert caught.value.field == ".".join(path)
    assert f"config field {'.'.join(path)} is " in str(caught.value)


def test_default_target_layers_need_a_deep_enough_target() -> None:
    target, draft = copy.deepcopy(CASES["dflash2"])
    assert draft is not None
    text = target["text_config"]
    text["num_hidden_layers"], text["layer_types"] = 2, ["linear_attention", "full_attention"]
    draft["num_target_layers"] = 2
    del draft["dflash_config"]["target_layer_ids"]

    with pytest.raises(CheckpointError) as caught:
        geometry_from_config(target, draft)

    assert caught.value.field == "dflash_config.target_layer_ids"
