"""Small artifacts of the real family, converted once in a test run from the golden checkpoints."""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

from ninfer.convert.conversion import convert
from ninfer.convert.plan import ConvertOptions
from tests.support.golden import GOLDEN


def artifact_path(case: str, profile: str = "groupwise-int", *, has_draft: bool = True) -> Path:
    """Convert a golden checkpoint and return its artifact; do not write to it.

    Args:
        case: folder under the goldens, such as ``tiny-dense``.
        profile: ``groupwise-int`` or ``bf16``.
        has_draft: include the case's DFlash or DFlash2 companion, if it has one.
    """
    return _converted(case, profile, has_draft)


def draft_folder(case: str) -> Path | None:
    """The case's companion checkpoint."""
    return next((path for path in (GOLDEN / case).glob("dflash*") if path.is_dir()), None)


@functools.cache
def _converted(case: str, profile: str, has_draft: bool) -> Path:
    draft = draft_folder(case) if has_draft else None
    suffix = "" if has_draft else "-plain"
    output = _folder() / f"{case}-{profile}{suffix}.ninfer"
    convert(
        ConvertOptions(
            source=GOLDEN / case / "checkpoint", output=output, profile=profile, draft=draft
        )
    )
    return output


@functools.cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="ninfer-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
