"""A stand-in for the shipped demo model: its identity and tokenizer, random small weights."""

import atexit
import functools
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ninfer.convert.conversion import convert
from ninfer.convert.plan import ConvertOptions
from tests.support.checkpoint_files import Words, write_tensors
from tools.demo_model.data.encoding import TOKENIZER_FOLDER
from tools.demo_model.geometry import LINEAR, DemoGeometry, model_config, small


@functools.cache
def stand_in_demo() -> Path:
    """Artifact ``demo.ninfer`` with random weights, in a folder of its own; do not write to it."""
    folder = Path(tempfile.mkdtemp(prefix="ninfer-demo-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    output = folder / "artifact" / "demo.ninfer"
    output.parent.mkdir()
    source = write_checkpoint(folder / "checkpoint", small(8177))
    convert(ConvertOptions(source=source, output=output, model_id="demo"))
    return output


def write_checkpoint(folder: Path, geometry: DemoGeometry) -> Path:
    """Write a checkpoint folder of random weights, without companions; return it."""
    shutil.copytree(TOKENIZER_FOLDER, folder)
    config = model_config(geometry) | {"mtp_num_hidden_layers": 0}
    (folder / "config.json").write_text(json.dumps(config))
    write_tensors(folder / "model.safetensors", _tensors(geometry))
    return folder


def _tensors(geometry: DemoGeometry) -> dict[str, Words]:
    rng = np.random.default_rng(0)

    def matrix(*shape: int) -> Words:
        return _words(rng.standard_normal(shape) * shape[-1] ** -0.5)

    def vector(width: int) -> Words:
        return _words(0.1 * rng.standard_normal(width))

    hidden, inner = geometry.hidden, geometry.intermediate
    found = {
        "model.embed_tokens.weight": matrix(geometry.vocab_rows, hidden),
        "model.norm.weight": vector(hidden),
    }
    queries = geometry.num_heads * geometry.head_dim
    keys = geometry.num_kv_heads * geometry.head_dim
    channels, values = geometry.conv_channels, geometry.value_width
    for index, kind in enumerate(geometry.layer_types):
        layer: dict[str, Words] = {
            "input_layernorm.weight": vector(hidden),
            "post_attention_layernorm.weight": vector(hidden),
            "mlp.gate_proj.weight": matrix(inner, hidden),
            "mlp.up_proj.weight": matrix(inner, hidden),
            "mlp.down_proj.weight": matrix(hidden, inner),
        }
        if kind == LINEAR:
            layer |= {
                "linear_attn.in_proj_qkv.weight": matrix(channels, hidden),
                "linear_attn.in_proj_z.weight": matrix(values, hidden),
                "linear_attn.in_proj_a.weight": matrix(geometry.num_value_heads, hidden),
                "linear_attn.in_proj_b.weight": matrix(geometry.num_value_heads, hidden),
                "linear_attn.conv1d.weight": matrix(channels, 1, 4),
                "linear_attn.A_log": vector(geometry.num_value_heads),
                "linear_attn.dt_bias": vector(geometry.num_value_heads),
                "linear_attn.norm.weight": vector(geometry.delta_dim),
                "linear_attn.out_proj.weight": matrix(hidden, values),
            }
        else:
            layer |= {
                "self_attn.q_proj.weight": matrix(2 * queries, hidden),
                "self_attn.k_proj.weight": matrix(keys, hidden),
                "self_attn.v_proj.weight": matrix(keys, hidden),
                "self_attn.o_proj.weight": matrix(hidden, queries),
                "self_attn.q_norm.weight": vector(geometry.head_dim),
                "self_attn.k_norm.weight": vector(geometry.head_dim),
            }
        found |= {f"model.layers.{index}.{name}": words for name, words in layer.items()}
    return found


def _words(values: np.ndarray[Any, np.dtype[np.float64]]) -> Words:
    bits = values.astype("<f4").view(np.uint32)
    return Words("BF16", (bits >> 16).astype("<u2"))
