"""A kernel whose blocks do not fit is refused by name, before the driver sees it."""

import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.cuda.device import expect_room
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.errors import KernelTooLarge


def nothing(address: int) -> None:
    """A kernel that does nothing."""


def kernel_of(shared_bytes: int) -> Kernel:
    return Kernel("probe", nothing, (Param.ADDRESS,), 32, 32, shared_bytes)


def test_a_kernel_that_just_fits_is_taken() -> None:
    expect_room(kernel_of((99 << 10) - 512), 512, 99 << 10)


def test_a_kernel_that_does_not_fit_names_itself_and_both_sizes() -> None:
    with pytest.raises(KernelTooLarge, match=r"kernel probe: .* 101377 bytes .* gives it 101376"):
        expect_room(kernel_of((99 << 10) - 512), 513, 99 << 10)


@pytest.mark.gpu
def test_the_device_refuses_a_kernel_of_more_than_it_gives_a_block() -> None:
    from tests.support.cuda_bench import cuda_device

    device = cuda_device()
    kernel = large_norm(device.shared_bytes)

    with pytest.raises(KernelTooLarge, match=f"gives it {device.shared_bytes}"):
        device.function(kernel)


def large_norm(block_bytes: int) -> Kernel:
    """A kernel that every folder of prebuilt ones has, with a larger wish."""
    from ninfer.kernels.cuda.norm import make_rms_norm

    norm = make_rms_norm(True, False)
    return Kernel(norm.name, norm.function, norm.params, norm.threads, 64, block_bytes + 1)
