"""Types of numbers for kernels that run as plain Python.

A type of the compiler, when called, looks for what it is called with and then calls NumPy's type of
its name; simulated kernels call that one at once.
"""

from collections.abc import Sequence
from types import ModuleType

import numba
import numpy as np
import pytest

_NAMES = ("int32", "uint32", "int64", "uint64", "float32", "float64")


def use_plain_types(patch: pytest.MonkeyPatch, modules: Sequence[ModuleType]) -> None:
    """Give modules NumPy's types where they have the compiler's."""
    for module in modules:
        for name in _NAMES:
            if getattr(module, name, None) is getattr(numba, name):
                patch.setattr(module, name, getattr(np, name))
