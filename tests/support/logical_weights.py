"""Every object of an artifact before encoding, assembled by whole-array NumPy from a checkpoint.

An oracle for the converter, written from the source mapping (artifact contract, section 10) in the
other direction: whole arrays and reshapes, no row ranges.
"""

from typing import Any

import numpy as np

from tests.support.checkpoint_files import Tensors, Words

VOCAB_IDS = 512


def logical_objects(
    config: dict[str, Any], tensors: Tensors, draft: Tensors | None
) -> dict[str, Words]:
    """Assemble every parent of every profile."""
    text = config.get("text_config", config)
    source = _Source(tensors, "model.language_model." if "text_config" in config else "model.")
    embedding = source.get("embed_tokens.weight")
    result = {"text/token_embedding": embedding, "text/final_norm": source.get("norm.weight")}
    head = tensors.get("lm_head.weight", embedding)
    if "lm_head.weight" in tensors:
        result["text/output_head"] = head
    result["text/draft_head"] = Words(head.dtype, head.array[:VOCAB_IDS])
    for index, kind in enumerate(text["layer_types"]):
        layer = _Source(tensors, f"{source.prefix}layers.{index}.")
        to = f"text/layers/{index}/"
        if kind == "full_attention":
            result |= _attention(layer, text, to)
        else:
            result |= _gated_delta(layer, text, f"{to}gdn/")
        result |= _norms_and_ffn(layer, to)
    if "mtp.fc.weight" in tensors:
        result |= _mtp(tensors, text)
    if "vision_config" in config:
        result |= _vision(_Source(tensors, "model.visual."), config["vision_config"]["depth"])
    if draft is not None:
        result |= _draft(draft)
    return result


class _Source:
    def __init__(self, tensors: Tensors, prefix: str) -> None:
        self.tensors = tensors
        self.prefix = prefix

    def get(self, name: str) -> Words:
        return self.tensors[f"{self.prefix}{name}"]

    def has(self, name: str) -> bool:
        return f"{self.prefix}{name}" in self.tensors

    def stack(self, *names: str) -> Words:
        return _stack(*(self.get(name) for name in names))


def _stack(*parts: Words) -> Words:
    """Rows on top of one another; mixed types become binary32."""
    if len({part.dtype for part in parts}) == 1:
        return Words(parts[0].dtype, np.concatenate([part.array for part in parts]))
    return Words("F32", np.concatenate([part.f32() for part in parts]))


def _rows(words: Words, start: int, stop: int) -> Words:
    return Words(words.dtype, words.array[start:stop])


def _attention(layer: _Source, text: dict[str, Any], to: str) -> dict[str, Words]:
    heads, dim = text["num_attention_heads"], text["head_dim"]
    projection = layer.get("self_attn.q_proj.weight")
    by_head = projection.array.reshape(heads, 2, dim, -1)
    query = Words(projection.dtype, by_head[:, 0].reshape(heads * dim, -1))
    gate = Words(projection.dtype, by_head[:, 1].reshape(heads * dim, -1))
    key, value = layer.get("self_attn.k_proj.weight"), layer.get("self_attn.v_proj.weight")
    return {
        f"{to}attention/query_key": _stack(query, key),
        f"{to}attention/gate_value": _stack(gate, value),
        f"{to}attention/query_key_gate_value": _stack(query, key, gate, value),
        f"{to}attention/query_norm": layer.get("self_attn.q_norm.weight"),
        f"{to}attention/key_norm": layer.get("self_attn.k_norm.weight"),
        f"{to}attention/output": layer.get("self_attn.o_proj.weight"),
    }


def _gated_delta(layer: _Source, text: dict[str, Any], to: str) -> dict[str, Words]:
    keys = 2 * text["linear_num_key_heads"] * text["linear_key_head_dim"]
    mixed, z = (
        layer.get("linear_attn.in_proj_qkv.weight"),
        layer.get("linear_attn.in_proj_z.weight"),
    )
    query_key, value = _rows(mixed, 0, keys), _rows(mixed, keys, len(mixed.array))
    a, b = layer.get("linear_attn.in_proj_a.weight"), layer.get("linear_attn.in_proj_b.weight")
    convolution = layer.get("linear_attn.conv1d.weight")
    return {
        f"{to}a_log": layer.get("linear_attn.A_log"),
        f"{to}dt_bias": layer.get("linear_attn.dt_bias"),
        f"{to}convolution": Words(convolution.dtype, convolution.array[:, 0, :].T.copy()),
        f"{to}a_projection": a,
        f"{to}b_projection": b,
        f"{to}a_b_projection": _stack(a, b),
        f"{to}query_key": query_key,
        f"{to}value_z": _stack(value, z),
        f"{to}query_key_value_z": _stack(mixed, z),
        f"{to}norm": layer.get("linear_attn.norm.weight"),
        f"{to}output": layer.get("linear_attn.out_proj.weight"),
    }


