"""Open an artifact, check its whole directory, and hand out views of its bytes.

Opening reads the prefix and the directory only; the payload is mapped and read when a view is.
Knows no model: names are looked up, never interpreted. Source: artifact page, sections 2 and 8.
"""

import errno
import mmap
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from ninfer.artifact.directory import parse_directory, quote
from ninfer.artifact.format import (
    MAGIC,
    MAX_DIRECTORY_BYTES,
    PAYLOAD_ALIGNMENT,
    PREFIX_BYTES,
    READABLE_VERSIONS,
    ArtifactCode,
    ArtifactError,
    Directory,
    ObjectDescriptor,
)
from ninfer.errors import InvariantError
from ninfer.tensor_formats import align_up

# Without O_NONBLOCK, opening a pipe waits for a writer that may never come.
_OPEN_FLAGS: Final = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)


class ArtifactReader:
    """One open artifact; owns the mapping of the file. Use as a context manager or `close` it.

    Make one with `open`. Views stay valid after `close`, as long as they are referenced: the
    mapping itself then ends with the last of them. The file must not be shortened while mapped.
    """

    def __init__(
        self, path: Path, directory: Directory, payload_start: int, mapping: mmap.mmap
    ) -> None:
        self._path = path
        self._directory = directory
        self._payload_start = payload_start
        self._mapping: mmap.mmap | None = mapping
        self._file_bytes = len(mapping)
        self._by_name = {descriptor.name: descriptor for descriptor in directory.objects}

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open and check a file of version 1 or 2.

        Raises:
            ArtifactError: the content is not a valid artifact.
            OSError: the file cannot be opened or read, or is not a regular file.
        """
        path = Path(path)
        descriptor = os.open(path, _OPEN_FLAGS)
        try:
            _require_regular(descriptor)
            directory, payload_start = _read_directory(descriptor)
            mapping = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        except ArtifactError as error:
            error.path = path
            raise
        except OSError as error:
            error.filename = error.filename or str(path)  # Reads of a descriptor name no file.
            raise
        finally:
            os.close(descriptor)
        return cls(path, directory, payload_start, mapping)

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def version(self) -> int:
        """Version of the file, 1 or 2."""
        return self._directory.version

    @property
    def model_id(self) -> str:
        """Model contract the file claims."""
        return self._directory.model_id

    @property
    def weights_id(self) -> str | None:
        """Storage profile the file claims; version 1 says none."""
        return self._directory.weights_id

    @property
    def objects(self) -> tuple[ObjectDescriptor, ...]:
        """Every object in file order."""
        return self._directory.objects

    @property
    def payload_start(self) -> int:
        """Position in the file that object offsets count from."""
        return self._payload_start

    @property
    def file_bytes(self) -> int:
        """Size of the file."""
        return self._file_bytes

    def find(self, name: str) -> ObjectDescriptor | None:
        """Return the object of that name, if the file has it."""
        return self._by_name.get(name)

    def view(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the object's bytes as a flat read-only view of the mapped file.

        Raises:
            ArtifactError: there is no such object.
            InvariantError: the reader is closed.
        """
        if self._mapping is None:
            raise InvariantError(f"{self._path} is closed")
        descriptor = self._by_name.get(name)
        if descriptor is None:
            raise ArtifactError(
                f"there is no object {quote(name)}",
                code=ArtifactCode.MISSING_OBJECT,
                path=self._path,
                object=name,
            )
        return np.frombuffer(
            self._mapping, np.uint8, descriptor.nbytes, self._payload_start + descriptor.offset
        )

    def close(self) -> None:
        """Give the mapping up; idempotent."""
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            try:
                mapping.close()
            except BufferError:
                # Views are still out; unmapping under them would be a crash, so they keep it.
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _require_regular(descriptor: int) -> None:
    """Refuse folders, pipes and devices: they can be opened, not mapped."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file")


def _read_directory(descriptor: int) -> tuple[Directory, int]:
    """Check prefix and directory; return the latter and the start of the payload."""
    file_bytes = os.fstat(descriptor).st_size
    prefix = _read(descriptor, 0, PREFIX_BYTES)
    if len(prefix) < PREFIX_BYTES:
        raise ArtifactError(
            f"the file has {len(prefix)} bytes; an artifact starts with {PREFIX_BYTES}",
            code=ArtifactCode.TRUNCATED_PREFIX,
        )
    version = _check_magic(prefix)
    json_bytes = int.from_bytes(prefix[8:16], "little")
    available = file_bytes - PREFIX_BYTES
    if not 0 < json_bytes <= min(available, MAX_DIRECTORY_BYTES):
        raise ArtifactError(
            f"the directory has {json_bytes} bytes; {available} follow the prefix and at most "
            f"{MAX_DIRECTORY_BYTES} are read",
            code=ArtifactCode.JSON_LENGTH,
        )
    payload_start = align_up(PREFIX_BYTES + json_bytes, PAYLOAD_ALIGNMENT)
    if file_bytes < payload_start:
        raise ArtifactError(
            f"the file has {file_bytes} bytes; its payload starts at {payload_start}",
            code=ArtifactCode.PAYLOAD_START,
        )
    text = _read(descriptor, PREFIX_BYTES, json_bytes)
    return parse_directory(version, text, file_bytes - payload_start), payload_start


def _check_magic(prefix: bytes) -> int:
    """Return the version named by the prefix."""
    if prefix[: len(MAGIC)] != MAGIC:
        raise ArtifactError("the file is not an artifact", code=ArtifactCode.BAD_MAGIC)
    version = prefix[len(MAGIC)]
    if version not in READABLE_VERSIONS:
        readable = " and ".join(map(str, READABLE_VERSIONS))
        raise ArtifactError(
            f"the file is version {version}; this build reads {readable}. Pin an older revision of "
            "the published file (its main branch moves to newer versions), or convert the "
            "checkpoint with `python -m ninfer convert`",
            code=ArtifactCode.UNSUPPORTED_VERSION,
        )
    return version


def _read(descriptor: int, offset: int, nbytes: int) -> bytes:
    """Read ``nbytes``, or fewer where the file ends."""
    parts: list[bytes] = []
    while nbytes and (part := os.pread(descriptor, nbytes, offset)):
        parts.append(part)
        offset += len(part)
        nbytes -= len(part)
    return b"".join(parts)
