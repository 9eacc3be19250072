"""Names, limits and descriptors of `.ninfer` files, versions 1 and 2.

    0      8 bytes   4e 49 4e 46 45 52 00 VV       VV = 01 or 02
    8      u64 LE    json_bytes
    16     directory: json_bytes of UTF-8 JSON
    ...    padding up to payload_start = up(16 + json_bytes, 4096)
           payload; object offsets count from here

Knows no model: names are opaque. Source: artifact page, sections 2 to 5 and 7.
"""

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ninfer.errors import RequestError
from ninfer.tensor import Shape, TensorFormat
from ninfer.tensor_formats import DirectGeometry, RowSplitGeometry, Span, geometry_of

MAGIC: Final = b"NINFER\x00"
"""First seven bytes of a file; the version follows."""

PREFIX_BYTES: Final = 16
"""Magic, version and the length of the directory."""

READABLE_VERSIONS: Final = (1, 2)
WRITTEN_VERSION: Final = 2

PAYLOAD_ALIGNMENT: Final = 4096
TENSOR_ALIGNMENT: Final = 256
RESOURCE_ALIGNMENT: Final = 1

MAX_U64: Final = (1 << 64) - 1
MAX_RANK: Final = 16

MAX_DIRECTORY_BYTES: Final = 1 << 28
"""Our limit on json_bytes, far above any real directory: a damaged length must not fill memory."""

RAW_BYTES: Final = "raw-bytes-v1"
"""The one encoding of resources: the span is the resource."""


class Layout(enum.Enum):
    """How a tensor's bytes are arranged; the value is the file's spelling."""

    CONTIGUOUS = "contiguous-le-v1"
    ROW_SPLIT = "row-split-k128-v1"


class ArtifactCode(enum.StrEnum):
    """Everything that can be wrong with a file; the second block is for binders."""

    TRUNCATED_PREFIX = "truncated_prefix"
    BAD_MAGIC = "bad_magic"
    UNSUPPORTED_VERSION = "unsupported_version"
    JSON_LENGTH = "json_length"
    PAYLOAD_START = "payload_start"
    JSON_ENCODING = "json_encoding"
    JSON_SYNTAX = "json_syntax"
    JSON_DUPLICATE_MEMBER = "json_duplicate_member"
    ROOT_MEMBERS = "root_members"
    MODEL_ID = "model_id"
    WEIGHTS_ID = "weights_id"
    OBJECTS = "objects"
    OBJECT_TYPE = "object_type"
    OBJECT_KIND = "object_kind"
    OBJECT_MEMBERS = "object_members"
    VALUE_TYPE = "value_type"
    VALUE_RANGE = "value_range"
    UNKNOWN_FORMAT = "unknown_format"
    UNKNOWN_LAYOUT = "unknown_layout"
    UNKNOWN_ENCODING = "unknown_encoding"
    FORMAT_LAYOUT = "format_layout"
    LAYOUT_SHAPE = "layout_shape"
    SIZE_MISMATCH = "size_mismatch"
    DUPLICATE_NAME = "duplicate_name"
    ORDER_OR_OVERLAP = "order_or_overlap"
    MISALIGNED = "misaligned"
    OUT_OF_BOUNDS = "out_of_bounds"
    INTEGER_OVERFLOW = "integer_overflow"

    UNKNOWN_MODEL = "unknown_model"
    UNKNOWN_WEIGHTS = "unknown_weights"
    MISSING_OBJECT = "missing_object"
    UNEXPECTED_OBJECT = "unexpected_object"
    WRONG_KIND = "wrong_kind"
    DESCRIPTOR_MISMATCH = "descriptor_mismatch"
    SHORTLIST = "shortlist"
    RESOURCE_CONTENT = "resource_content"


class ArtifactError(RequestError, ValueError):
    """A file is not a readable artifact, or not the one a model needs.

    Attributes:
        code: the `ArtifactCode`, usable as a string.
        path: the file, when known.
        object: name of the object at fault, when known.
    """

    def __init__(
        self,
        message: str,
        *,
        code: ArtifactCode,
        path: Path | None = None,
        object: str | None = None,
    ) -> None:
        super().__init__(message, code=code)
        self.path = path
        self.object = object

    def __str__(self) -> str:
        message = super().__str__()
        return message if self.path is None else f"{self.path}: {message}"


@dataclass(frozen=True, slots=True)
class TensorDescriptor:
    """One stored tensor.

    Attributes:
        name: unique in the file.
        shape: extents, last one fastest; ``()`` is a scalar.
        format: number format.
        layout: arrangement of the bytes.
        offset: first byte, from the start of the payload.
        nbytes: encoded size.
    """

    name: str
    shape: Shape
    format: TensorFormat
    layout: Layout
    offset: int
    nbytes: int

    @property
    def geometry(self) -> DirectGeometry | RowSplitGeometry:
        """Where values lie inside the tensor's bytes."""
        return geometry_of(self.format, self.shape)

    @property
    def alignment(self) -> int:
        """What ``offset`` is a multiple of."""
        return TENSOR_ALIGNMENT

    @property
    def value_spans(self) -> tuple[Span, ...]:
        """Bytes that carry values; what lies between them is zero padding."""
        return self.geometry.spans


@dataclass(frozen=True, slots=True)
class ResourceDescriptor:
    """One stored file, bytes unchanged; ``offset`` counts from the start of the payload."""

    name: str
    offset: int
    nbytes: int

    @property
    def alignment(self) -> int:
        """What ``offset`` is a multiple of."""
        return RESOURCE_ALIGNMENT

    @property
    def value_spans(self) -> tuple[Span, ...]:
        """Every byte."""
        return (Span(0, self.nbytes),)


ObjectDescriptor = TensorDescriptor | ResourceDescriptor


@dataclass(frozen=True, slots=True)
class Directory:
    """What the JSON of a file says.

    Attributes:
        version: 1 or 2.
        model_id: model contract.
        weights_id: storage profile; version 1 has none.
        objects: in file order, which is offset order.
    """

    version: int
    model_id: str
    weights_id: str | None
    objects: tuple[ObjectDescriptor, ...]


def layout_of(format: TensorFormat) -> Layout:
    """Return the one layout that takes ``format``."""
    match format:
        case TensorFormat.BF16 | TensorFormat.FP32 | TensorFormat.I32:
            return Layout.CONTIGUOUS
        case TensorFormat.Q4 | TensorFormat.Q5 | TensorFormat.Q6 | TensorFormat.W8:
            return Layout.ROW_SPLIT


def is_text(value: object) -> bool:
    """Tell whether a value may be a name: nonempty, without NUL or lone surrogates."""
    return (
        isinstance(value, str)
        and value != ""
        and not any(c == "\0" or "\ud800" <= c <= "\udfff" for c in value)
    )
