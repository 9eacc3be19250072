"""An artifact's weights as the float64 oracle takes them: decoded, and cut along the inventory."""

from collections.abc import Mapping

import numpy as np

from ninfer.artifact.reader import ArtifactReader
from ninfer.models.package import LayerKind, MoeGeometry
from ninfer.models.qwen_hybrid.binding import BoundModel
from ninfer.models.qwen_hybrid.inventory import ObjectGroup
from ninfer.tensor import TensorFormat
from ninfer.tensor_formats import bf16_to_f32, decode_matrix
from tests.support.oracles.model import F64, OracleWeights


def oracle_weights(bound: BoundModel, reader: ArtifactReader) -> OracleWeights:
    """Decode every object of the text group to float64 and split the parents by row."""
    objects = {
        stored.name: _decode(reader, stored.name, stored.format, stored.shape)
        for stored in bound.objects[ObjectGroup.TEXT]
    }
    embedding = objects["text/token_embedding"]
    layers = [
        _layer(bound, objects, f"text/layers/{index}/", kind)
        for index, kind in enumerate(bound.geometry.layers)
    ]
    head = objects.get("text/output_head", embedding)
    return OracleWeights(embedding, layers, objects["text/final_norm"], head)


def _decode(
    reader: ArtifactReader, name: str, stored: TensorFormat | None, shape: tuple[int, ...]
) -> F64:
    raw = reader.view(name)
    match stored:
        case TensorFormat.BF16:
            return bf16_to_f32(raw.view(np.uint16)).astype(np.float64).reshape(shape)
        case TensorFormat.FP32:
            return raw.view(np.float32).astype(np.float64).reshape(shape)
        case TensorFormat.Q4 | TensorFormat.Q5 | TensorFormat.Q6 | TensorFormat.W8:
            return np.asarray(decode_matrix(stored, raw, *shape), np.float64)
        case _:
            raise AssertionError(f"{name}: {stored}")


def _layer(
    bound: BoundModel, objects: Mapping[str, F64], at: str, kind: LayerKind
) -> dict[str, F64]:
    layer = {
        "input_norm": objects[f"{at}input_norm"],
        "post_norm": objects[f"{at}post_attention_norm"],
    }
    heads, delta = bound.geometry.attention, bound.geometry.gated_delta
    if kind is LayerKind.FULL_ATTENTION:
        widths = (heads.query_width, heads.kv_width, heads.query_width, heads.kv_width)
        names, own = ("q", "k", "out_gate", "v"), f"{at}attention/"
        parents = ("query_key", "gate_value")
        layer |= {"q_norm": objects[f"{own}query_norm"], "k_norm": objects[f"{own}key_norm"]}
    else:
        widths = (delta.key_width, delta.key_width, delta.value_width, delta.value_width)
        names, own = ("q", "k", "v", "z"), f"{at}gdn/"
        parents = ("query_key", "value_z")
        layer |= {name: objects[f"{own}{name}"] for name in ("a_log", "dt_bias", "norm")}
        layer["conv"] = objects[f"{own}convolution"]
        gates = _joined(objects, own, ("a_projection", "b_projection"), "a_b_projection")
        layer["a"], layer["b"] = np.split(gates, 2)
    rows = _joined(objects, own, parents, "_".join(parents))
    layer |= dict(zip(names, np.split(rows, np.cumsum(widths)[:-1]), strict=True))
    layer["o"] = objects[f"{own}output"]
    return layer | _ffn(bound, objects, at)


def _joined(objects: Mapping[str, F64], at: str, halves: tuple[str, str], whole: str) -> F64:
    if f"{at}{whole}" in objects:
        return objects[f"{at}{whole}"]
    return np.concatenate([objects[f"{at}{half}"] for half in halves])


def _ffn(bound: BoundModel, objects: Mapping[str, F64], at: str) -> dict[str, F64]:
    mlp = bound.geometry.mlp
    if not isinstance(mlp, MoeGeometry):
        gate, up = np.split(objects[f"{at}mlp/gate_up"], 2)
        return {"gate": gate, "up": up, "down": objects[f"{at}mlp/down"]}
    gate_up = objects[f"{at}moe/routed_gate_up"].reshape(mlp.num_experts, 2, mlp.expert_width, -1)
    shared_gate, shared_up = np.split(objects[f"{at}moe/shared_gate_up"], 2)
    return {
        "router": objects[f"{at}moe/router_shared_gate"],
        "expert_gate": gate_up[:, 0],
        "expert_up": gate_up[:, 1],
        "expert_down": objects[f"{at}moe/routed_down"].reshape(
            mlp.num_experts, -1, mlp.expert_width
        ),
        "shared_gate": shared_gate,
        "shared_up": shared_up,
        "shared_down": objects[f"{at}moe/shared_down"],
    }
