"""State of a training run on disk: written whole, then put in place.

Knows nothing of what it stores.
"""

import os
from pathlib import Path
from typing import Any, Final

import torch

FILE: Final = "training.pt"


def save(folder: Path, state: dict[str, Any]) -> None:
    """Replace the folder's checkpoint; a run that is killed leaves the old one or the new one."""
    partial = folder / f"{FILE}.partial"
    torch.save(state, partial)
    os.replace(partial, folder / FILE)


def load(folder: Path, device: torch.device) -> dict[str, Any] | None:
    """Return the folder's checkpoint, None when there is none."""
    path = folder / FILE
    if not path.exists():
        return None
    state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    return state
