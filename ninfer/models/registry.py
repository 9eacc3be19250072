"""The closed list of model packages, found by the identity an artifact carries.

Knows which packages exist, nothing about their graphs; a checkpoint, which carries no identity, is
recognised by ``qwen_hybrid.recognition``.
"""

from typing import Final

from ninfer.models.package import ModelPackage
from ninfer.models.packages import (
    demo,
    qwen3_5_small,
    qwen3_6_27b,
    qwen3_6_35b_a3b,
    qwen3_8_27b,
    tiny,
)

PACKAGES: Final = (
    qwen3_6_27b.PACKAGE,
    qwen3_6_35b_a3b.PACKAGE,
    qwen3_8_27b.PACKAGE,
    qwen3_5_small.QWEN3_5_0_8B,
    qwen3_5_small.QWEN3_5_2B,
    qwen3_5_small.QWEN3_5_4B,
    qwen3_5_small.QWEN3_5_9B,
    demo.PACKAGE,
    tiny.TINY_DENSE,
    tiny.TINY_MOE,
)


def lookup(model_id: str) -> ModelPackage:
    """Find the package of an identity.

    Raises:
        KeyError: no such package.
    """
    for package in PACKAGES:
        if package.model_id == model_id:
            return package
    raise KeyError(model_id)


def model_ids() -> tuple[str, ...]:
    """Every registered identity, in registry order."""
    return tuple(package.model_id for package in PACKAGES)
