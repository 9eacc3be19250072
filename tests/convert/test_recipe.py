"""Row orders of the recipes against the golden transforms."""

import json
import math

import numpy as np
import numpy.typing as npt
import pytest

from ninfer.convert.recipe import RecipeBook, Rows, Transposed, checkpoint_recipes, draft_recipes
from ninfer.models.package import (
    AttentionGeometry,
    Geometry,
    LayerKind,
    MoeGeometry,
)
from ninfer.models.qwen_hybrid.geometry import geometry_from_config
from ninfer.models.registry import lookup
from tests.support.golden import GOLDEN

Words = npt.NDArray[np.uint16]


@pytest.fixture(scope="module")
def golden() -> dict[str, Words]:
    with np.load(GOLDEN / "artifact" / "transforms" / "row_transforms.npz") as loaded:
        return {name: loaded[name] for name in loaded}


def _book() -> RecipeBook:
    """Recipes of a model with the golden transforms' sizes: 2 heads of 256, 3 experts, H = 8."""
    config = json.loads((GOLDEN / "tiny-moe" / "checkpoint" / "config.json").read_bytes())
    base = geometry_from_config(config)
    geometry = Geometry(
        hidden=8,
        vocab_rows=16,
        layers=(LayerKind.GATED_DELTA, LayerKind.FULL_ATTENTION),
        attention=AttentionGeometry(2, 1, 256, 64, 1e7, (11, 11, 10)),
        gated_delta=base.gated_delta,
        mlp=MoeGeometry(num_experts=3, experts_per_token=1, expert_width=4, shared_width=4),
        norm_eps=1e-6,
        is_tied=False,
        max_positions=64,
        has_mtp=False,
        vision=None,
        draft=None,
    )
    return checkpoint_recipes(geometry, "model.", frozenset())


def _take(book: RecipeBook, name: str, source: str, words: Words, columns: int) -> Words:
    """Rows that an object takes from one source."""
    recipe = book.recipes[name]
    assert isinstance(recipe, Rows)
    rows = words.reshape(-1, columns)
    return np.concatenate(
        [rows[r.first : r.first + r.count] for r in recipe.ranges if r.source == source]
    )


def test_query_and_gate_rows_are_taken_head_by_head(golden: dict[str, Words]) -> None:
    book, at = _book(), "text/layers/1/attention/"
    source = "model.layers.1.self_attn.q_proj.weight"

    query = _take(book, f"{at}query_key", source, golden["qproj_source"], 8)
    gate = _take(book, f"{at}gate_value", source, golden["qproj_source"], 8)
    whole = _take(book, f"{at}query_key_gate_value", source, golden["qproj_source"], 8)

    assert (query == golden["query"]).all()
    assert (gate == golden["gate"]).all()
    assert (whole == np.concatenate([golden["query"], golden["gate"]])).all()


def test_expert_banks_become_rows(golden: dict[str, Words]) -> None:
    book, at = _book(), "text/layers/0/moe/"
    experts = "model.layers.0.mlp.experts."

    gate_up = _take(
        book, f"{at}routed_gate_up", f"{experts}gate_up_proj", golden["gate_up_bank"], 8
    )
    down = _take(book, f"{at}routed_down", f"{experts}down_proj", golden["down_bank"], 4)

    assert (gate_up == golden["gate_up_rows"]).all()
    assert (down == golden["down_rows"]).all()


def test_convolution_is_transposed_to_tap_major(golden: dict[str, Words]) -> None:
    recipe = _book().recipes["text/layers/0/gdn/convolution"]

    assert recipe == Transposed("model.layers.0.linear_attn.conv1d.weight", 256)
    assert (golden["conv_tap_major"] == golden["conv_source"].reshape(24, 4).T).all()


@pytest.mark.parametrize(
    ("model_id", "num_tensors", "num_draft_tensors"),
    [("qwen3.6-27b", 1199, 0), ("qwen3.6-35b-a3b", 1045, 69), ("qwen3.8-27b", 1199, 81)],
)
def test_published_checkpoints_have_the_counted_tensors(
    model_id: str, num_tensors: int, num_draft_tensors: int
) -> None:
    geometry = lookup(model_id).geometry
    assert geometry is not None

    book = checkpoint_recipes(geometry, "model.language_model.", frozenset())
    draft = RecipeBook() if geometry.draft is None else draft_recipes(geometry.draft, geometry)

    assert (len(book.sources), len(draft.sources)) == (num_tensors, num_draft_tensors)


def test_35b_sources_have_the_published_number_of_parameters() -> None:
    geometry = lookup("qwen3.6-35b-a3b").geometry
    assert geometry is not None

    book = checkpoint_recipes(geometry, "model.language_model.", frozenset())

    assert sum(math.prod(shape) for shape in book.sources.values()) == 35_951_822_704
