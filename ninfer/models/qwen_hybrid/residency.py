"""How each object of the inventory lives on a device: as a matrix, or as a plain tensor.

A matrix is read by linear ops or by the embedding, in whatever residency its device prefers;
everything else keeps the words of the file. Where the bytes go is not known here.
"""

from typing import Final

from ninfer.errors import InvariantError
from ninfer.models.qwen_hybrid.inventory import ExpectedObject
from ninfer.ops import linear
from ninfer.ops.context import OpContext
from ninfer.tensor import DType, Tensor, TensorFormat

_DIRECT_DTYPES: Final = {
    TensorFormat.BF16: DType.BF16,
    TensorFormat.FP32: DType.F32,
    TensorFormat.I32: DType.I32,
}
_CONVOLUTION: Final = "/convolution"


def is_matrix(stored: ExpectedObject) -> bool:
    """Whether linear ops or the embedding read it; the convolution has two axes but is none."""
    return len(stored.shape) == 2 and not stored.name.endswith(_CONVOLUTION)


def stored_format(stored: ExpectedObject) -> TensorFormat:
    """Format of a tensor object.

    Raises:
        InvariantError: it is a resource.
    """
    if stored.format is None:
        raise InvariantError(f"{stored.name} is a resource and has no place on a device")
    return stored.format


def direct_dtype(stored: ExpectedObject) -> DType:
    """Element type of a plain tensor."""
    return _DIRECT_DTYPES[stored_format(stored)]


def resident_bytes(ctx: OpContext, stored: ExpectedObject) -> int:
    """Bytes the object takes on the device of ``ctx``, before alignment."""
    if is_matrix(stored):
        num_rows, num_columns = stored.shape
        return linear.resident_bytes(ctx, stored_format(stored), num_rows, num_columns)
    return Tensor(0, direct_dtype(stored), stored.shape).nbytes
