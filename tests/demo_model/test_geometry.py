"""Configs describe a geometry completely, and ninfer reads the same one from them."""

import dataclasses
import json

import pytest

from ninfer.models.qwen_hybrid.geometry import geometry_from_config
from tools.demo_model.geometry import (
    DemoGeometry,
    draft_config,
    for_vocabulary,
    from_configs,
    from_dict,
    model_config,
    small,
    to_dict,
)

GEOMETRIES = [for_vocabulary(8170), small(300), for_vocabulary(127)]


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_geometry_comes_back_from_its_configs(geometry: DemoGeometry) -> None:
    text, draft = (json.loads(json.dumps(make(geometry))) for make in (model_config, draft_config))

    assert from_configs(text, draft) == geometry


def test_geometry_without_a_drafter_has_the_usual_one() -> None:
    geometry = for_vocabulary(127)

    found = from_configs(model_config(geometry), None)

    assert dataclasses.replace(found, draft=geometry.draft) == geometry


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_geometry_comes_back_from_its_json(geometry: DemoGeometry) -> None:
    assert from_dict(json.loads(json.dumps(to_dict(geometry)))) == geometry


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_ninfer_reads_the_same_geometry(geometry: DemoGeometry) -> None:
    found = geometry_from_config(model_config(geometry), draft_config(geometry))

    assert found.hidden == geometry.hidden
    assert len(found.layers) == geometry.num_layers
    assert found.vocab_rows == geometry.vocab_rows
    assert found.attention.rotary_dim == geometry.rotary_dim
    assert found.draft is not None
    assert found.draft.target_layers == geometry.draft.target_layers


def test_vocabulary_leaves_a_row_for_the_mask() -> None:
    for size in (63, 64, 65):
        geometry = for_vocabulary(size)

        assert geometry.mask_token_id == size < geometry.vocab_rows
