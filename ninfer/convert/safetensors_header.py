"""The header of one safetensors file: names, types, shapes and where the bytes lie.

    0    u64 LE   header_bytes
    8    header_bytes of UTF-8 JSON: name -> {dtype, shape, data_offsets}
    ...  data; offsets count from here

Nothing is believed: every length is compared with the file before it is used. Source: the published
description of the safetensors format.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ninfer.errors import CheckpointError
from ninfer.tensor import Shape

PREFIX_BYTES: Final = 8
MAX_HEADER_BYTES: Final = 100_000_000
_POINTER_START: Final = b"version https://"
_METADATA: Final = "__metadata__"
_MEMBERS: Final = {"dtype", "shape", "data_offsets"}
_ITEM_BYTES: Final[Mapping[str, int]] = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "F64": 8,
    "I64": 8,
    "U64": 8,
}


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """One tensor of a checkpoint.

    Attributes:
        name: its name in the file.
        dtype: the format's spelling, such as ``BF16``.
        shape: extents, last one fastest.
        path: file that holds it.
        offset: first byte in that file.
        nbytes: size.
    """

    name: str
    dtype: str
    shape: Shape
    path: Path
    offset: int
    nbytes: int


def read_header(path: Path, descriptor: int) -> dict[str, SourceTensor]:
    """Read and check the header of an open file.

    Args:
        path: for messages, and for the tensors.
        descriptor: open for reading.

    Raises:
        CheckpointError: the file is not a complete safetensors file.
        OSError: the file cannot be read.
    """
    file_bytes = os.fstat(descriptor).st_size
    prefix = os.pread(descriptor, len(_POINTER_START), 0)
    if prefix == _POINTER_START:
        raise _damaged(
            path, f"is a text pointer of {file_bytes} bytes, its content was never downloaded"
        )
    if len(prefix) < PREFIX_BYTES:
        raise _damaged(path, f"has {file_bytes} bytes, too few for a header")
    header_bytes = int.from_bytes(prefix[:PREFIX_BYTES], "little")
    available = file_bytes - PREFIX_BYTES
    if not 0 < header_bytes <= min(available, MAX_HEADER_BYTES):
        raise _damaged(
            path,
            f"claims a header of {header_bytes} bytes; {available} follow and at most"
            f" {MAX_HEADER_BYTES} are read",
        )
    entries = _parse(path, _read(descriptor, PREFIX_BYTES, header_bytes))
    data_start = PREFIX_BYTES + header_bytes
    tensors = [
        _tensor(path, name, entry, data_start)
        for name, entry in entries.items()
        if name != _METADATA
    ]
    _check_coverage(path, tensors, data_start, file_bytes)
    return {tensor.name: tensor for tensor in tensors}


def strict_object(path: Path, content: bytes) -> dict[str, object]:
    """Parse JSON whose root is an object, refusing a member that is named twice.

    Raises:
        CheckpointError: not UTF-8, not JSON, another root, or a repeated member.
    """

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        members = dict(pairs)
        if len(members) != len(pairs):
            names = [name for name, _ in pairs]
            repeated = next(name for name in names if names.count(name) > 1)
            raise _damaged(path, f"names {repeated!a} twice")
        return members

    try:
        value = json.loads(content.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"does not hold valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise _damaged(path, "does not hold a JSON object")
    return value


def _read(descriptor: int, offset: int, nbytes: int) -> bytes:
    parts: list[bytes] = []
    while nbytes and (part := os.pread(descriptor, nbytes, offset)):
        parts.append(part)
        offset, nbytes = offset + len(part), nbytes - len(part)
    return b"".join(parts)


def _parse(path: Path, content: bytes) -> dict[str, object]:
    if not content.startswith(b"{"):
        raise _damaged(path, "has a header that is not JSON")
    return strict_object(path, content)


def _tensor(path: Path, name: str, entry: object, data_start: int) -> SourceTensor:
    if not isinstance(entry, dict) or set(entry) != _MEMBERS:
        raise _damaged(path, f"tensor {name!a} needs exactly dtype, shape and data_offsets")
    dtype, shape = entry["dtype"], entry["shape"]
    if not isinstance(dtype, str) or dtype not in _ITEM_BYTES:
        raise _damaged(path, f"tensor {name!a} has the unknown type {dtype!a}")
    if not _are_sizes(shape):
        raise _damaged(path, f"tensor {name!a} has the shape {shape!a}")
    offsets = entry["data_offsets"]
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise _damaged(path, f"tensor {name!a} has the offsets {offsets!a}")
    start, stop = offsets
    nbytes = math.prod(shape) * _ITEM_BYTES[dtype]
    if stop - start != nbytes:
        raise _damaged(path, f"tensor {name!a} covers {stop - start} bytes and needs {nbytes}")
    return SourceTensor(name, dtype, tuple(shape), path, data_start + start, nbytes)


def _are_sizes(values: object) -> bool:
    return isinstance(values, list) and all(
        type(value) is int and 0 <= value < 1 << 63 for value in values
    )


def _check_coverage(
    path: Path, tensors: list[SourceTensor], data_start: int, file_bytes: int
) -> None:
    """Tensors must fill the data part without overlap and without holes."""
    cursor = data_start
    for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.nbytes)):
        if tensor.offset < cursor:
            raise _damaged(path, f"tensor {tensor.name!a} overlaps the tensor before it")
        if tensor.offset > cursor:
            raise _damaged(path, f"has unused bytes before tensor {tensor.name!a}")
        cursor = tensor.offset + tensor.nbytes
    if cursor != file_bytes:
        what = "is cut short" if file_bytes < cursor else "has bytes after its last tensor"
        raise _damaged(path, f"{what}: {file_bytes} bytes, its header describes {cursor}")


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path}: the file {what}", field=path.name)
