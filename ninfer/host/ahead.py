"""Compile the kernels of a recording side by side, on a machine that has not compiled them yet.

    this process      first kernel ->        <- last kernel      a second process

Compilation holds one lock in a process, so a cold start would use one processor. Both processes
work towards each other through Numba's disk cache: each skips what the other has already put
there. Where the cache cannot be written, or a second process cannot be had, this process simply
compiles everything. Run as a program, the module is the second process, which begins at the last.
"""

import importlib
import pickle
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

from ninfer.module_process import module_process

WORTH_A_PROCESS: Final = 3
"""Kernels that must be missing before a second process pays for its start."""

Progress = Callable[[int, int], None]
"""Told (kernels compiled, kernels in all)."""

Call = tuple[Callable[..., object], tuple[Any, ...]]


@runtime_checkable
class CompiledKernel(Protocol):
    """What Numba makes of a function; named here so that only kernels load the compiler."""

    py_func: Callable[..., object]
    stats: Any

    def compile(self, sig: Any) -> object:
        """Compile for these argument types, or load that from disk."""

    def typeof_pyval(self, val: object) -> Any:
        """Type of one argument."""


@dataclass(frozen=True, slots=True)
class Job:
    """One kernel for one set of argument types.

    Attributes:
        module, name: where the kernel is found.
        types: Numba types of its arguments.
    """

    module: str
    name: str
    types: tuple[Any, ...]

    def kernel(self) -> Any:
        """The kernel itself."""
        return getattr(importlib.import_module(self.module), self.name)

    def is_on_disk(self) -> bool:
        """Whether the kernel is kept for these types."""
        return is_on_disk(self.kernel(), self.types)

    def is_in_process(self) -> bool:
        """Whether this process can run it already."""
        return self.types in self.kernel().overloads


def is_on_disk(function: Any, types: tuple[Any, ...] | None = None) -> bool:
    """Whether a kernel is kept for these argument types, or for some where none are named.

    A file that is damaged, or of other sources, is none.
    """
    if function.stats.cache_path is None:
        return False
    return bool(function._cache.holds(types, function.targetctx))


def compile_ahead(calls: Iterable[Call], progress: Progress | None = None) -> None:
    """Make sure that the kernels among these calls are compiled, using two processes if cold.

    Args:
        calls: those that are no kernels are passed over.
        progress: told when there is something to compile, and after each kernel.
    """
    calls = list(calls)
    functions: set[Any] = {function for function, _ in calls}
    wanted = {one for one in functions if _is_kernel(one) and not is_on_disk(one)}
    missing = list(dict.fromkeys(_job(*call) for call in calls if call[0] in wanted))
    missing = [job for job in missing if not job.is_in_process()]
    if not missing:
        return
    is_kept = all(one.stats.cache_path is not None for one in wanted)
    with ExitStack() as stack:
        if is_kept and len(missing) >= WORTH_A_PROCESS:
            jobs = pickle.dumps([(job.module, job.name, job.types) for job in missing])
            stack.enter_context(module_process(__name__, jobs))
        _compile(missing, progress)


def _is_kernel(function: object) -> bool:
    return isinstance(function, CompiledKernel)


def _job(function: Any, args: tuple[Any, ...]) -> Job:
    kernel = function.py_func
    return Job(
        kernel.__module__, kernel.__name__, tuple(function.typeof_pyval(value) for value in args)
    )


def _compile(jobs: Sequence[Job], progress: Progress | None = None) -> None:
    for place, job in enumerate(jobs):
        if progress is not None:  # what lies behind may be there already, by the other process
            later = sum(other.is_on_disk() for other in jobs[place:])
            progress(place + later, len(jobs))
        if not job.is_on_disk():
            job.kernel().compile(job.types)
    if progress is not None:
        progress(len(jobs), len(jobs))


if __name__ == "__main__":
    _compile([Job(*fields) for fields in reversed(pickle.load(sys.stdin.buffer))])
