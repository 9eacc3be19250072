"""Converts a checkpoint: plan, then stream block by block into a file that appears when complete.

Worker threads read and encode; the calling thread writes in order, so a bounded number of blocks is
in memory and the output does not depend on the number of workers.
"""

import contextlib
import errno
import os
import shutil
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from ninfer.artifact.writer import ArtifactWriter
from ninfer.convert.assembly import Block, EncodedBlock, blocks, encode_block
from ninfer.convert.checkpoint import SourceCheckpoint
from ninfer.convert.output_check import check_output, check_sources_kept
from ninfer.convert.plan import ConversionPlan, ConvertOptions, make_plan
from ninfer.convert.progress import ConversionProgress, SilentProgress
from ninfer.convert.report import ConversionReport, describe, placed_report, report_path
from ninfer.termination import uninterrupted

# Finished or running blocks beyond the workers' own; enough to keep them busy while one is written.
_SPARE_BLOCKS: Final = 2
_DIRECTORY_BYTES: Final = 1 << 20


def convert(
    options: ConvertOptions, progress: ConversionProgress | None = None
) -> ConversionReport:
    """Convert a checkpoint, or only check it in a dry run.

    Either artifact and report exist afterwards, or nothing new does and an older artifact and
    report of those names are untouched.

    Args:
        options: what to convert.
        progress: told about the output; closed in any case.

    Raises:
        ConfigurationError: the output exists and may not be replaced, is a file of the source or
            no regular file, or cannot be placed.
        CheckpointError: the source is missing something, damaged, or of another kind.
        OSError: the file system refused.
    """
    started_s = time.monotonic()
    reporter = SilentProgress() if progress is None else progress
    with contextlib.closing(reporter):
        notes = check_output(options)
        with open_plan(options) as plan:
            check_sources_kept(options, plan.checkpoints)
            plan = replace(plan, notes=(*plan.notes, *notes))
            if options.is_dry_run:
                return describe(options, plan, 0, time.monotonic() - started_s)
            return _write(options, plan, reporter, started_s)


@contextlib.contextmanager
def open_plan(options: ConvertOptions) -> Iterator[ConversionPlan]:
    """Open the sources of a conversion and plan it; closes them at the end.

    Raises:
        CheckpointError: the source is not a complete checkpoint of a registered model.
        OSError: a file cannot be read.
    """
    with contextlib.ExitStack() as stack:
        checkpoint = stack.enter_context(SourceCheckpoint(options.source))
        draft = None
        if options.draft is not None:
            draft = stack.enter_context(SourceCheckpoint(options.draft))
        yield make_plan(options, checkpoint, draft)


def encoded_blocks(plan: ConversionPlan, num_workers: int) -> Generator[EncodedBlock, None, None]:
    """Make every block of a plan on worker threads, in the writer's order."""
    todo = (block for tensor in plan.tensors for block in blocks(tensor))
    pool = ThreadPoolExecutor(num_workers, thread_name_prefix="convert")
    try:
        yield from _in_order(pool, todo, num_workers + _SPARE_BLOCKS)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _in_order(
    pool: ThreadPoolExecutor, todo: Iterable[Block], window: int
) -> Iterator[EncodedBlock]:
    running: deque[Future[EncodedBlock]] = deque()
    for block in todo:
        running.append(pool.submit(encode_block, block))
        if len(running) >= window:
            yield running.popleft().result()
    while running:
        yield running.popleft().result()


def _write(
    options: ConvertOptions,
    plan: ConversionPlan,
    progress: ConversionProgress,
    started_s: float,
) -> ConversionReport:
    last = plan.descriptors[-1]
    needed = last.offset + last.nbytes + _DIRECTORY_BYTES
    free = shutil.disk_usage(options.output.parent).free
    if needed > free:
        raise OSError(
            errno.ENOSPC,
            f"{os.strerror(errno.ENOSPC)}: {needed} bytes are needed, {free} are free",
            str(options.output),
        )
    model_id, objects = plan.package.model_id, plan.descriptors
    with contextlib.ExitStack() as stack:
        writer = uninterrupted(
            lambda: stack.enter_context(
                ArtifactWriter(options.output, model_id, plan.weights_id, objects)
            )
        )
        progress.start(sum(found.nbytes for found in objects))
        for name, content in plan.resources.contents.items():
            writer.write(name, 0, content)
            progress.advance(len(content))
        with contextlib.closing(encoded_blocks(plan, options.num_workers)) as encoded:
            for block in encoded:
                for offset, part in block.parts:
                    writer.write(block.name, offset, part)
                progress.advance(block.nbytes)
        report = describe(options, plan, writer.file_bytes, time.monotonic() - started_s)
        uninterrupted(lambda: _place(writer, report, options))
        return report


def _place(writer: ArtifactWriter, report: ConversionReport, options: ConvertOptions) -> None:
    with placed_report(report, report_path(options.output)):
        writer.commit()
