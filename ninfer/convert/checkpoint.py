"""A checkpoint folder: its config, and every tensor of its shards with positional reads.

Shards are those of ``model.safetensors.index.json``, or the single ``model.safetensors``. Nothing
is mapped into memory, so what is resident is what was asked for. Knows no tensor by name.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from ninfer.convert.safetensors_header import SourceTensor, read_header, strict_object
from ninfer.errors import CheckpointError

CONFIG: Final = "config.json"
INDEX: Final = "model.safetensors.index.json"
SINGLE: Final = "model.safetensors"
_SUFFIX: Final = ".safetensors"
_LISTED_NAMES: Final = 8
_MAX_NAME_BYTES: Final = 255
_SPELLED_CHARACTERS: Final = 80

# Element types that weights may have; bfloat16 is kept as its words.
_DTYPES: Final[Mapping[str, npt.DTypeLike]] = {"BF16": "<u2", "F32": "<f4"}


class SourceCheckpoint:
    """One open checkpoint; owns the files. Use as a context manager or `close` it.

    Attributes:
        folder: where it lies.
        config_bytes: ``config.json`` unchanged.
        config: ``config.json`` parsed.
        tensors: every tensor by name.
        notes: what was ignored, one sentence each.
    """

    def __init__(self, folder: Path) -> None:
        """Open the folder and check every header.

        Raises:
            CheckpointError: something is missing or damaged.
            OSError: a file cannot be read.
        """
        if not folder.is_dir():
            raise CheckpointError(f"{folder} is not a folder with a checkpoint", field="source")
        self.folder = folder
        self._used: dict[tuple[int, int], Path] = {}
        self.config_bytes = self.read_file(CONFIG)
        self.config = strict_object(folder / CONFIG, self.config_bytes)
        self.notes: list[str] = []
        self._files: dict[Path, int] = {}
        self.tensors: Mapping[str, SourceTensor] = {}
        with contextlib.ExitStack() as on_error:
            on_error.callback(self.close)
            self.tensors = self._open_shards()
            on_error.pop_all()

    def find_file(self, name: str) -> bytes | None:
        """Content of a file of the folder, None when there is none."""
        path = self.folder / name
        if not path.is_file():
            return None
        self._note_use(path, path.stat())
        return path.read_bytes()

    def used_file(self, status: os.stat_result) -> Path | None:
        """The file of this checkpoint that was read or is open and is this one, if any.

        Links are seen through: files are compared by what they are, not by their names.
        """
        return self._used.get((status.st_dev, status.st_ino))

    def read_file(self, name: str) -> bytes:
        """Content of a file of the folder.

        Raises:
            CheckpointError: there is no such file, or it is empty.
        """
        content = self.find_file(name)
        if not content:
            what = "is missing" if content is None else "is empty"
            raise CheckpointError(f"{self.folder / name} {what}", field=name)
        return content

    def read(self, tensor: SourceTensor, first: int, count: int) -> npt.NDArray[Any]:
        """Read elements ``[first, first + count)`` of a tensor, in storage order.

        Returns:
            uint16 words of a BF16 tensor, float32 of an F32 one.

        Raises:
            CheckpointError: the file has become shorter.
            OSError: the file cannot be read.
        """
        words = np.empty(count, _DTYPES[tensor.dtype])
        rest = memoryview(words.view(np.uint8).data).cast("B")
        position = tensor.offset + first * words.itemsize
        while rest:
            done = os.preadv(self._files[tensor.path], [rest], position)
            if done == 0:
                raise CheckpointError(f"{tensor.path} became shorter while it was read")
            rest, position = rest[done:], position + done
        return words

    def close(self) -> None:
        """Close the files; idempotent."""
        while self._files:
            os.close(self._files.popitem()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _open_shards(self) -> dict[str, SourceTensor]:
        index = self._weight_map()
        shards = [SINGLE] if index is None else sorted(set(index.values()))
        self._check_presence(shards, index)
        tensors: dict[str, SourceTensor] = {}
        for shard in shards:
            path = self.folder / shard
            self._files[path] = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            self._note_use(path, os.fstat(self._files[path]))
            found = read_header(path, self._files[path])
            if repeated := sorted(tensors.keys() & found.keys()):
                raise CheckpointError(
                    f"tensor {repeated[0]!a} is in {tensors[repeated[0]].path.name} and in {shard}",
                    field=repeated[0],
                )
            if index is not None:
                _check_against_index(shard, found, index)
            tensors |= found
        self._note_unused(shards)
        return tensors

    def _weight_map(self) -> dict[str, str] | None:
        content = self.find_file(INDEX)
        if content is None:
            return None
        weight_map = strict_object(self.folder / INDEX, content).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError(f"{self.folder / INDEX} has no weight_map", field=INDEX)
        for shard in weight_map.values():
            if not _is_plain_name(shard):
                raise CheckpointError(
                    f"{self.folder / INDEX} names {_shortened(ascii(shard))}; a shard is a plain"
                    f" *{_SUFFIX} file with a name of at most {_MAX_NAME_BYTES} bytes",
                    field=INDEX,
                )
        return weight_map

    def _check_presence(self, shards: list[str], index: dict[str, str] | None) -> None:
        """Refuse missing files, all of them at once, and one file under two names."""
        missing = [shard for shard in shards if not (self.folder / shard).is_file()]
        if missing and index is None:
            others = sorted(path.name for path in self.folder.glob(f"*{_SUFFIX}"))
            hint = f"; there is no {INDEX} to say what {', '.join(others)} are" if others else ""
            raise CheckpointError(f"{self.folder / SINGLE} is missing{hint}", field=SINGLE)
        if missing and index is not None:
            counts = Counter(index.values())
            lost = sum(counts[shard] for shard in missing)
            raise CheckpointError(
                f"{self.folder}: {len(missing)} of {len(shards)} files are missing"
                f" ({', '.join(missing)}), and with them {lost} of {len(index)} tensors",
                field=INDEX,
            )
        seen: dict[tuple[int, int], str] = {}
        for shard in shards:
            status = (self.folder / shard).stat()
            other = seen.setdefault((status.st_dev, status.st_ino), shard)
            if other != shard:
                raise CheckpointError(
                    f"{self.folder / INDEX} names one file twice, as {other} and {shard}",
                    field=INDEX,
                )

    def _note_use(self, path: Path, status: os.stat_result) -> None:
        self._used[status.st_dev, status.st_ino] = path

    def _note_unused(self, shards: list[str]) -> None:
        for path in sorted(self.folder.glob(f"*{_SUFFIX}")):
            if path.name not in shards:
                self.notes.append(f"{path.name} is not in the index and was ignored")


def list_names(names: list[str]) -> str:
    """Spell a few names, and how many more there are."""
    listed = ", ".join(names[:_LISTED_NAMES])
    rest = len(names) - _LISTED_NAMES
    return listed if rest <= 0 else f"{listed} and {rest} more"


def _is_plain_name(shard: object) -> bool:
    """Whether a name can be that of a file of the folder, on any file system."""
    if not isinstance(shard, str) or not shard.endswith(_SUFFIX) or not shard.isprintable():
        return False
    is_short = len(shard.encode()) <= _MAX_NAME_BYTES
    return is_short and shard == os.path.basename(shard) and "\\" not in shard


def _shortened(text: str) -> str:
    return text if len(text) <= _SPELLED_CHARACTERS else f"{text[:_SPELLED_CHARACTERS]}..."


def _check_against_index(
    shard: str, found: Mapping[str, SourceTensor], index: Mapping[str, str]
) -> None:
    promised = {name for name, place in index.items() if place == shard}
    if lost := sorted(promised - found.keys()):
        raise CheckpointError(
            f"{shard} lacks {len(lost)} tensors that the index places there: {list_names(lost)}",
            field=lost[0],
        )
    if extra := sorted(found.keys() - promised):
        raise CheckpointError(
            f"{shard} holds {len(extra)} tensors that the index does not place there:"
            f" {list_names(extra)}",
            field=extra[0],
        )
