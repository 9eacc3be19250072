"""Warpgroup instructions assemble, and products do not wait for each other."""

from typing import Any

import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx, warpgroup
from ninfer.cuda.kernel_source import Kernel, Param, source_digest
from ninfer.cuda.module import TARGETS, build, complaints, suits
from ninfer.errors import InvariantError
from ninfer.kernels.cuda import coded_linear
from ninfer.kernels.cuda.coded_output import Ending
from ninfer.kernels.cuda.coded_product import make_coded_product
from ninfer.kernels.cuda.coded_turns import tiles_of
from ninfer.tensor import TensorFormat
from tests.cuda.test_ptx import LITERALS

NAMES = sorted(name for name, value in vars(warpgroup).items() if hasattr(value, "param_types"))


def kernel_of_every_instruction() -> Kernel:
    lines = ["def every(address, word):"]
    for name in NAMES:
        made = getattr(warpgroup, name)
        arguments = ", ".join(LITERALS[kind] for kind in made.param_types)
        lines.append(f"    warpgroup.{name}({arguments})")
    space: dict[str, Any] = {}
    lines.append("    ptx.wait_for_predecessor()")
    exec("from ninfer.cuda import ptx, warpgroup\n" + "\n".join(lines), space)
    params = (Param.ADDRESS, Param.U32)
    return Kernel("every", space["every"], params, 128, 255, is_warpgroup=True)


def test_every_instruction_assembles() -> None:
    assert len(NAMES) > 8
    assert build(kernel_of_every_instruction(), "sm_90").cubin.startswith(b"\x7fELF")


def test_only_one_target_has_warpgroups() -> None:
    kernel = kernel_of_every_instruction()

    assert [target for target in TARGETS if suits(kernel, target)] == ["sm_90"]
    with pytest.raises(InvariantError, match="sm_90"):
        build(kernel, "sm_100")


def test_registers_of_warpgroup_kernels_belong_to_the_digest() -> None:
    def nothing() -> None:
        return

    made = [Kernel("nothing", nothing, (), 32, number, is_warpgroup=True) for number in (168, 255)]

    assert source_digest(made[0]) != source_digest(made[1])


def test_sums_that_are_touched_between_products_are_refused() -> None:
    multiply = warpgroup.multiply_block(128)

    def serial(address: int) -> None:
        ptx.wait_for_predecessor()
        sums = cuda.local.array(64, float32)
        for i in range(64):
            sums[i] = float32(0.0)
        for _ in range(4):
            multiply(sums, uint64(address), uint64(address))
            sums[0] += float32(1.0)
        cuda.atomic.add(cuda.shared.array(1, float32), 0, sums[0] + float32(uint32(1)))

    with pytest.raises(InvariantError, match="wait for each other"):
        build(Kernel("serial", serial, (Param.ADDRESS,), 128, 255, is_warpgroup=True), "sm_90")


def exchanging_kernel(first: int, *, waits: bool = True, is_whole: bool = True) -> Kernel:
    """Two warpgroups that multiply, and one that gives them its registers."""
    more, fewer = warpgroup.more_registers(224), warpgroup.fewer_registers(56)

    def exchange(address: int) -> None:
        if waits:
            ptx.wait_for_predecessor()
        if int32(cuda.threadIdx.x) < int32(256):
            more()
            ptx.store_u32(address, uint32(1))
        else:
            fewer()
            ptx.store_u32(address, uint32(2))

    return Kernel(
        "exchange",
        exchange,
        (Param.ADDRESS,),
        threads=384,
        max_registers=first,
        min_blocks=1,
        is_warpgroup=True,
        is_whole=is_whole,
    )


def test_warpgroups_exchange_registers_in_whole_programs() -> None:
    kernel = exchanging_kernel(168)

    assert build(kernel, "sm_90").figures.registers == 168
    assert [target for target in TARGETS if suits(kernel, target)] == ["sm_90"]
    assert source_digest(kernel) != source_digest(exchanging_kernel(168, is_whole=False))


def test_a_start_with_other_registers_than_declared_is_refused() -> None:
    with pytest.raises(InvariantError, match="starts with 168 registers a thread, not 160"):
        build(exchanging_kernel(160), "sm_90")


def test_a_whole_program_waits_for_its_predecessor_as_others_do() -> None:
    with pytest.raises(InvariantError, match="never waits"):
        build(exchanging_kernel(168, waits=False), "sm_90")


@pytest.mark.parametrize(
    "kernel",
    [
        make_coded_product(tiles_of(TensorFormat.Q6, 128), Ending.BF16),
        *(
            pytest.param(kernel, marks=pytest.mark.slow)
            for kernel in coded_linear.declared()
            if kernel.is_warpgroup
        ),
    ],
    ids=lambda kernel: kernel.name,
)
def test_products_of_coded_weights_have_no_spills(kernel: Kernel) -> None:
    compiled = build(kernel, "sm_90")

    assert complaints(kernel, compiled.figures) == []
    assert kernel.dynamic_shared_bytes <= 227 << 10
