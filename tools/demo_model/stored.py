"""Torch models in float32 of what was stored: an artifact, or the folder an export wrote.

What comes from an artifact are the decoded values of the file, so that a figure measured on them is
a figure of what ships. Knows no training.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file
from torch import Tensor

from tools.demo_model.artifact_weights import PREFIX, read_model
from tools.demo_model.dflash import Drafter
from tools.demo_model.export import DRAFT, MODEL, WEIGHTS
from tools.demo_model.geometry import DemoGeometry, from_configs
from tools.demo_model.model import Trunk
from tools.demo_model.mtp import MtpHead

_MTP: Final = "mtp."


@dataclass(frozen=True, slots=True)
class StoredModels:
    """Trunk and companions; a companion that was not stored is None.

    Attributes:
        config: of the text model, as it is stored.
        text: weights of text model and MTP head by their checkpoint names.
    """

    config: dict[str, Any]
    geometry: DemoGeometry
    text: dict[str, Tensor]
    trunk: Trunk
    mtp: MtpHead | None
    draft: Drafter | None


def load(path: Path, device: torch.device) -> StoredModels:
    """Read an artifact (a file) or an export (a folder).

    Raises:
        ArtifactError: the file is damaged.
        OSError: something cannot be read.
    """
    config, draft_config, text, draft = _folder(path) if path.is_dir() else _artifact(path)
    geometry = from_configs(config, draft_config)
    trunk, mtp, drafter = Trunk(geometry), None, None
    trunk.load_state_dict(_behind(PREFIX, text))
    if head := _behind(_MTP, text):
        mtp = MtpHead(geometry)
        mtp.load_state_dict(head)
    if draft_config is not None:
        drafter = Drafter(geometry)
        drafter.load_state_dict(draft)
    for module in (trunk, mtp, drafter):
        if module is not None:
            module.to(device).eval().requires_grad_(False)
    return StoredModels(config, geometry, text, trunk, mtp, drafter)


def _behind(prefix: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): value for n, value in weights.items() if n.startswith(prefix)}


_Parts = tuple[dict[str, Any], dict[str, Any] | None, dict[str, Tensor], dict[str, Tensor]]


def _artifact(path: Path) -> _Parts:
    found = read_model(path)
    text, draft = (
        {name: torch.from_numpy(value) for name, value in weights.items()}
        for weights in (found.text, found.draft)
    )
    return found.config, found.draft_config, text, draft


def _folder(path: Path) -> _Parts:
    def read(part: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
        config = json.loads((path / part / "config.json").read_text(encoding="utf-8"))
        weights = load_file(path / part / WEIGHTS)
        return config, {name: value.float() for name, value in weights.items()}

    config, text = read(MODEL)
    if not (path / DRAFT).is_dir():
        return config, None, text, {}
    draft_config, draft = read(DRAFT)
    return config, draft_config, text, draft
