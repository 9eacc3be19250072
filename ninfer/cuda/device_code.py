"""Functions that kernels call, compiled as a part of them.

Numba's own dispatcher asks the driver which device is present before it compiles such a function;
ours asks the compilation in progress, so that no driver is needed. Knows no kernel.
"""

from collections.abc import Callable
from typing import Any, Final

from numba.cuda.compiler import compile_cuda
from numba.cuda.core.targetconfig import ConfigStack
from numba.cuda.dispatcher import CUDADispatcher

_DEFAULT_CC: Final = (9, 0)


class DeviceFunction(CUDADispatcher):  # type: ignore[misc]  # the base class is untyped
    """One function; each combination of argument types is compiled once, always inlined."""

    def compile_device(self, args: Any, return_type: Any = None) -> Any:
        """Compile for argument types, for the target of the kernel that calls."""
        if args in self.overloads:
            return self.overloads[args]
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
        self.overloads[args] = compiled
        context = compiled.target_context
        context.insert_user_function(compiled.entry_point, compiled.fndesc, [compiled.library])
        return compiled


def device_function(function: Callable[..., Any]) -> Any:
    """Make a plain function callable from kernels."""
    return DeviceFunction(function, {"device": True, "opt": True, "fastmath": False})
