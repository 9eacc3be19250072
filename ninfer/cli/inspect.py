"""``ninfer inspect``: identity, sizes and objects of an artifact. Opens no device."""

import argparse
import json

from ninfer.artifact.format import TensorDescriptor
from ninfer.cli.console import Console
from ninfer.cli.exit_codes import ExitCode
from ninfer.cli.model_argument import add_model_argument, settle_model
from ninfer.cli.report_format import add_format_option
from ninfer.errors import CheckpointError, NinferError
from ninfer.inspection import ArtifactReport, describe, file_digest, open_frontend


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_model_argument(parser)
    parser.add_argument("--tensors", action="store_true", help="list every object")
    parser.add_argument(
        "--check",
        action="store_true",
        help="read the whole file, digest it and give a verdict; changed weights show only in the "
        "digest",
    )
    add_format_option(parser)


def run(options: argparse.Namespace, console: Console) -> ExitCode:
    """Print what the file says about itself; an unknown model is no error."""
    settle_model(options, console)
    report = describe(options.model)
    digest = None
    if options.check:
        digest = file_digest(
            options.model, lambda done, total: console.progress("digest", done, total)
        )
    if options.format == "json":
        document = report.directory()
        if digest is not None:
            document |= {"sha256": digest, "verdict": _verdict(report)}
        print(json.dumps(document, ensure_ascii=False, indent=1))
    else:
        _print_text(report, digest, has_tensors=options.tensors)
    return ExitCode.DONE


def _print_text(report: ArtifactReport, digest: str | None, *, has_tensors: bool) -> None:
    rows = [
        ("file", str(report.path)),
        ("version", str(report.version)),
        ("model", report.model_id),
        ("weights", report.weights_id or "(version 1 names none)"),
        ("size", f"{report.file_bytes:,} bytes, payload from {report.payload_start:,}"),
        ("objects", str(len(report.objects))),
        *(("", f"{count:6} {name}") for name, count in sorted(report.format_counts().items())),
        *((name.replace("_", " "), _shown(value)) for name, value in report.capabilities.items()),
    ]
    if report.model_error is not None:
        rows.append(("cannot run", str(report.model_error)))
    if digest is not None:
        rows += [("sha256", digest), ("verdict", _verdict(report))]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:{width}}  {value}")
    if has_tensors:
        print()
        for item in report.objects:
            kind = "resource"
            if isinstance(item, TensorDescriptor):
                kind = f"{item.format.value} [{','.join(map(str, item.shape))}]"
            print(f"{item.name}  {kind}  {item.nbytes:,} bytes at {item.offset:,}")


def _verdict(report: ArtifactReport) -> str:
    """What a whole file that was read to its end is good for; a damaged one ended in an error."""
    reason: NinferError | None = report.model_error
    if reason is None:
        try:
            open_frontend(report.path)
        except CheckpointError as error:
            reason = error
    if reason is None:
        verdict = "complete, and this build can run it"
    else:
        verdict = f"a valid artifact, but this build cannot run it: {reason}"
    if report.unused_bytes:
        verdict += f"; {report.unused_bytes:,} bytes behind its last object are none of it"
    return verdict


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
