"""Which modules the text of a kernel is written in, for simulators that exchange their names.

Follows the kernel's function into every function of ours that it reaches, through what it is closed
over and through names of its module and of modules that it names. Intrinsics end the way:
simulators stand in for them.
"""

import sys
from collections.abc import Iterator
from functools import cache
from types import FunctionType, ModuleType
from typing import Any

from ninfer.cuda.device_code import DeviceFunction
from ninfer.cuda.kernel_source import Kernel, names_of

_OURS = ("ninfer", "tests")


@cache
def modules_of(kernel: Kernel) -> tuple[ModuleType, ...]:
    """Modules of everything that a kernel calls, its own first."""
    found: dict[str, ModuleType] = {}
    for function in _reached(kernel.function, set()):
        found.setdefault(function.__module__, sys.modules[function.__module__])
    return tuple(found.values())


def _reached(value: Any, seen: set[int]) -> Iterator[FunctionType]:
    """Functions of ours that a value is, has or calls, each once."""
    if isinstance(value, DeviceFunction):
        value = value.py_func
    if isinstance(value, tuple | list):
        for item in value:
            yield from _reached(item, seen)
    if not isinstance(value, FunctionType) or value.__module__.split(".")[0] not in _OURS:
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    yield value
    for cell in value.__closure__ or ():
        yield from _reached(cell.cell_contents, seen)
    names = tuple(names_of(value.__code__))
    for name in names:
        known = value.__globals__.get(name)
        yield from _reached(known, seen)
        if isinstance(known, ModuleType):  # what is meant by ``module.name``
            yield from _reached([getattr(known, other, None) for other in names], seen)
