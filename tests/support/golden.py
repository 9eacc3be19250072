"""Where the golden fixtures lie, and how to read them."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import safe_open

GOLDEN = Path(__file__).resolve().parent.parent / "golden"


def load(case: str, file: str = "text.safetensors") -> dict[str, npt.NDArray[Any]]:
    """Read every NumPy-representable tensor of a golden file (bf16 tensors are left out)."""
    with safe_open(GOLDEN / case / file, framework="numpy") as tensors:
        return {
            name: np.asarray(tensors.get_tensor(name))
            for name in tensors.keys()  # noqa: SIM118 - not a mapping
            if tensors.get_slice(name).get_dtype() != "BF16"
        }
