"""The converter's command: arguments and exit codes, for both of its doors.

Standard output stays empty except for the plan of a dry run; all else goes to standard error.
"""

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Final

from ninfer.artifact.format import ArtifactError
from ninfer.convert.conversion import convert
from ninfer.convert.plan import ConvertOptions
from ninfer.convert.progress import choose_progress
from ninfer.convert.report import ConversionReport
from ninfer.convert.verify import verify
from ninfer.errors import CheckpointError, ConfigurationError
from ninfer.models.package import GROUPWISE_INT, WEIGHTS_IDS
from ninfer.models.registry import model_ids
from ninfer.termination import ending_signal

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
INVALID: Final = 3

_MAX_DEFAULT_WORKERS: Final = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of a conversion."""
    parser.add_argument("source", metavar="SRC", type=Path, help="folder of the checkpoint")
    parser.add_argument("output", metavar="DST", type=Path, help="artifact to write")
    parser.add_argument(
        "--profile",
        choices=sorted(WEIGHTS_IDS),
        default=GROUPWISE_INT,
        help="storage profile (default: %(default)s)",
    )
    parser.add_argument(
        "--model-id",
        choices=model_ids(),
        metavar="ID",
        help="identity of the model (default: recognised from the config): %(choices)s",
    )
    parser.add_argument("--draft", type=Path, metavar="DIR", help="DFlash or DFlash2 checkpoint")
    parser.add_argument(
        "--ranking", type=Path, metavar="FILE", help="token counts for the short proposal head"
    )
    parser.add_argument("--dry-run", action="store_true", help="check everything, write nothing")
    parser.add_argument(
        "--workers",
        type=int,
        default=min(os.cpu_count() or 1, _MAX_DEFAULT_WORKERS),
        metavar="N",
        help="threads that read and encode (default: the number of processors, at most 8)",
    )
    parser.add_argument("--force", action="store_true", help="replace an existing artifact")
    parser.add_argument(
        "--strict-resources",
        action="store_true",
        help="refuse tokenizer and template files that are not the published ones",
    )
    parser.add_argument(
        "--verify", action="store_true", help="read the artifact back and compare every byte"
    )


def run(namespace: argparse.Namespace) -> int:
    """Convert as the parsed arguments say.

    Returns:
        0 done, 1 input or output failed, 2 wrong usage, 3 the checkpoint cannot be converted.

    Raises:
        BaseException: whatever a signal was turned into.
    """
    try:
        return _run(namespace)
    except (ConfigurationError, CheckpointError, ArtifactError, OSError) as error:
        if ending_signal(error) is not None:
            raise  # It only replaced the signal's exception; the door knows that code.
        return _end(_code_of(error), error)


def _run(namespace: argparse.Namespace) -> int:
    options = ConvertOptions(
        source=namespace.source,
        output=namespace.output,
        profile=namespace.profile,
        model_id=namespace.model_id,
        draft=namespace.draft,
        ranking=namespace.ranking,
        is_dry_run=namespace.dry_run,
        num_workers=namespace.workers,
        is_forced=namespace.force,
        has_strict_resources=namespace.strict_resources,
    )
    if options.ranking is not None and not options.ranking.is_file():
        raise ConfigurationError(f"{options.ranking} is not a file", field="ranking")
    is_quiet = bool(getattr(namespace, "no_progress", False))
    has_color = not getattr(namespace, "no_color", False)
    report = convert(options, choose_progress(sys.stderr, is_off=is_quiet, has_color=has_color))
    for note in report.notes:
        _say(f"note: {note}")
    if options.is_dry_run:
        sys.stdout.write(json.dumps(asdict(report), indent=2) + "\n")
        return DONE
    _say(_summary(report))
    if namespace.verify:
        compared = verify(options, options.output)
        _say(f"verified {compared} bytes against the source")
    return DONE


def _summary(report: ConversionReport) -> str:
    rate = report.file_bytes / max(report.elapsed_s, 1e-3) / 1e6
    return (
        f"{report.output}: {report.model_id} {report.weights_id}, {report.num_tensors} tensors and"
        f" {report.num_resources} resources, {report.file_bytes} bytes in {report.elapsed_s:.1f} s"
        f" ({rate:.1f} MB/s)"
    )


def _code_of(error: Exception) -> int:
    match error:
        case ConfigurationError():
            return USAGE
        case CheckpointError() | ArtifactError():
            return INVALID
        case _:
            return FAILED


def _end(code: int, error: Exception) -> int:
    _say(f"error: {error}")
    return code


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
