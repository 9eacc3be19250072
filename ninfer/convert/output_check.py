"""Whether a conversion may put its artifact and report where it was told to.

Looks before anything is opened for writing, and never follows a wish to overwrite what is being
read. Knows nothing of what is written.
"""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from ninfer.convert.checkpoint import SourceCheckpoint
from ninfer.convert.plan import ConvertOptions
from ninfer.convert.report import report_path
from ninfer.errors import ConfigurationError


def check_output(options: ConvertOptions) -> tuple[str, ...]:
    """Check the places of artifact and report; a dry run is not refused what force would allow.

    Returns:
        Notes for the user.

    Raises:
        ConfigurationError: a place has no folder, is taken, or is not one for a regular file.
        OSError: a place cannot be looked at; its name may be too long.
    """
    output = options.output
    if not output.parent.is_dir():
        raise ConfigurationError(f"{output.parent} is not a folder", field="output")
    is_taken = _is_taken(output)
    _is_taken(report_path(output))
    if not is_taken or options.is_forced:
        return ()
    if options.is_dry_run:
        return (f"{output} exists: the conversion will be refused without --force",)
    raise ConfigurationError(f"{output} exists; --force replaces it", field="output")


def check_sources_kept(options: ConvertOptions, checkpoints: Iterable[SourceCheckpoint]) -> None:
    """Refuse to replace a file that the conversion reads, under whatever name or link.

    Raises:
        ConfigurationError: artifact or report would be such a file.
    """
    for place in (options.output, report_path(options.output)):
        try:
            status = place.stat()
        except FileNotFoundError:
            continue
        sources = [checkpoint.used_file(status) for checkpoint in checkpoints]
        if options.ranking is not None and os.path.samestat(status, options.ranking.stat()):
            sources.append(options.ranking)
        for source in sources:
            if source is not None:
                raise ConfigurationError(
                    f"{place} is the file {source} of the source; choose another output",
                    field="output",
                )


def _is_taken(place: Path) -> bool:
    """Whether something has this name; refuses what is neither a regular file nor a loose link."""
    try:
        place.lstat()
    except FileNotFoundError:
        return False
    try:
        mode = place.stat().st_mode
    except FileNotFoundError:
        return True  # A link to nothing: renaming replaces the link.
    if stat.S_ISDIR(mode):
        raise ConfigurationError(f"{place} is a folder", field="output")
    if not stat.S_ISREG(mode):
        raise ConfigurationError(f"{place} is not a regular file", field="output")
    return True
