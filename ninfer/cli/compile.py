"""``ninfer compile``: compile CUDA kernels into the cache, ahead of the first start.

Opens no device. The report says what each kernel costs; a kernel that spills or exceeds its
declared registers makes the command fail.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from ninfer.cli.console import Console
from ninfer.cli.exit_codes import ExitCode
from ninfer.cli.options import Repeated
from ninfer.errors import DeviceUnavailable

TARGETS = ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    models = parser.add_mutually_exclusive_group(required=True)
    models.add_argument(
        "--model-id", action=Repeated, metavar="ID", help="registered model; repeatable"
    )
    models.add_argument("--all", action="store_true", help="every registered model")
    targets = parser.add_mutually_exclusive_group()
    targets.add_argument(
        "--target",
        action=Repeated,
        choices=TARGETS,
        help="device generation; repeatable; default sm_90",
    )
    targets.add_argument("--every-target", action="store_true", help="all of them")
    parser.add_argument(
        "--one-geometry",
        action="store_true",
        help="for targets beside sm_90 only one kernel of each kind, the one with the most "
        "shared memory",
    )
    parser.add_argument("--report", metavar="FILE", help="write a JSON report")
    parser.add_argument("--output", metavar="DIR", help="folder instead of the user's cache")


def run(options: argparse.Namespace, console: Console) -> ExitCode:
    """Compile, print one line a kernel, and fail when one of them must not be shipped."""
    report_file = None if options.report is None else Path(options.report)
    if report_file is not None:
        report_file.open("a", encoding="utf-8").close()  # a place that refuses says so first
    try:
        from ninfer.compilation import compile_kernels  # loads the compiler, an optional extra
    except ImportError as error:
        raise DeviceUnavailable(
            f"no kernel compiler: {error}; pip install '.[cuda]' brings one"
        ) from error
    reports = compile_kernels(
        None if options.all else options.model_id,
        TARGETS if options.every_target else tuple(options.target or ("sm_90",)),
        only_one_geometry=options.one_geometry,
        folder=None if options.output is None else Path(options.output),
        progress=console.compiling,
    )
    if report_file is not None:
        document = {"kernels": [asdict(report) for report in reports]}
        report_file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for report in reports:
        print(
            f"{report.kernel:44} {report.target:7} {report.registers:4} registers "
            f"{report.spilled_bytes:5} B spilled {report.shared_bytes:7} B shared"
        )
    complaints = [text for report in reports for text in report.complaints]
    for text in complaints:
        console.note(f"error: {text}")
    return ExitCode.FAILED if complaints else ExitCode.DONE
