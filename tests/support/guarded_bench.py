"""A bench for one op on the host device: guarded buffers, poisoned outputs, unchanged inputs.

Every buffer lies between guard bytes. Outputs start as all-ones bytes, which are NaN in every
floating type and -1 in every integer type. `check` synchronises and requires that no guard byte and
no input has changed.
"""

from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ninfer.device import host_array
from ninfer.host.device import HostDevice
from ninfer.ops import linear
from ninfer.ops.context import OpContext, make_context
from ninfer.tensor import DType, LinearInput, Matrix, Shape, Tensor, TensorFormat

Array = npt.NDArray[Any]

GUARD_BYTES = 256
GUARD = 0xA5
_DTYPES = {np.dtype(dtype.value): dtype for dtype in DType}


class GuardedBench:
    """Owner of a host device and the buffers of one test."""

    def __init__(self, num_threads: int = 1, nbytes: int = 1 << 26) -> None:
        self.device = HostDevice(num_threads)
        self.stream = self.device.stream()
        self.ctx: OpContext = make_context(self.device, self.stream)
        self._arena = self.device.arena("bench", nbytes)
        self._guards: list[Array] = []
        self._inputs: list[tuple[Tensor, Array]] = []

    def put(self, values: Array) -> Tensor:
        """An input that must not change."""
        tensor = self.inout(values)
        self._inputs.append((tensor, values.copy()))
        return tensor

    def inout(self, values: Array) -> Tensor:
        """A buffer with values, which the op may change."""
        tensor = self.out(values.shape, _DTYPES[values.dtype])
        host_array(tensor)[...] = values
        return tensor

    def out(self, shape: Shape, dtype: DType = DType.F32) -> Tensor:
        """A poisoned output."""
        first = self._arena.take((GUARD_BYTES,), DType.U8)
        tensor = self._arena.take(shape, dtype)
        last = self._arena.take((GUARD_BYTES,), DType.U8)
        self._guard(first.address, tensor.address)
        self._guard(tensor.address + tensor.nbytes, last.address + GUARD_BYTES)
        _octets(tensor)[...] = 0xFF
        return tensor

    def activations(self, values: Array) -> Tensor:
        """An input of the activation type that must not change."""
        return self.put(values.astype(np.float32))

    def rounded(self, values: Array) -> Array:
        """What the activation type makes of values, in float64."""
        return values.astype(np.float32).astype(np.float64)

    def read_activations(self, tensor: Tensor) -> Array:
        """A copy of a buffer of the activation type, in float32."""
        return self.read_tensor(tensor)

    @property
    def unit(self) -> float:
        """Largest relative error of one rounding to the activation type."""
        return 2.0**-24

    def in_columns(self, x: Array) -> LinearInput:
        """A linear input ``[T, K]`` that must not change."""
        block = self.out_columns(*x.shape)
        linear.pack(self.ctx, self.put(x.astype(np.float32)), block)
        self._inputs.append((block.storage, host_array(block.storage).copy()))
        return block

    def out_activations(self, shape: Shape) -> Tensor:
        """A poisoned output of the activation type."""
        return self.out(shape, self.device.activation_dtype)

    def out_columns(self, num_columns: int, width: int) -> LinearInput:
        """A poisoned linear input for an op to fill."""
        nbytes = linear.input_bytes(self.ctx, num_columns, width)
        return LinearInput(self.out((nbytes,), DType.U8), num_columns, width)

    def matrix(self, format: TensorFormat, payload: Array, rows: int, columns: int) -> Matrix:
        """A resident matrix made from its file payload; its storage must not change."""
        nbytes = linear.resident_bytes(self.ctx, format, rows, columns)
        matrix = Matrix(format, self.out((nbytes,), DType.U8), rows, columns, 0, rows)
        linear.make_resident(self.ctx, self.put(payload), matrix)
        self._inputs.append((matrix.storage, host_array(matrix.storage).copy()))
        return matrix

    def read_tensor(self, tensor: Tensor) -> Array:
        """A copy of a buffer's values."""
        return host_array(tensor).copy()

    def read_columns(self, block: LinearInput) -> Array:
        """A copy of a linear input ``[T, K]``, as the host device stores it."""
        values = host_array(block.storage).view(np.float32)
        return values.reshape(block.num_columns, block.width).copy()

    def check(self) -> None:
        """Require a healthy stream, untouched guards and untouched inputs."""
        self.stream.synchronize()
        assert all((guard == GUARD).all() for guard in self._guards)
        for tensor, before in self._inputs:
            assert np.array_equal(_octets(tensor), before.reshape(-1).view(np.uint8))

    def _guard(self, start: int, stop: int) -> None:
        guard = host_array(Tensor(start, DType.U8, (stop - start,)))
        guard[...] = GUARD
        self._guards.append(guard)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._guards.clear()
        self.device.close()
        self._arena.close()


def _octets(tensor: Tensor) -> Array:
    return host_array(Tensor(tensor.address, DType.U8, (tensor.nbytes,)))
