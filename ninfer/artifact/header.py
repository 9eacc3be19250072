"""Spell the part of a file before the payload: prefix, directory and padding.

A plan passes the same checks as a file that is read, so nothing can be written that would be
refused. The spelling is fixed (compact JSON, members in the order of the tables), so equal plans
give equal bytes. Source: artifact page, sections 2 and 3.
"""

import json
from collections.abc import Sequence

from ninfer.artifact.directory import PlacementCheck, check_tensor, quote
from ninfer.artifact.format import (
    MAGIC,
    MAX_DIRECTORY_BYTES,
    PAYLOAD_ALIGNMENT,
    PREFIX_BYTES,
    RAW_BYTES,
    WRITTEN_VERSION,
    ArtifactCode,
    ArtifactError,
    ObjectDescriptor,
    ResourceDescriptor,
    TensorDescriptor,
    is_text,
)
from ninfer.tensor_formats import align_up


def encode_header(model_id: str, weights_id: str, objects: Sequence[ObjectDescriptor]) -> bytes:
    """Return everything before the payload: prefix, directory and padding.

    Raises:
        ArtifactError: a reader would refuse it.
    """
    _check_plan(model_id, weights_id, objects)
    root = {
        "identity": {"model_id": model_id, "weights_id": weights_id},
        "objects": [_members(descriptor) for descriptor in objects],
    }
    text = json.dumps(root, ensure_ascii=False, separators=(",", ":")).encode()
    if len(text) > MAX_DIRECTORY_BYTES:
        raise ArtifactError(
            f"the directory needs {len(text)} bytes; at most {MAX_DIRECTORY_BYTES} are read",
            code=ArtifactCode.JSON_LENGTH,
        )
    header = MAGIC + bytes([WRITTEN_VERSION]) + len(text).to_bytes(8, "little") + text
    return header.ljust(align_up(PREFIX_BYTES + len(text), PAYLOAD_ALIGNMENT), b"\0")


def _check_plan(model_id: str, weights_id: str, objects: Sequence[ObjectDescriptor]) -> None:
    """Apply the reader's rules to a directory that is still in memory."""
    for value, code in ((model_id, ArtifactCode.MODEL_ID), (weights_id, ArtifactCode.WEIGHTS_ID)):
        if not is_text(value):
            raise ArtifactError(f"{code.value} is not a nonempty string", code=code)
    if not objects:
        raise ArtifactError("there is nothing to write", code=ArtifactCode.OBJECTS)
    placement = PlacementCheck(None)
    for descriptor in objects:
        if not is_text(descriptor.name):
            raise ArtifactError(
                f"{quote(descriptor.name)} cannot be a name", code=ArtifactCode.VALUE_TYPE
            )
        shape = descriptor.shape if isinstance(descriptor, TensorDescriptor) else ()
        if descriptor.offset < 0 or min(descriptor.nbytes, *shape, 1) < 1:
            raise ArtifactError(
                f"object {quote(descriptor.name)} has offset {descriptor.offset}, "
                f"{descriptor.nbytes} bytes and extents {shape}",
                code=ArtifactCode.VALUE_RANGE,
                object=descriptor.name,
            )
        if isinstance(descriptor, TensorDescriptor):
            check_tensor(descriptor.name, descriptor)
        placement.add(descriptor)


def _members(descriptor: ObjectDescriptor) -> dict[str, object]:
    """Return the JSON members of an object in writing order."""
    if isinstance(descriptor, ResourceDescriptor):
        return {
            "name": descriptor.name,
            "kind": "resource",
            "encoding": RAW_BYTES,
            "offset": descriptor.offset,
            "bytes": descriptor.nbytes,
        }
    return {
        "name": descriptor.name,
        "kind": "tensor",
        "shape": list(descriptor.shape),
        "format": descriptor.format.value,
        "layout": descriptor.layout.value,
        "offset": descriptor.offset,
        "bytes": descriptor.nbytes,
    }
