"""Every instruction assembles, with the operands it declares."""

from typing import Any

import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from numba.cuda import types

from ninfer.cuda import ptx
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.cuda.module import build

NAMES = sorted(name for name, value in vars(ptx).items() if hasattr(value, "ptx_text"))
LITERALS = {
    types.uint64: "address",
    types.uint32: "word",
    types.int32: "number",
    types.float32: "value",
    types.float64: "wide",
}


def kernel_of_every_instruction() -> Kernel:
    """One kernel that calls them all and keeps every result."""
    lines = ["def every(address, word, number, value):", "    wide = float64(value)"]
    for name in NAMES:
        made = getattr(ptx, name)
        call = f"ptx.{name}({', '.join(LITERALS[kind] for kind in made.param_types)})"
        if made.num_results == 0:
            lines.append(f"    {call}")
            continue
        results = [f"r{index}" for index in range(made.num_results)]
        lines.append(f"    {', '.join(results)} = {call}")
        lines += [f"    cuda.atomic.add(keep, 0, float64({result}))" for result in results]
    lines[1:1] = ["    keep = cuda.shared.array(1, float64)"]
    space: dict[str, Any] = {}
    exec("from numba import cuda, float64\nfrom ninfer.cuda import ptx\n" + "\n".join(lines), space)
    params = (Param.ADDRESS, Param.U32, Param.I32, Param.F32)
    return Kernel("every", space["every"], params, threads=32, max_registers=255)


def test_every_instruction_assembles() -> None:
    compiled = build(kernel_of_every_instruction(), "sm_90")

    assert len(NAMES) > 50
    assert compiled.cubin.startswith(b"\x7fELF")


def test_instructions_have_distinct_texts() -> None:
    texts = [getattr(ptx, name).ptx_text for name in NAMES]

    assert len(set(texts)) == len(texts)


def test_memory_and_synchronisation_are_ordered() -> None:
    words = ("ld.", "st.", "red.", "atom.", "fence", "griddep", "trap", "cp.async", "bar.")
    unordered = [
        name
        for name in NAMES
        if any(getattr(ptx, name).ptx_text.lstrip("{ ").startswith(word) for word in words)
        and not getattr(ptx, name).ptx_text.endswith("True")
    ]

    assert unordered == []
