"""Typed views: which object plays which role, and where its product goes."""

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest

from ninfer.artifact.reader import ArtifactReader
from ninfer.models.qwen_hybrid.binding import BoundModel, bind
from ninfer.models.qwen_hybrid.inventory import ObjectGroup
from ninfer.models.qwen_hybrid.weights import (
    AttentionLayer,
    DenseFfn,
    GatedDeltaLayer,
    MoeFfn,
    TextWeights,
    kinds_of_layers,
    text_weights,
)
from ninfer.tensor import DType, Matrix, Tensor, TensorFormat
from tests.support.tiny_model import artifact_path

_DTYPES = {
    TensorFormat.BF16: DType.BF16,
    TensorFormat.FP32: DType.F32,
    TensorFormat.I32: DType.I32,
}


def _views(path: Path) -> tuple[BoundModel, TextWeights, dict[int, str]]:
    """Views over made-up addresses, and the object name behind each address."""
    with ArtifactReader.open(path) as reader:
        bound = bind(reader)
    matrices: dict[str, Matrix] = {}
    tensors: dict[str, Tensor] = {}
    names: dict[int, str] = {}
    for number, wanted in enumerate(bound.objects[ObjectGroup.TEXT]):
        assert wanted.format is not None
        address = (number + 1) << 32
        names[address] = wanted.name
        if wanted.is_matrix:
            rows, columns = wanted.shape
            storage = Tensor(address, DType.U8, (prod(wanted.shape) * 2,))
            matrices[wanted.name] = Matrix(wanted.format, storage, rows, columns, 0, rows)
        else:
            tensors[wanted.name] = Tensor(address, _DTYPES[wanted.format], wanted.shape)
    return bound, text_weights(bound, matrices, tensors), names


def _columns(projections: tuple[tuple[Matrix, int], ...], names: dict[int, str]) -> dict[str, int]:
    return {names[m.storage.address].rpartition("/")[2]: first for m, first in projections}


def _attention(weights: TextWeights) -> AttentionLayer:
    return next(layer for layer in weights.layers if isinstance(layer, AttentionLayer))


def _gated_delta(weights: TextWeights) -> GatedDeltaLayer:
    return next(layer for layer in weights.layers if isinstance(layer, GatedDeltaLayer))


def test_layers_alternate_as_the_geometry_says() -> None:
    _, weights, _ = _views(artifact_path("tiny-dense"))

    kinds = [type(layer) for layer in weights.layers]

    assert kinds == [GatedDeltaLayer, GatedDeltaLayer, GatedDeltaLayer, AttentionLayer] * 2


def test_tied_head_is_the_embedding() -> None:
    _, weights, _ = _views(artifact_path("tiny-dense"))

    assert weights.head is weights.embedding


def test_untied_head_is_its_own_matrix() -> None:
    _, weights, names = _views(artifact_path("tiny-moe"))

    assert names[weights.head.storage.address] == "text/output_head"
    assert names[weights.embedding.storage.address] == "text/token_embedding"


@pytest.mark.parametrize(
    ("profile", "attention", "mixer", "ab"),
    [
        (
            "groupwise-int",
            {"query_key": 0, "gate_value": 384},
            {"query_key": 0, "value_z": 128},
            {"a_projection": 0, "b_projection": 4},
        ),
        (
            "bf16",
            {"query_key_gate_value": 0},
            {"query_key_value_z": 0},
            {"a_b_projection": 0},
        ),
    ],
)
def test_projections_cover_their_columns(
    profile: str, attention: dict[str, int], mixer: dict[str, int], ab: dict[str, int]
) -> None:
    _, weights, names = _views(artifact_path("tiny-dense", profile))

    assert _columns(_attention(weights).projections, names) == attention
    assert _columns(_gated_delta(weights).projections, names) == mixer
    assert _columns(_gated_delta(weights).ab, names) == ab


@pytest.mark.parametrize("profile", ["bf16", "groupwise-int"])
@pytest.mark.parametrize("case", ["tiny-dense", "tiny-moe", "real-head-dense", "real-head-moe"])
def test_projected_widths_are_the_geometry_s(case: str, profile: str) -> None:
    bound, weights, _ = _views(artifact_path(case, profile))
    heads, mixer = bound.geometry.attention, bound.geometry.gated_delta

    attention = sum(matrix.num_rows for matrix, _ in _attention(weights).projections)
    delta = sum(matrix.num_rows for matrix, _ in _gated_delta(weights).projections)
    ab = sum(matrix.num_rows for matrix, _ in _gated_delta(weights).ab)

    assert attention == 2 * (heads.query_width + heads.kv_width)
    assert delta == mixer.conv_channels + mixer.value_width
    assert ab == 2 * mixer.num_value_heads


def test_every_text_object_is_used_once() -> None:
    _, weights, names = _views(artifact_path("tiny-moe"))

    used = [weights.embedding.storage.address, weights.final_norm.address]
    used.append(weights.head.storage.address)
    for layer in weights.layers:
        used += [layer.input_norm.address, layer.post_norm.address, layer.output.storage.address]
        used += [matrix.storage.address for matrix, _ in layer.projections]
        ffn = layer.ffn
        assert isinstance(ffn, MoeFfn)
        used += [
            matrix.storage.address
            for matrix in (
                ffn.router, ffn.routed_gate_up, ffn.routed_down, ffn.shared_gate_up, ffn.shared_down
            )
        ]  # fmt: skip
        if isinstance(layer, AttentionLayer):
            used += [layer.query_norm.address, layer.key_norm.address]
        else:
            mixer = layer.mixer
            used += [t.address for t in (mixer.convolution, mixer.a_log, mixer.dt_bias, mixer.norm)]
            used += [matrix.storage.address for matrix, _ in layer.ab]

    assert sorted(used) == sorted(names)


def test_dense_model_has_dense_layers() -> None:
    _, weights, names = _views(artifact_path("tiny-dense"))

    ffn = weights.layers[0].ffn

    assert isinstance(ffn, DenseFfn)
    assert names[ffn.gate_up.storage.address] == "text/layers/0/mlp/gate_up"
    assert names[ffn.down.storage.address] == "text/layers/0/mlp/down"


def test_layers_that_differ_in_addresses_are_of_one_kind() -> None:
    _, weights, _ = _views(artifact_path("tiny-dense", "bf16"))
    types = [type(layer) for layer in weights.layers]

    kinds = kinds_of_layers(weights)

    assert kinds == tuple(sorted({types.index(kind) for kind in types}))
    assert len(kinds) < len(types)


@pytest.mark.parametrize(
    "change",
    [
        {"format": TensorFormat.Q4},
        {"first_row": 8, "num_rows": 8},
        {"first_row": 0, "num_rows": 8},
        {"parent_rows": 1024},
    ],
)
def test_a_layer_with_another_view_of_a_matrix_is_of_another_kind(
    change: dict[str, Any],
) -> None:
    _, weights, _ = _views(artifact_path("tiny-dense", "bf16"))
    layer = _attention(weights)
    other = replace(layer, output=replace(layer.output, **change))

    kinds = kinds_of_layers(replace(weights, layers=(layer, layer, other, other)))

    assert kinds == (0, 2)


def test_views_from_different_rows_on_are_of_different_kinds() -> None:
    """A device may have another kernel where a view does not begin at a whole tile."""
    _, weights, _ = _views(artifact_path("tiny-dense", "bf16"))
    layer = _attention(weights)
    halves = [replace(layer, output=layer.output.rows(first, 16)) for first in (0, 16, 24)]

    kinds = kinds_of_layers(replace(weights, layers=tuple(halves)))

    assert kinds == (0, 1, 2)
