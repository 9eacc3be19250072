"""`GuardedBench` on a CUDA device: the same buffers, guards and checks, read back by copies.

One device serves the whole test process, because a context costs more than most tests. A folder of
prebuilt kernels may be named by ``NINFER_TEST_KERNELS``, for machines without a matching compiler.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ninfer.device import host_array
from ninfer.ops import linear
from ninfer.ops.context import OpContext, make_context
from ninfer.tensor import DType, LinearInput, Matrix, Shape, Tensor, TensorFormat
from ninfer.tensor_formats import bf16_to_f32, f32_to_bf16
from tests.support.guarded_bench import GUARD, GUARD_BYTES
from tests.support.narrow_stream import NarrowStream

Array = npt.NDArray[Any]

_DTYPES = {np.dtype(dtype.value): dtype for dtype in DType}
_STAGING_BYTES = 1 << 28


@cache
def cuda_device() -> Any:
    """The device of this process."""
    return open_cuda_device()


def open_cuda_device() -> Any:
    """Open the card once more, for a test that closes its device."""
    from ninfer.cuda.device import CudaDevice
    from ninfer.cuda.module import prebuilt

    folder = os.environ.get("NINFER_TEST_KERNELS")
    return CudaDevice(0, prebuilt(Path(folder)) if folder else None)


@cache
def _stream() -> Any:
    return cuda_device().stream()


@cache
def _staging() -> Any:
    return cuda_device().pinned_arena("staging", _STAGING_BYTES).take((_STAGING_BYTES,), DType.U8)


def _pieces(tensor: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Bytes of a buffer, as many at a time as are staged, and where they are."""
    octets = Tensor(tensor.address, DType.U8, (tensor.nbytes,))
    for first in range(0, tensor.nbytes, _STAGING_BYTES):
        count = min(_STAGING_BYTES, tensor.nbytes - first)
        yield octets.rows(first, count), _staging().rows(0, count)


