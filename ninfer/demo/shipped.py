"""Where the demo model of this installation is.

The artifact is package data: an installed copy and a checkout find it in the same way. Knows
nothing about what it holds. Source: `docs/model-card-demo.md`.
"""

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from ninfer.errors import DemoModelMissing

ARTIFACT_NAME: Final = "demo.ninfer"


def shipped_model(folder: Traversable | None = None) -> Path:
    """Find the artifact of the demo model.

    Args:
        folder: where it should lie; None is this package.

    Raises:
        DemoModelMissing: this installation has none.
    """
    place = (resources.files("ninfer.demo") if folder is None else folder) / ARTIFACT_NAME
    # Weights are mapped, so only a real file will do; one inside an archive is as good as missing.
    if not isinstance(place, Path) or not place.is_file():
        raise DemoModelMissing(
            f"no MODEL was given, and this installation has no demo model ({place}); "
            "name an artifact, made by ninfer convert",
            field="model",
        )
    return place