def _norms_and_ffn(layer: _Source, to: str) -> dict[str, Words]:
    result = {
        f"{to}input_norm": layer.get("input_layernorm.weight"),
        f"{to}post_attention_norm": layer.get("post_attention_layernorm.weight"),
    }
    if not layer.has("mlp.gate.weight"):
        result[f"{to}mlp/gate_up"] = layer.stack("mlp.gate_proj.weight", "mlp.up_proj.weight")
        result[f"{to}mlp/down"] = layer.get("mlp.down_proj.weight")
        return result
    gate_up, down = layer.get("mlp.experts.gate_up_proj"), layer.get("mlp.experts.down_proj")
    shared = "mlp.shared_expert."
    return result | {
        f"{to}moe/router_shared_gate": layer.stack(
            "mlp.gate.weight", "mlp.shared_expert_gate.weight"
        ),
        f"{to}moe/routed_gate_up": _flat_bank(gate_up),
        f"{to}moe/routed_down": _flat_bank(down),
        f"{to}moe/shared_gate_up": layer.stack(
            f"{shared}gate_proj.weight", f"{shared}up_proj.weight"
        ),
        f"{to}moe/shared_down": layer.get(f"{shared}down_proj.weight"),
    }


def _flat_bank(bank: Words) -> Words:
    return Words(bank.dtype, bank.array.reshape(-1, bank.array.shape[-1]))


def _mtp(tensors: Tensors, text: dict[str, Any]) -> dict[str, Words]:
    layer = _Source(tensors, "mtp.layers.0.")
    return {
        "mtp/input_projection": tensors["mtp.fc.weight"],
        "mtp/embedding_norm": tensors["mtp.pre_fc_norm_embedding.weight"],
        "mtp/hidden_norm": tensors["mtp.pre_fc_norm_hidden.weight"],
        "mtp/final_norm": tensors["mtp.norm.weight"],
        **_attention(layer, text, "mtp/layer/"),
        **_norms_and_ffn(layer, "mtp/layer/"),
    }


def _vision(source: _Source, depth: int) -> dict[str, Words]:
    patch = source.get("patch_embed.proj.weight")
    result = {
        "vision/patch_embedding": Words(patch.dtype, patch.array.reshape(len(patch.array), -1)),
        "vision/patch_embedding_bias": source.get("patch_embed.proj.bias"),
        "vision/position_embedding": source.get("pos_embed.weight"),
    }
    names = {"vision/merger/": "merger."}
    linears = {"fc1": "linear_fc1", "fc2": "linear_fc2"}
    for block in range(depth):
        to, of = f"vision/layers/{block}/", f"blocks.{block}."
        for name, origin in (
            ("attention/qkv", "attn.qkv"),
            ("attention/output", "attn.proj"),
            ("mlp/fc1", "mlp.linear_fc1"),
            ("mlp/fc2", "mlp.linear_fc2"),
        ):
            result[f"{to}{name}"] = source.get(f"{of}{origin}.weight")
            result[f"{to}{name}_bias"] = source.get(f"{of}{origin}.bias")
        for norm in ("norm1", "norm2"):
            result[f"{to}{norm}/weight"] = source.get(f"{of}{norm}.weight")
            result[f"{to}{norm}/bias"] = source.get(f"{of}{norm}.bias")
    for to, of in names.items():
        for name, origin in linears.items():
            result[f"{to}{name}"] = source.get(f"{of}{origin}.weight")
            result[f"{to}{name}_bias"] = source.get(f"{of}{origin}.bias")
        result[f"{to}norm/weight"] = source.get(f"{of}norm.weight")
        result[f"{to}norm/bias"] = source.get(f"{of}norm.bias")
    return result


def _draft(tensors: Tensors) -> dict[str, Words]:
    selector = "candidate_selector."
    root = "dflash2/" if f"{selector}predecessor_codebook" in tensors else "dflash/"
    result = {
        f"{root}feature_projection": tensors["fc.weight"],
        f"{root}context_norm": tensors["hidden_norm.weight"],
        f"{root}final_norm": tensors["norm.weight"],
    }
    index = 0
    while f"layers.{index}.input_layernorm.weight" in tensors:
        layer, to = _Source(tensors, f"layers.{index}."), f"{root}layers/{index}/"
        result |= _norms_and_ffn(layer, to)
        result[f"{to}attention/query_key_value"] = layer.stack(
            *(f"self_attn.{name}_proj.weight" for name in "qkv")
        )
        result[f"{to}attention/query_norm"] = layer.get("self_attn.q_norm.weight")
        result[f"{to}attention/key_norm"] = layer.get("self_attn.k_norm.weight")
        result[f"{to}attention/output"] = layer.get("self_attn.o_proj.weight")
        for branch in ("attention_conv", "mlp_conv"):
            if layer.has(f"{branch}.base_kernel"):
                result[f"{to}{branch}/base_kernel"] = layer.get(f"{branch}.base_kernel")
                projection = layer.get(f"{branch}.kernel_projection.weight")
                result[f"{to}{branch}/kernel_projection"] = projection
        index += 1
    if root == "dflash2/":
        at = f"{root}candidate_selector/"
        result[f"{at}hidden_projection"] = tensors[f"{selector}hidden_projection.weight"]
        for name in ("predecessor_codebook", "successor_codebook"):
            result[f"{at}{name}"] = tensors[f"{selector}{name}"]
    return result
