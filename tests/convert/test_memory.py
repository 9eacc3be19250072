"""Memory of a conversion is bounded by blocks, not by the checkpoint."""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer.convert.recipe import checkpoint_recipes
from ninfer.models.qwen_hybrid.geometry import geometry_from_config
from tests.support.golden import GOLDEN

CHECKPOINT_BYTES = 2_000_000_000
RESIDENT_LIMIT_BYTES = 700_000_000
REPOSITORY = Path(__file__).resolve().parent.parent.parent
_CHUNK_WORDS = 1 << 22

_MEASURED_CONVERSION = """
import sys
from tools.convert.__main__ import main

code = main(sys.argv[1:])
with open("/proc/self/status") as status:
    peak = next(line.split()[1] for line in status if line.startswith("VmHWM"))
sys.stdout.write(f"{code} {int(peak) * 1024}")
"""


def _config() -> dict[str, Any]:
    """Fused expert banks of 134 MB each and a wide vocabulary: matrices far beyond one block."""
    path = GOLDEN / "tiny-moe" / "checkpoint" / "config.json"
    config: dict[str, Any] = json.loads(path.read_bytes())
    config["text_config"] |= {
        "vocab_size": 160_000,
        "hidden_size": 1024,
        "num_hidden_layers": 6,
        "layer_types": ["linear_attention", "full_attention"] * 3,
        "num_experts": 64,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    }
    return config


def _write_checkpoint(folder: Path) -> int:
    """Write a checkpoint of random words without holding it; return its size."""
    shutil.copytree(GOLDEN / "tiny-moe" / "checkpoint", folder)
    config = _config()
    (folder / "config.json").write_text(json.dumps(config))
    geometry = geometry_from_config(config)
    sources = checkpoint_recipes(geometry, "model.language_model.", frozenset()).sources
    header, cursor = {}, 0
    for name, shape in sources.items():
        stop = cursor + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [cursor, stop]}
        cursor = stop
    text = json.dumps(header).encode()
    rng = np.random.default_rng(11)
    values = rng.standard_normal(_CHUNK_WORDS, np.float32)
    chunk = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for start in range(0, cursor, len(chunk)):
            stream.write(chunk[: cursor - start])
    return cursor


@pytest.mark.slow
def test_two_gigabytes_convert_in_little_memory(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    checkpoint_bytes = _write_checkpoint(folder)
    output = tmp_path / "m.ninfer"
    arguments = [str(folder), str(output), "--model-id", "tiny-moe"]

    ended = subprocess.run(
        [sys.executable, "-c", _MEASURED_CONVERSION, *arguments],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        check=True,
        timeout=900,
    )

    code, resident_bytes = map(int, ended.stdout.split())
    output_bytes = output.stat().st_size
    shutil.rmtree(folder)
    output.unlink()
    assert code == 0
    assert checkpoint_bytes > CHECKPOINT_BYTES
    assert output_bytes > checkpoint_bytes // 5
    assert resident_bytes < RESIDENT_LIMIT_BYTES
