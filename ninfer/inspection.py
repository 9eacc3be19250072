"""Look into an artifact without a device: its directory, its digest, its tokenizer and template.

Used by the commands that must work on any machine. Knows nothing of programs and engines.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ninfer.artifact.format import (
    RAW_BYTES,
    ArtifactError,
    ObjectDescriptor,
    ResourceDescriptor,
    TensorDescriptor,
)
from ninfer.artifact.reader import ArtifactReader
from ninfer.frontend.frontend import Frontend
from ninfer.models.qwen_hybrid.binding import bind

_DIGEST_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class ArtifactReport:
    """What a structurally valid file says about itself.

    Attributes:
        weights_id: storage profile; version 1 files name none.
        model_error: why the registered model cannot be bound, None when it can.
        capabilities: facts of the bound model; empty when it cannot be bound.
    """

    path: Path
    version: int
    model_id: str
    weights_id: str | None
    file_bytes: int
    payload_start: int
    objects: tuple[ObjectDescriptor, ...]
    model_error: ArtifactError | None
    capabilities: dict[str, Any]

    @property
    def unused_bytes(self) -> int:
        """Bytes behind the last object: legal, without meaning, and written by no converter."""
        ends = (item.offset + item.nbytes for item in self.objects)
        return self.file_bytes - self.payload_start - max(ends, default=0)

    def format_counts(self) -> dict[str, int]:
        """Number of objects of each stored format, resources under their encoding."""
        return dict(Counter(_format_name(item) for item in self.objects))

    def directory(self) -> dict[str, Any]:
        """Return the report as a JSON document, objects in file order."""
        return {
            "version": self.version,
            "model_id": self.model_id,
            "weights_id": self.weights_id,
            "file_bytes": self.file_bytes,
            "payload_start": self.payload_start,
            "formats": self.format_counts(),
            "model_error": None if self.model_error is None else self.model_error.code,
            "capabilities": self.capabilities,
            "objects": [_object_json(item) for item in self.objects],
        }


def describe(path: str | os.PathLike[str]) -> ArtifactReport:
    """Open a file, check its directory and, where the model is known, its whole inventory.

    Raises:
        ArtifactError: the file is structurally invalid.
        OSError: the file cannot be read.
    """
    with ArtifactReader.open(path) as reader:
        error, capabilities = None, {}
        try:
            capabilities = _capabilities(reader)
        except ArtifactError as caught:
            error = caught
        return ArtifactReport(
            path=Path(path),
            version=reader.version,
            model_id=reader.model_id,
            weights_id=reader.weights_id,
            file_bytes=reader.file_bytes,
            payload_start=reader.payload_start,
            objects=reader.objects,
            model_error=error,
            capabilities=capabilities,
        )


def file_digest(
    path: str | os.PathLike[str], progress: Callable[[int, int], None] = lambda done, total: None
) -> str:
    """Return the SHA-256 of a whole file in hexadecimal."""
    digest, done, total = hashlib.sha256(), 0, os.stat(path).st_size
    with open(path, "rb") as file:
        while block := file.read(_DIGEST_BLOCK):
            digest.update(block)
            done += len(block)
            progress(done, total)
    return digest.hexdigest()


def open_frontend(path: str | os.PathLike[str], *, chat_template: str | None = None) -> Frontend:
    """Build the frontend of an artifact, without weights.

    Raises:
        ArtifactError: the file is invalid, or its model is not registered.
    """
    with ArtifactReader.open(path) as reader:
        return Frontend(bind(reader).resources, chat_template=chat_template)


def _capabilities(reader: ArtifactReader) -> dict[str, Any]:
    bound = bind(reader)
    geometry = bound.geometry
    groups = sorted(group.value for group in bound.objects)
    return {
        "family": bound.package.family.value,
        "weights_id": bound.weights_id,
        "context_native": geometry.max_positions,
        "layers": len(geometry.layers),
        "hidden": geometry.hidden,
        "vocab_rows": geometry.vocab_rows,
        "addressable_tokens": bound.addressable_tokens,
        "groups": groups,
    }


def _format_name(item: ObjectDescriptor) -> str:
    return item.format.value if isinstance(item, TensorDescriptor) else RAW_BYTES


def _object_json(item: ObjectDescriptor) -> dict[str, Any]:
    match item:
        case TensorDescriptor():
            return {
                "name": item.name,
                "kind": "tensor",
                "shape": list(item.shape),
                "format": item.format.value,
                "layout": item.layout.value,
                "offset": item.offset,
                "bytes": item.nbytes,
            }
        case ResourceDescriptor():
            return {
                "name": item.name,
                "kind": "resource",
                "encoding": RAW_BYTES,
                "offset": item.offset,
                "bytes": item.nbytes,
            }
