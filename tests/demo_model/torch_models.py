"""The demo model's torch code over golden checkpoints; needs torch."""

import json
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.support.golden import GOLDEN
from tools.demo_model.dflash import Drafter
from tools.demo_model.geometry import from_configs
from tools.demo_model.model import Trunk
from tools.demo_model.mtp import MtpHead

_PREFIX = "model.language_model."


class HeadedTrunk(Trunk):
    """A trunk whose head need not be its embedding."""

    def logits(self, hidden: Tensor) -> Tensor:
        return torch.nn.functional.linear(hidden, self.head)


def golden_models(case: str) -> tuple[HeadedTrunk, MtpHead, Drafter]:
    """Trunk, MTP head and DFlash2 drafter of a golden case, in float32."""
    config = _config(case, "checkpoint")["text_config"]
    geometry = from_configs(config, _config(case, "dflash2"))
    weights = _weights(case, "checkpoint")
    trunk, mtp, draft = HeadedTrunk(geometry), MtpHead(geometry), Drafter(geometry)
    trunk.load_state_dict(_behind(_PREFIX, weights))
    mtp.load_state_dict(_behind("mtp.", weights))
    draft.load_state_dict(_weights(case, "dflash2"))
    trunk.head = weights.get("lm_head.weight", trunk.embed_tokens.weight)
    for module in (trunk, mtp, draft):
        module.requires_grad_(False)
    return trunk, mtp, draft


def _config(case: str, folder: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((GOLDEN / case / folder / "config.json").read_text())
    return values


def _weights(case: str, folder: str) -> dict[str, Tensor]:
    found = load_file(GOLDEN / case / folder / "model.safetensors")
    return {name: value.float() for name, value in found.items()}


def _behind(prefix: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): value for n, value in weights.items() if n.startswith(prefix)}
