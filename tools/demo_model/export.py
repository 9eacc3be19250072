"""Masters to the published checkpoint layout: safetensors, configs, tokenizer files.

The text checkpoint and the drafter each get a folder that the converter takes. Matrices are stored
in bf16; the two small float32 vectors of a gated delta layer stay float32. Knows no optimizer.
"""

import json
import shutil
from pathlib import Path
from typing import Any, Final

from safetensors.torch import save_file
from torch import Tensor

from tools.demo_model.geometry import DemoGeometry, draft_config, model_config

MODEL: Final = "model"
DRAFT: Final = "draft"
WEIGHTS: Final = "model.safetensors"
RESOURCES: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)
_PREFIXES: Final = {"trunk.": "model.", "mtp.": "mtp."}
_DRAFT_PREFIX: Final = "draft."


def export(
    folder: Path, geometry: DemoGeometry, masters: dict[str, Tensor], tokenizer: Path
) -> None:
    """Write ``folder/model`` and, when there are drafter weights, ``folder/draft``.

    Args:
        folder: made when missing.
        geometry: of everything.
        masters: by name, beginning with ``trunk.``, ``mtp.`` or ``draft.``.
        tokenizer: folder with the frontend's files; those that are missing are left out.
    """
    text, draft = {}, {}
    for name, master in masters.items():
        value = master.detach().cpu()
        value = value.float() if name.endswith(("A_log", "dt_bias")) else value.bfloat16()
        if name.startswith(_DRAFT_PREFIX):
            draft[name.removeprefix(_DRAFT_PREFIX)] = value.contiguous()
            continue
        prefix = next(prefix for prefix in _PREFIXES if name.startswith(prefix))
        text[_PREFIXES[prefix] + name.removeprefix(prefix)] = value.contiguous()
    config = model_config(geometry)
    if not any(name.startswith("mtp.") for name in text):
        config["mtp_num_hidden_layers"] = 0
    _write(folder / MODEL, config, text)
    for name in RESOURCES:
        if (tokenizer / name).is_file():
            shutil.copyfile(tokenizer / name, folder / MODEL / name)
    if draft:
        _write(folder / DRAFT, draft_config(geometry), draft)


def _write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(config, indent=2) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def tokenizer_size(tokenizer: Path) -> int:
    """Return one more than the largest id of a ``tokenizer.json``."""
    content = json.loads((tokenizer / "tokenizer.json").read_text(encoding="utf-8"))
    ids = [*content["model"]["vocab"].values(), *(t["id"] for t in content["added_tokens"])]
    return int(max(ids)) + 1
