"""Sizes of linear operands on CUDA; their orders are `fragments` and `weight_layout`."""

from ninfer.cuda.kernel_source import Kernel
from ninfer.kernels.cuda import fragments
from ninfer.kernels.cuda.launch import KernelShapes
from ninfer.kernels.cuda.weight_layout import WeightLayout
from ninfer.tensor import TensorFormat


def input_bytes(num_columns: int, width: int) -> int:
    """Bytes of a linear input."""
    return fragments.input_bytes(num_columns, width)


def resident_bytes(format: TensorFormat, num_rows: int, num_columns: int) -> int:
    """Bytes of a whole matrix in device residency."""
    return WeightLayout(format, num_rows, num_columns).nbytes


def declared(shapes: KernelShapes) -> tuple[Kernel, ...]:
    """Kernels a model needs: sizes need none."""
    return ()
