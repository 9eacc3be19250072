"""Typed views of the text model's weights, built once from names and never looked up again.

Knows the roles of the inventory's objects and the row order of their parents; knows neither where
the bytes lie nor in which format. Source: artifact contract, section 9.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final

from ninfer.models.package import DenseGeometry, Geometry, LayerKind, MoeGeometry
from ninfer.models.qwen_hybrid.binding import BoundModel
from ninfer.ops.gated_delta import GatedDeltaWeights
from ninfer.tensor import Matrix, Tensor

# A matrix and the first column its product goes to.
Projection = tuple[Matrix, int]

_EMBEDDING: Final = "text/token_embedding"
_HEAD: Final = "text/output_head"


@dataclass(frozen=True, slots=True)
class DenseFfn:
    """SwiGLU MLP: rows of ``gate_up`` are all gates, then all ups."""

    gate_up: Matrix
    down: Matrix


@dataclass(frozen=True, slots=True)
class MoeFfn:
    """Routed experts and the shared one.

    Attributes:
        router: [experts + 1, H]; the last row is the shared expert's gate.
        routed_gate_up: [experts * 2 * width, H], gate rows first inside each expert.
        routed_down: [experts * H, width].
        shared_gate_up, shared_down: the shared expert, as a dense MLP.
    """

    router: Matrix
    routed_gate_up: Matrix
    routed_down: Matrix
    shared_gate_up: Matrix
    shared_down: Matrix


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """Gated full attention.

    Attributes:
        input_norm: [H] bf16.
        projections: parts of the projected columns [query | key | gate | value].
        query_norm, key_norm: [head_dim] bf16.
        output: [H, Q].
        post_norm: [H] bf16.
        ffn: dense or experts.
    """

    input_norm: Tensor
    projections: tuple[Projection, ...]
    query_norm: Tensor
    key_norm: Tensor
    output: Matrix
    post_norm: Tensor
    ffn: DenseFfn | MoeFfn


@dataclass(frozen=True, slots=True)
class GatedDeltaLayer:
    """Gated DeltaNet.

    Attributes:
        input_norm: [H] bf16.
        projections: parts of the projected columns [query | key | value | z].
        ab: parts of the columns [a | b].
        mixer: convolution, decay and output norm.
        output: [H, VG].
        post_norm: [H] bf16.
        ffn: dense or experts.
    """

    input_norm: Tensor
    projections: tuple[Projection, ...]
    ab: tuple[Projection, ...]
    mixer: GatedDeltaWeights
    output: Matrix
    post_norm: Tensor
    ffn: DenseFfn | MoeFfn


@dataclass(frozen=True, slots=True)
class TextWeights:
    """All weights of the text model; ``head`` is ``embedding`` when the two are tied."""

    embedding: Matrix
    layers: tuple[AttentionLayer | GatedDeltaLayer, ...]
    final_norm: Tensor
    head: Matrix


def text_weights(
    bound: BoundModel, matrices: Mapping[str, Matrix], tensors: Mapping[str, Tensor]
) -> TextWeights:
    """Build the views of a bound artifact's text group.

    Args:
        bound: what the artifact holds.
        matrices: every matrix of the group by object name, BF16 ones included.
        tensors: every other tensor of the group by object name.
    """
    geometry = bound.geometry
    views = _Views(geometry, matrices, tensors)
    return TextWeights(
        embedding=matrices[_EMBEDDING],
        layers=tuple(
            views.layer(f"text/layers/{index}/", kind) for index, kind in enumerate(geometry.layers)
        ),
        final_norm=tensors["text/final_norm"],
        head=matrices[_EMBEDDING if geometry.is_tied else _HEAD],
    )


def kinds_of_layers(weights: TextWeights) -> tuple[int, ...]:
    """The first layer of each kind: layers of a kind differ in where they lie, and nothing else."""
    found: dict[object, int] = {}
    for index, layer in enumerate(weights.layers):
        found.setdefault(_without_addresses(layer), index)
    return tuple(found.values())


def _without_addresses(part: Any) -> object:
    """All that a layer is made of, formats, extents and first rows of views, but no address."""
    match part:
        case Tensor():
            return part.dtype, part.shape
        case tuple():
            return tuple(map(_without_addresses, part))
        case _ if is_dataclass(part):
            values = (getattr(part, field.name) for field in fields(part))
            return type(part), *map(_without_addresses, values)
        case _:
            return part


@dataclass(frozen=True, slots=True)
class _Views:
    """Looks names up under a layer's prefix."""

    geometry: Geometry
    matrices: Mapping[str, Matrix]
    tensors: Mapping[str, Tensor]

    def layer(self, prefix: str, kind: LayerKind) -> AttentionLayer | GatedDeltaLayer:
        match kind:
            case LayerKind.FULL_ATTENTION:
                return self._attention(prefix)
            case LayerKind.GATED_DELTA:
                return self._gated_delta(prefix)

    def _attention(self, prefix: str) -> AttentionLayer:
        heads = self.geometry.attention
        at = f"{prefix}attention/"
        return AttentionLayer(
            input_norm=self.tensors[f"{prefix}input_norm"],
            projections=self._parents(
                at,
                "query_key_gate_value",
                "query_key",
                "gate_value",
                heads.query_width + heads.kv_width,
            ),
            query_norm=self.tensors[f"{at}query_norm"],
            key_norm=self.tensors[f"{at}key_norm"],
            output=self.matrices[f"{at}output"],
            post_norm=self.tensors[f"{prefix}post_attention_norm"],
            ffn=self._ffn(prefix),
        )

    def _gated_delta(self, prefix: str) -> GatedDeltaLayer:
        mixer = self.geometry.gated_delta
        at = f"{prefix}gdn/"
        return GatedDeltaLayer(
            input_norm=self.tensors[f"{prefix}input_norm"],
            projections=self._parents(
                at, "query_key_value_z", "query_key", "value_z", 2 * mixer.key_width
            ),
            ab=self._parents(
                at, "a_b_projection", "a_projection", "b_projection", mixer.num_value_heads
            ),
            mixer=GatedDeltaWeights(
                convolution=self.tensors[f"{at}convolution"],
                a_log=self.tensors[f"{at}a_log"],
                dt_bias=self.tensors[f"{at}dt_bias"],
                norm=self.tensors[f"{at}norm"],
            ),
            output=self.matrices[f"{at}output"],
            post_norm=self.tensors[f"{prefix}post_attention_norm"],
            ffn=self._ffn(prefix),
        )

    def _parents(
        self, at: str, whole: str, first: str, second: str, second_column: int
    ) -> tuple[Projection, ...]:
        """The single parent of a projection, or its two halves."""
        if f"{at}{whole}" in self.matrices:
            return ((self.matrices[f"{at}{whole}"], 0),)
        return (
            (self.matrices[f"{at}{first}"], 0),
            (self.matrices[f"{at}{second}"], second_column),
        )

    def _ffn(self, prefix: str) -> DenseFfn | MoeFfn:
        matrices = self.matrices
        match self.geometry.mlp:
            case DenseGeometry():
                at = f"{prefix}mlp/"
                return DenseFfn(matrices[f"{at}gate_up"], matrices[f"{at}down"])
            case MoeGeometry():
                at = f"{prefix}moe/"
                return MoeFfn(
                    router=matrices[f"{at}router_shared_gate"],
                    routed_gate_up=matrices[f"{at}routed_gate_up"],
                    routed_down=matrices[f"{at}routed_down"],
                    shared_gate_up=matrices[f"{at}shared_gate_up"],
                    shared_down=matrices[f"{at}shared_down"],
                )
