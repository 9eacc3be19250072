"""Write an artifact: plan every offset first, fill in the bytes, then appear under the final name.

The file grows under a temporary name in the target folder and is renamed once it is complete and on
disk; whatever goes wrong before, nothing is left behind. Output depends only on the arguments:
compact JSON, each object at its planned offset, zeros everywhere else. Knows no model. Source:
artifact page, sections 2, 3 and 7.
"""

import contextlib
import enum
import os
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from ninfer.artifact.directory import quote
from ninfer.artifact.format import (
    RESOURCE_ALIGNMENT,
    TENSOR_ALIGNMENT,
    ObjectDescriptor,
    ResourceDescriptor,
    TensorDescriptor,
    layout_of,
)
from ninfer.artifact.header import encode_header
from ninfer.artifact.span_coverage import SpanCoverage
from ninfer.errors import IllegalMove, InvariantError
from ninfer.tensor import Shape, TensorFormat
from ninfer.tensor_formats import Planes, RowSplitGeometry, align_up, encoded_bytes


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor to be given a place; its layout and size follow from format and shape."""

    name: str
    shape: Shape
    format: TensorFormat


@dataclass(frozen=True, slots=True)
class ResourceSpec:
    """A resource to be given a place."""

    name: str
    nbytes: int


def plan_layout(objects: Iterable[TensorSpec | ResourceSpec]) -> tuple[ObjectDescriptor, ...]:
    """Give each object, in order, the first offset that its alignment allows.

    Raises:
        ShapeError: a format cannot store a shape.
    """
    planned: list[ObjectDescriptor] = []
    cursor = 0
    for spec in objects:
        descriptor = _place(spec, cursor)
        planned.append(descriptor)
        cursor = descriptor.offset + descriptor.nbytes
    return tuple(planned)


class WriterState(enum.Enum):
    """Life of one output file."""

    OPEN = enum.auto()  # the temporary file exists and takes spans
    COMMITTED = enum.auto()  # the artifact exists under its name
    DISCARDED = enum.auto()  # nothing exists


class WriterEvent(enum.Enum):
    """What ends the writing."""

    COMMIT = enum.auto()
    DISCARD = enum.auto()


_NEXT: Final = {
    (WriterState.OPEN, WriterEvent.COMMIT): WriterState.COMMITTED,
    (WriterState.OPEN, WriterEvent.DISCARD): WriterState.DISCARDED,
}


class ArtifactWriter:
    """One version 2 file being written; owns the temporary file until `commit` or `discard`.

    As a context manager it commits on a clean exit and discards on an exception. Spans may come in
    any order, each byte once; not for use from several threads.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        model_id: str,
        weights_id: str,
        objects: Sequence[ObjectDescriptor],
    ) -> None:
        """Check everything, then create the temporary file.

        Args:
            path: final name; a file of that name is replaced by `commit`.
            model_id: model contract.
            weights_id: storage profile.
            objects: from `plan_layout`, or with larger gaps.

        Raises:
            ArtifactError: a reader would refuse this directory.
            OSError: the temporary file cannot be created.
        """
        header = encode_header(model_id, weights_id, objects)
        self._path = Path(path)
        self._payload_start = len(header)
        self._objects = {descriptor.name: descriptor for descriptor in objects}
        self._written = {descriptor.name: SpanCoverage() for descriptor in objects}
        self._file_bytes = self._payload_start + objects[-1].offset + objects[-1].nbytes
        # A short name of its own: the final one may already be as long as names can be.
        self._temporary = self._path.with_name(f".{secrets.token_hex(8)}.ninfer-partial")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        self._file = os.open(self._temporary, flags, 0o666)
        self._state = WriterState.OPEN
        try:
            self._pwrite(header, 0)
            os.ftruncate(self._file, self._file_bytes)
        except BaseException:
            self.discard()
            raise

    @property
    def state(self) -> WriterState:
        """Where the file is in its life."""
        return self._state

    @property
    def file_bytes(self) -> int:
        """Size of the finished file."""
        return self._file_bytes

    def write(
        self, name: str, offset: int, data: bytes | bytearray | memoryview | npt.NDArray[Any]
    ) -> None:
        """Write bytes of an object.

        Args:
            name: one of the planned objects.
            offset: first byte, from the start of the object.
            data: bytes, or an array whose little-endian words are taken as they are.

        Raises:
            InvariantError: unknown object, bytes outside it, bytes written before, or not open.
            OSError: the file system refused; the caller discards.
        """
        if self._state is not WriterState.OPEN:
            raise InvariantError(f"{self._path} is {self._state.name.lower()}, not open")
        descriptor = self._objects.get(name)
        if descriptor is None:
            raise InvariantError(f"object {quote(name)} was not planned")
        if isinstance(data, np.ndarray):
            data = np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
        nbytes = memoryview(data).nbytes
        if offset < 0 or offset + nbytes > descriptor.nbytes:
            raise InvariantError(
                f"bytes [{offset}, {offset + nbytes}) leave object {quote(name)} "
                f"of {descriptor.nbytes}"
            )
        if not self._written[name].add(offset, offset + nbytes):
            raise InvariantError(
                f"object {quote(name)}: bytes of [{offset}, {offset + nbytes}) come twice"
            )
        if nbytes:  # a view of no bytes cannot be cast
            self._pwrite(data, self._payload_start + descriptor.offset + offset)

    def write_rows(self, name: str, first_row: int, planes: Planes) -> None:
        """Write the planes of consecutive rows of a grouped matrix.

        Raises:
            InvariantError: as `write`, or the planes are not of this matrix.
        """
        descriptor = self._objects.get(name)
        geometry = descriptor.geometry if isinstance(descriptor, TensorDescriptor) else None
        if not isinstance(geometry, RowSplitGeometry):
            raise InvariantError(f"object {quote(name)} is not a planned grouped matrix")
        spans = geometry.row_spans(first_row, len(planes.scales))
        parts: tuple[npt.NDArray[Any], ...] = planes
        if any(span.nbytes != part.nbytes for span, part in zip(spans, parts, strict=True)):
            raise InvariantError(f"object {quote(name)}: planes of another format or width")
        for span, part in zip(spans, parts, strict=True):
            self.write(name, span.offset, part)

    def commit(self) -> None:
        """Check that nothing is missing, flush to disk and rename; on any error discard.

        Raises:
            IllegalMove: already ended.
            InvariantError: some bytes were never written.
            OSError: the file system refused.
        """
        following = self._following(WriterEvent.COMMIT)
        try:
            self._require_complete()
            os.fsync(self._file)
            os.replace(self._temporary, self._path)
        except BaseException:
            self.discard()
            raise
        self._state = following
        os.close(self._file)
        _sync_folder(self._path.parent)

    def discard(self) -> None:
        """Remove the temporary file; nothing happens when the writer has already ended."""
        if self._state is not WriterState.OPEN:
            return
        self._state = self._following(WriterEvent.DISCARD)
        try:
            os.close(self._file)
        finally:
            self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.discard()
        elif self._state is WriterState.OPEN:
            self.commit()

    def _following(self, event: WriterEvent) -> WriterState:
        """Return the state after ``event``."""
        following = _NEXT.get((self._state, event))
        if following is None:
            raise IllegalMove(
                f"{self._path} is {self._state.name.lower()}: no {event.name.lower()}"
            )
        return following

    def _require_complete(self) -> None:
        """Refuse to finish while a byte that carries a value is missing."""
        for name, descriptor in self._objects.items():
            for span in descriptor.value_spans:
                missing = self._written[name].first_gap(span.offset, span.offset + span.nbytes)
                if missing is not None:
                    raise InvariantError(
                        f"object {quote(name)}: byte {missing} of {descriptor.nbytes} "
                        "was never written"
                    )

    def _pwrite(self, data: bytes | bytearray | memoryview, position: int) -> None:
        """Write all of ``data`` at a position of the file."""
        rest = memoryview(data).cast("B")
        while rest:
            count = os.pwrite(self._file, rest, position)
            rest, position = rest[count:], position + count


def _place(spec: TensorSpec | ResourceSpec, cursor: int) -> ObjectDescriptor:
    """Place one object at or after ``cursor``."""
    if isinstance(spec, ResourceSpec):
        return ResourceDescriptor(spec.name, align_up(cursor, RESOURCE_ALIGNMENT), spec.nbytes)
    return TensorDescriptor(
        spec.name,
        spec.shape,
        spec.format,
        layout_of(spec.format),
        align_up(cursor, TENSOR_ALIGNMENT),
        encoded_bytes(spec.format, spec.shape),
    )


def _sync_folder(folder: Path) -> None:
    """Make the rename durable where the file system can; the file itself is complete either way."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
