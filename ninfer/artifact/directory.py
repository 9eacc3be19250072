"""Parse and check the directory of a file, down to the geometry of every object.

Takes the JSON bytes and the size of the payload, so it needs no file. One fault gives that fault's
code; of several, the first in the order: text, root, then for each object members, kind, types,
ranges, registries, size, name, order, alignment, bounds. Messages quote untrusted text in ASCII and
cut it short. Source: artifact page, sections 3 and 4.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from ninfer.artifact.format import (
    MAX_RANK,
    MAX_U64,
    RAW_BYTES,
    ArtifactCode,
    ArtifactError,
    Directory,
    Layout,
    ObjectDescriptor,
    ResourceDescriptor,
    TensorDescriptor,
    is_text,
    layout_of,
)
from ninfer.artifact.strict_json import JsonObject, JsonValue, parse_json
from ninfer.tensor import TensorFormat
from ninfer.tensor_formats import RowSplitGeometry

_MEMBERS: Final[Mapping[str, tuple[str, ...]]] = {
    "tensor": ("name", "kind", "shape", "format", "layout", "offset", "bytes"),
    "resource": ("name", "kind", "encoding", "offset", "bytes"),
}
_LATER_FORMATS: Final = ("NVFP4", "FP8_E4M3FN_ROW_BF16S")
_QUOTE_LIMIT: Final = 120


def parse_directory(version: int, text: bytes, payload_bytes: int) -> Directory:
    """Parse the JSON of a version 1 or 2 file.

    Args:
        version: from the prefix.
        text: the JSON bytes.
        payload_bytes: bytes of the file from the start of the payload on.

    Raises:
        ArtifactError: any fault; ``path`` is left for the caller to fill in.
    """
    root = parse_json(text)
    if not isinstance(root, dict):
        raise ArtifactError("the root is not an object", code=ArtifactCode.ROOT_MEMBERS)
    if version == 1:
        _require_members(root, ("model_id", "objects"), "root", ArtifactCode.ROOT_MEMBERS)
        model_id, weights_id = _identifier(root, "model_id", ArtifactCode.MODEL_ID), None
    else:
        _require_members(root, ("identity", "objects"), "root", ArtifactCode.ROOT_MEMBERS)
        identity = root["identity"]
        if not isinstance(identity, dict):
            raise ArtifactError("identity is not an object", code=ArtifactCode.ROOT_MEMBERS)
        members = ("model_id", "weights_id")
        _require_members(identity, members, "identity", ArtifactCode.ROOT_MEMBERS)
        model_id = _identifier(identity, "model_id", ArtifactCode.MODEL_ID)
        weights_id = _identifier(identity, "weights_id", ArtifactCode.WEIGHTS_ID)
    entries = root["objects"]
    if not isinstance(entries, list) or not entries:
        raise ArtifactError("objects is not a nonempty array", code=ArtifactCode.OBJECTS)
    objects: list[ObjectDescriptor] = []
    placement = PlacementCheck(payload_bytes)
    for index, entry in enumerate(entries):
        descriptor = _parse_object(index, entry)
        placement.add(descriptor)
        objects.append(descriptor)
    return Directory(version, model_id, weights_id, tuple(objects))


class PlacementCheck:
    """Walks objects in file order: unique names, rising aligned offsets, inside the payload."""

    def __init__(self, payload_bytes: int | None) -> None:
        """Start before the first object; without ``payload_bytes`` the end is not bounded."""
        self._payload_bytes = payload_bytes
        self._cursor = 0
        self._names: set[str] = set()

    def add(self, descriptor: ObjectDescriptor) -> None:
        """Check the next object.

        Raises:
            ArtifactError: the name was seen, or the span is out of place.
        """
        name, offset = descriptor.name, descriptor.offset
        if name in self._names:
            raise _fault(ArtifactCode.DUPLICATE_NAME, name, "the name is used twice")
        if offset < self._cursor:
            raise _fault(
                ArtifactCode.ORDER_OR_OVERLAP,
                name,
                f"starts at {offset}; the object before ends at {self._cursor}",
            )
        if offset % descriptor.alignment:
            raise _fault(
                ArtifactCode.MISALIGNED,
                name,
                f"offset {offset} is not a multiple of {descriptor.alignment}",
            )
        end = offset + descriptor.nbytes
        if end > MAX_U64:
            raise _fault(
                ArtifactCode.INTEGER_OVERFLOW, name, f"offset {offset} + {descriptor.nbytes} bytes"
            )
        if self._payload_bytes is not None and end > self._payload_bytes:
            raise _fault(
                ArtifactCode.OUT_OF_BOUNDS,
                name,
                f"ends at {end}; the payload has {self._payload_bytes} bytes",
            )
        self._names.add(name)
        self._cursor = end


def check_tensor(name: str, descriptor: TensorDescriptor) -> None:
    """Check that layout, rank and size of a tensor agree with its format and shape.

    Raises:
        ArtifactError: they do not.
    """
    format, layout, shape = descriptor.format, descriptor.layout, descriptor.shape
    if layout_of(format) is not layout:
        raise _fault(
            ArtifactCode.FORMAT_LAYOUT, name, f"{layout.value} does not take {format.value}"
        )
    rank_fits = len(shape) == 2 if layout is Layout.ROW_SPLIT else len(shape) <= MAX_RANK
    if not rank_fits:
        needed = "2" if layout is Layout.ROW_SPLIT else f"at most {MAX_RANK}"
        raise _fault(
            ArtifactCode.LAYOUT_SHAPE,
            name,
            f"has rank {len(shape)}; {layout.value} takes {needed}",
        )
    geometry = descriptor.geometry
    needed_bytes = geometry.payload_bytes
    padded = geometry.padded_columns if isinstance(geometry, RowSplitGeometry) else 0
    if max(needed_bytes, padded) > MAX_U64:
        raise _fault(ArtifactCode.INTEGER_OVERFLOW, name, f"layout of {list(shape)} leaves 64 bits")
    if needed_bytes != descriptor.nbytes:
        raise _fault(
            ArtifactCode.SIZE_MISMATCH,
            name,
            f"stores {descriptor.nbytes} bytes; layout needs {needed_bytes}",
        )


def quote(text: str) -> str:
    """Return untrusted text as short printable ASCII."""
    return ascii(text) if len(text) <= _QUOTE_LIMIT else f"{text[:_QUOTE_LIMIT]!a}..."


def _parse_object(index: int, entry: JsonValue) -> ObjectDescriptor:
    """Check one entry of ``objects`` by itself."""
    label = f"objects[{index}]"
    if not isinstance(entry, dict):
        raise ArtifactError(f"{label} is not an object", code=ArtifactCode.OBJECT_TYPE)
    kind = entry.get("kind")
    if kind is None:
        raise ArtifactError(f"{label} has no kind", code=ArtifactCode.OBJECT_KIND)
    if not isinstance(kind, str):
        raise ArtifactError(f"{label}: kind is not a string", code=ArtifactCode.VALUE_TYPE)
    if kind not in _MEMBERS:
        raise ArtifactError(
            f"{label}: kind {quote(kind)} is neither tensor nor resource",
            code=ArtifactCode.OBJECT_KIND,
        )
    _require_members(entry, _MEMBERS[kind], label, ArtifactCode.OBJECT_MEMBERS)
    name = entry["name"]
    if not isinstance(name, str) or not is_text(name):
        raise ArtifactError(
            f"{label}: name is not a nonempty string without NUL and lone surrogates",
            code=ArtifactCode.VALUE_TYPE,
        )
    return _parse_tensor(name, entry) if kind == "tensor" else _parse_resource(name, entry)


def _parse_tensor(name: str, entry: JsonObject) -> TensorDescriptor:
    """Check the values of a tensor entry whose members are right."""
    dimensions = entry["shape"]
    if not isinstance(dimensions, list):
        raise _fault(ArtifactCode.VALUE_TYPE, name, "shape is not an array")
    integers = {f"shape[{axis}]": extent for axis, extent in enumerate(dimensions)}
    integers |= {"offset": entry["offset"], "bytes": entry["bytes"]}
    format_name, layout_name = _string(name, entry, "format"), _string(name, entry, "layout")
    *shape, offset, nbytes = _integers(name, integers)
    try:
        format = TensorFormat(format_name)
    except ValueError:
        later = " (a later format; this build cannot read it)"
        hint = later if format_name in _LATER_FORMATS else ""
        message = f"format {quote(format_name)} is not registered{hint}"
        raise _fault(ArtifactCode.UNKNOWN_FORMAT, name, message) from None
    try:
        layout = Layout(layout_name)
    except ValueError:
        message = f"layout {quote(layout_name)} is not registered"
        raise _fault(ArtifactCode.UNKNOWN_LAYOUT, name, message) from None
    descriptor = TensorDescriptor(name, tuple(shape), format, layout, offset, nbytes)
    check_tensor(name, descriptor)
    return descriptor


def _parse_resource(name: str, entry: JsonObject) -> ResourceDescriptor:
    """Check the values of a resource entry whose members are right."""
    encoding = _string(name, entry, "encoding")
    offset, nbytes = _integers(name, {"offset": entry["offset"], "bytes": entry["bytes"]})
    if encoding != RAW_BYTES:
        message = f"encoding {quote(encoding)} is not registered"
        raise _fault(ArtifactCode.UNKNOWN_ENCODING, name, message)
    return ResourceDescriptor(name, offset, nbytes)


def _string(name: str, entry: JsonObject, member: str) -> str:
    """Return a nonempty string member of an object."""
    value = entry[member]
    if not isinstance(value, str) or not value:
        raise _fault(ArtifactCode.VALUE_TYPE, name, f"{member} is not a nonempty string")
    return value


def _integers(name: str, values: Mapping[str, JsonValue]) -> list[int]:
    """Return integer members in order: types of all first, then ranges."""
    integers: list[int] = []
    for member, value in values.items():
        # JSON true and false are Python integers too, so the type itself is compared.
        if type(value) is not int:
            raise _fault(ArtifactCode.VALUE_TYPE, name, f"{member} is not an integer")
        integers.append(value)
    for member, number in zip(values, integers, strict=True):
        least = 0 if member == "offset" else 1
        if not least <= number <= MAX_U64:
            raise _fault(
                ArtifactCode.VALUE_RANGE, name, f"{member} is {number}; {least} to {MAX_U64} fit"
            )
    return integers


def _identifier(members: JsonObject, member: str, code: ArtifactCode) -> str:
    """Return an identity string."""
    value = members[member]
    if not isinstance(value, str) or not is_text(value):
        raise ArtifactError(f"{member} is not a nonempty string", code=code)
    return value


def _require_members(
    members: JsonObject, expected: Sequence[str], label: str, code: ArtifactCode
) -> None:
    """Refuse a missing or an extra member."""
    missing = [member for member in expected if member not in members]
    extra = [quote(member) for member in members if member not in expected]
    if missing or extra:
        found = "; ".join(
            f"{what} {', '.join(names[:3])}"
            for what, names in (("missing", missing), ("unexpected", extra))
            if names
        )
        raise ArtifactError(f"{label} needs exactly {', '.join(expected)}: {found}", code=code)


def _fault(code: ArtifactCode, name: str, what: str) -> ArtifactError:
    """Describe a fault of a named object."""
    return ArtifactError(f"object {quote(name)} {what}", code=code, object=name)
