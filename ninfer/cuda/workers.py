"""Several processes that compile kernels, each the next one that nobody has begun.

A kernel's targets stay together, because most of the work is the same for all of them, and every
other process begins at the end, so that kernels of a family, which call the same functions, meet in
few processes. They are forked, so that kernels, which are functions, need no way to another one;
where there is no fork, or one processor, the caller compiles. Knows no kernel.
"""

import contextlib
import gc
import itertools
import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Final

from ninfer.cuda.kernel_source import Kernel
from ninfer.cuda.module import Figures, KernelCache
from ninfer.errors import InvariantError, NinferError

Progress = Callable[[int, int], None]
"""Told (kernels done, kernels in all)."""

Job = tuple[Kernel, str]
"""A kernel and its target."""

_COLLECTED_AFTER: Final = 16  # kernels, of some ten MB each
_Result = tuple[int, Figures | NinferError]
_Results = Generator[_Result, None, None]


def compile_together(
    cache: KernelCache,
    jobs: Sequence[Job],
    num_workers: int | None = None,
    progress: Progress | None = None,
) -> list[Figures]:
    """Bring kernels into a cache; returns figures in the order of the jobs.

    Args:
        cache: where they go.
        jobs: kernels and targets.
        num_workers: processes; as many as there are processors when None.
        progress: told after each kernel.

    Raises:
        InvariantError: a kernel does not compile, or a process has died.
        DeviceUnavailable: the compiler does not load.
    """
    groups: dict[int, list[int]] = {}
    for index, (kernel, _) in enumerate(jobs):
        groups.setdefault(id(kernel), []).append(index)
    order = list(groups.values())
    count = min(num_workers or len(os.sched_getaffinity(0)), len(order))
    can_fork = "fork" in multiprocessing.get_all_start_methods()
    results = _here(cache, jobs, order)
    if count > 1 and can_fork:
        results = _forked(cache, jobs, order, count)
    found: dict[int, Figures] = {}
    with contextlib.closing(results):
        for index, result in results:
            if isinstance(result, NinferError):
                raise result
            found[index] = result
            if progress is not None:
                progress(len(found), len(jobs))
    if len(found) < len(jobs):
        raise InvariantError("a process that compiles kernels has died")
    return [found[index] for index in range(len(jobs))]


def _here(cache: KernelCache, jobs: Sequence[Job], order: list[list[int]]) -> _Results:
    for group in order:
        for index in group:
            yield index, cache.compiled(*jobs[index]).figures


def _forked(
    cache: KernelCache, jobs: Sequence[Job], order: list[list[int]], count: int
) -> _Results:
    """Results of all processes as they come; a process that dies just ends."""
    context = multiprocessing.get_context("fork")
    rest = context.Array("i", [0, len(order)])  # what nobody has begun
    workers, readers = [], []
    try:
        for number in range(count):
            reader, writer = context.Pipe(duplex=False)
            arguments = (cache, jobs, order, rest, number % 2 == 1, writer, os.getpid())
            workers.append(context.Process(target=_work, args=arguments, daemon=True))
            workers[-1].start()
            writer.close()  # so that only the process keeps it open
            readers.append(reader)
        while readers:
            ready = wait(readers)
            for reader in [one for one in readers if one in ready]:
                try:
                    yield reader.recv()
                except EOFError:
                    readers.remove(reader)
    finally:
        for worker in workers:
            worker.kill()  # nothing is lost: files come into the folder whole
            worker.join()


def _work(
    cache: KernelCache,
    jobs: Sequence[Job],
    order: list[list[int]],
    rest: Any,
    is_backwards: bool,
    results: "Connection[_Result, None]",
    caller: int,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller hears it, and ends the workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.disable()  # what a compilation makes it keeps: looking for garbage is a tenth of its time
    for number in itertools.count(1):
        if number % _COLLECTED_AFTER == 0:
            gc.collect()
            gc.freeze()  # what is left stays: functions that later kernels call
        if os.getppid() != caller:
            return  # it was killed, and nobody wants the rest
        with rest.get_lock():
            first, end = rest
            if first == end:
                return
            turn = end - 1 if is_backwards else first
            rest[:] = (first, turn) if is_backwards else (turn + 1, end)
        for index in order[turn]:
            try:
                results.send((index, cache.compiled(*jobs[index]).figures))
            except NinferError as error:
                results.send((index, error))
