"""Instructions by which kernels count, for simulators in which every thread is a Python thread."""

from collections.abc import Callable
from typing import Any

import numpy as np


def counting_instructions(block: Any) -> dict[str, Callable[..., Any]]:
    """Stand-ins for intrinsics of `ninfer.cuda.ptx`; ``block`` has memory and barriers."""

    def load_u32_if(address: Any, mask: Any) -> Any:
        return block.load(address, np.uint32) if mask else np.uint32(0)

    return {
        "load_u32_if": load_u32_if,
        "fresh_u32_if": load_u32_if,
        "add_shared_u32": block.add,
        "store_i32": lambda address, value: block.store(address, [value], np.int32),
        "put_shared_u32x2": lambda address, *words: block.store(address, words, np.uint32),
        "fence_gpu": lambda: None,
    }
