"""A conversion that must fail, leaving nothing behind."""

from pathlib import Path

import pytest

from ninfer.convert.conversion import convert
from ninfer.convert.plan import ConvertOptions
from ninfer.errors import CheckpointError


def failing_conversion(
    source: Path,
    tmp_path: Path,
    *,
    draft: Path | None = None,
    profile: str = "groupwise-int",
    model_id: str | None = None,
) -> str:
    """Convert what must fail; return the message and check that nothing is left."""
    folder = tmp_path / "output"
    folder.mkdir()

    with pytest.raises(CheckpointError) as caught:
        convert(
            ConvertOptions(
                source=source,
                output=folder / "m.ninfer",
                draft=draft,
                profile=profile,
                model_id=model_id,
            )
        )

    assert list(folder.iterdir()) == []
    return str(caught.value)