class CudaBench:
    """Owner of the buffers of one test.

    Args:
        num_threads: as on the host, and of no use here.
        nbytes: of all buffers together.
        narrow_bytes: shared memory of a block of a smaller device, whose kernels shall run.
    """

    def __init__(
        self, num_threads: int = 1, nbytes: int = 1 << 26, narrow_bytes: int | None = None
    ) -> None:
        self.device = cuda_device()
        self.stream = _stream() if narrow_bytes is None else NarrowStream(_stream(), narrow_bytes)
        self.ctx: OpContext = make_context(self.device, self.stream)
        self._arena = self.device.arena("bench", nbytes)
        self._guards: list[Tensor] = []
        self._inputs: list[tuple[Tensor, Array]] = []

    def put(self, values: Array) -> Tensor:
        """An input that must not change."""
        tensor = self.inout(values)
        self._inputs.append((tensor, np.ascontiguousarray(values).reshape(-1).view(np.uint8)))
        return tensor

    def inout(self, values: Array) -> Tensor:
        """A buffer with values, which the op may change."""
        tensor = self._take(values.shape, _DTYPES[values.dtype])
        self.write(tensor, values)
        return tensor

    def out(self, shape: Shape, dtype: DType = DType.F32) -> Tensor:
        """A poisoned output."""
        tensor = self._take(shape, dtype)
        self.write(tensor, np.full(tensor.nbytes, 0xFF, np.uint8))
        return tensor

    def activations(self, values: Array) -> Tensor:
        """An input of the activation type that must not change."""
        return self.put(f32_to_bf16(values.astype(np.float32)))

    def rounded(self, values: Array) -> Array:
        """What the activation type makes of values, in float64."""
        return bf16_to_f32(f32_to_bf16(values.astype(np.float32))).astype(np.float64)

    def read_activations(self, tensor: Tensor) -> Array:
        """A copy of a buffer of the activation type, in float32."""
        return bf16_to_f32(self.read_tensor(tensor))

    @property
    def unit(self) -> float:
        """Largest relative error of one rounding to the activation type."""
        return 2.0**-8

    def out_activations(self, shape: Shape) -> Tensor:
        """A poisoned output of the activation type."""
        return self.out(shape, DType.BF16)

    def in_columns(self, x: Array) -> LinearInput:
        """A linear input ``[T, K]`` that must not change; an image has NaN behind it."""
        from ninfer.kernels.cuda.column_image import is_image
        from ninfer.kernels.cuda.fragments import pack_columns

        words = f32_to_bf16(x.astype(np.float32))
        if not is_image(len(x), self.stream.has_warpgroups):
            octets = pack_columns(words)
        else:
            octets = _poisoned_image(words)
        octets = np.pad(octets, (0, linear.input_bytes(self.ctx, *x.shape) - octets.size))
        return LinearInput(self.put(octets), *x.shape)

    def out_columns(self, num_columns: int, width: int) -> LinearInput:
        """A poisoned linear input for an op to fill."""
        nbytes = linear.input_bytes(self.ctx, num_columns, width)
        return LinearInput(self.out((nbytes,), DType.U8), num_columns, width)

    def matrix(self, format: TensorFormat, payload: Array, rows: int, columns: int) -> Matrix:
        """A resident matrix, laid out by NumPy; its storage must not change."""
        from ninfer.kernels.cuda.weight_layout import pack_weight

        storage = self.put(pack_weight(format, payload, rows, columns))
        return Matrix(format, storage, rows, columns, 0, rows)

    def write(self, tensor: Tensor, values: Array) -> None:
        """Overwrite a buffer."""
        octets = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        for part, staged in _pieces(tensor):
            host_array(staged)[...] = octets[: staged.nbytes]
            self.stream.upload(part, staged)
            self.stream.synchronize()
            octets = octets[staged.nbytes :]

    def read_tensor(self, tensor: Tensor) -> Array:
        """A copy of a buffer's values."""
        octets = self._octets(tensor)
        return octets.view(np.dtype(tensor.dtype.value)).reshape(tensor.shape)

    def read_columns(self, block: LinearInput) -> Array:
        """A copy of a linear input ``[T, K]``; padding is zero and every sum is exact."""
        from ninfer.kernels.cuda.column_image import is_image, words_of
        from ninfer.kernels.cuda.fragments import input_bytes, pack_columns, unpack_columns

        storage, shape = self.read_tensor(block.storage), (block.num_columns, block.width)
        if is_image(block.num_columns, self.stream.has_warpgroups):
            words = words_of(storage, *shape)
        else:
            words, sums = unpack_columns(storage[: input_bytes(*shape)], *shape)
            if block.num_columns:
                plain = np.ascontiguousarray(words[:, : block.width])
                _, expected = unpack_columns(pack_columns(plain), *shape)
                np.testing.assert_array_equal(sums, expected)
        np.testing.assert_array_equal(words[:, block.width :], 0)
        return bf16_to_f32(words[:, : block.width])

    def check(self) -> None:
        """Require a healthy stream, untouched guards and untouched inputs."""
        self.stream.synchronize()
        assert all((self._octets(guard) == GUARD).all() for guard in self._guards)
        for tensor, before in self._inputs:
            np.testing.assert_array_equal(self._octets(tensor), before)

    def _octets(self, tensor: Tensor) -> Array:
        found = np.empty(tensor.nbytes, np.uint8)
        rest = found
        for part, staged in _pieces(tensor):
            self.stream.download(staged, part)
            self.stream.synchronize()
            rest[: staged.nbytes] = host_array(staged)
            rest = rest[staged.nbytes :]
        return found

    def _take(self, shape: Shape, dtype: DType) -> Tensor:
        first = self._arena.take((GUARD_BYTES,), DType.U8)
        tensor: Tensor = self._arena.take(shape, dtype)
        last = self._arena.take((GUARD_BYTES,), DType.U8)
        self._guard(first.address, tensor.address)
        self._guard(tensor.address + tensor.nbytes, last.address + GUARD_BYTES)
        return tensor

    def _guard(self, start: int, stop: int) -> None:
        guard = Tensor(start, DType.U8, (stop - start,))
        self.write(guard, np.full(stop - start, GUARD, np.uint8))
        self._guards.append(guard)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stream.synchronize()
        self._arena.close()


def _poisoned_image(words: Array) -> Array:
    """An image whose columns behind the last one are NaN."""
    from ninfer.kernels.cuda.column_image import BLOCK_COLUMNS, image_of

    behind = -len(words) % BLOCK_COLUMNS
    return image_of(np.pad(words, ((0, behind), (0, 0)), constant_values=0xFFFF))


@contextmanager
def fresh_stream() -> Iterator[Any]:
    """A stream of its own on the device of this process."""
    stream = cuda_device().stream()
    try:
        yield stream
    finally:
        stream.close()
