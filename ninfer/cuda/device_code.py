"""Functions that kernels call, compiled as a part of them.

Numba's own dispatcher asks the driver which device is present before it compiles such a function;
ours asks the compilation in progress, so that no driver is needed. Most are made anew for every
kernel by functions that close them over a few numbers: those that mean the same are compiled once.
Knows no kernel.
"""

from collections.abc import Callable
from functools import cached_property
from types import FunctionType
from typing import Any, Final

import numpy as np
from numba.cuda.compiler import compile_cuda
from numba.cuda.core.targetconfig import ConfigStack
from numba.cuda.dispatcher import CUDADispatcher

from ninfer.cuda.kernel_source import names_of

_DEFAULT_CC: Final = (9, 0)
_TWINS: "Final[dict[Any, DeviceFunction]]" = {}
"""By meaning, the first function that has it."""


class DeviceFunction(CUDADispatcher):  # type: ignore[misc]  # the base class is untyped
    """One function; each combination of argument types is compiled once, always inlined."""

    def compile_device(self, args: Any, return_type: Any = None) -> Any:
        """Compile for argument types, for the target of the first kernel that calls."""
        if args not in self.overloads:
            twin = self.twin
            self.overloads[args] = (
                self._compile(args, return_type) if twin is self else twin.compile_device(args)
            )
        return self.overloads[args]

    @cached_property
    def twin(self) -> "DeviceFunction":
        """The first function of the same text that refers to the same things; it is compiled."""
        return _TWINS.setdefault(_meaning(self.py_func), self)

    def _compile(self, args: Any, return_type: Any) -> Any:
        flags = ConfigStack.top_or_none()
        compiled = compile_cuda(
            self.py_func,
            return_type,
            args,
            debug=False,
            lineinfo=False,
            forceinline=True,
            inline="never",
            fastmath=False,
            nvvm_options={"opt": 3, "fastmath": False},
            cc=getattr(flags, "compute_capability", None) or _DEFAULT_CC,
        )
        context = compiled.target_context
        context.insert_user_function(compiled.entry_point, compiled.fndesc, [compiled.library])
        return compiled


def device_function(function: Callable[..., Any]) -> Any:
    """Make a plain function callable from kernels."""
    return DeviceFunction(function, {"device": True, "opt": True, "fastmath": False})


def _meaning(function: FunctionType) -> Any:
    """Text of a function, which is one object however often it is closed over values, and those."""
    code, known = function.__code__, function.__globals__
    cells = tuple(_named(cell.cell_contents) for cell in function.__closure__ or ())
    names = tuple(_named(known[name]) for name in names_of(code) if name in known)
    defaults = _named((function.__defaults__, tuple((function.__kwdefaults__ or {}).items())))
    return code, id(known), cells, names, defaults


def _named(value: Any) -> Any:
    """What a value is told apart by: numbers by type and bits, other things by themselves."""
    if isinstance(value, DeviceFunction):
        return value.twin
    if isinstance(value, (tuple, list)):
        return type(value), tuple(_named(item) for item in value)
    if isinstance(value, float):
        return type(value), value.hex()
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype, value.shape, value.tobytes()
    try:
        hash(value)
    except TypeError:
        return id(value)  # which the first function with this meaning keeps alive
    return type(value), value
