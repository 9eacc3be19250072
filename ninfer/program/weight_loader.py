"""Artifact bytes -> weight arena: only what is switched on, in file order, through pinned staging.

    mapped file -> pinned half A | B -> device: a plain tensor's final place
                                     -> device: encoded matrix -> make_resident -> its final place

The two halves alternate, so that reading the file overlaps the copy before. A matrix is brought
into the residency its device prefers as a whole, hence an encoded twin of the largest one exists
while loading, and only then. What a weight means is the model family's knowledge, which groups are
needed the configuration's.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ninfer.artifact.reader import ArtifactReader
from ninfer.config import EngineConfig, ProposalHead, SpeculativeBackend
from ninfer.device import ALIGNMENT, Arena, Event, Stream, host_array
from ninfer.errors import InvariantError
from ninfer.models.qwen_hybrid.binding import BoundModel
from ninfer.models.qwen_hybrid.inventory import ExpectedObject, ObjectGroup
from ninfer.models.qwen_hybrid.residency import (
    direct_dtype,
    is_matrix,
    resident_bytes,
    stored_format,
)
from ninfer.ops import linear
from ninfer.ops.context import OpContext
from ninfer.tensor import DType, Matrix, Tensor

STAGING_BYTES: Final = 32 << 20
"""Pinned bytes of one half: long enough that a copy's start-up does not count."""

Progress = Callable[[int, int], None]
"""Told (bytes loaded, bytes in all) after each object."""


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """Resident weights by object name; the weight arena owns their bytes."""

    matrices: Mapping[str, Matrix]
    tensors: Mapping[str, Tensor]


def resident_groups(config: EngineConfig) -> frozenset[ObjectGroup]:
    """Groups whose weights a configuration needs on the device."""
    groups = {ObjectGroup.TEXT}
    if config.has_vision:
        groups.add(ObjectGroup.VISION)
    match config.speculative:
        case SpeculativeBackend.NONE:
            return frozenset(groups)
        case SpeculativeBackend.MTP:
            groups.add(ObjectGroup.MTP)
        case SpeculativeBackend.DFLASH:
            groups.add(ObjectGroup.DFLASH)
        case SpeculativeBackend.DFLASH2:
            groups.add(ObjectGroup.DFLASH2)
    if config.proposal_head is ProposalHead.SHORT:
        groups.add(ObjectGroup.DRAFT_HEAD)
    return frozenset(groups)


def resident_objects(
    bound: BoundModel, groups: frozenset[ObjectGroup]
) -> tuple[ExpectedObject, ...]:
    """Objects of the groups that the artifact carries, in directory order within each group."""
    return tuple(
        stored for group, objects in bound.objects.items() if group in groups for stored in objects
    )


def weight_bytes(ctx: OpContext, objects: Iterable[ExpectedObject]) -> int:
    """Bytes of the weight arena that holds ``objects``."""
    return sum(_aligned(resident_bytes(ctx, stored)) for stored in objects)


def load_weights(
    ctx: OpContext,
    reader: ArtifactReader,
    objects: Iterable[ExpectedObject],
    arena: Arena,
    progress: Progress | None = None,
) -> LoadedWeights:
    """Make ``objects`` resident in ``arena`` and wait for the last of them.

    Args:
        ctx: device and stream; the stream orders copies and conversions.
        reader: the open artifact; views of it are read once, in file order.
        objects: what to load.
        arena: at least `weight_bytes` long.
        progress: told after each object.
    """
    objects = tuple(objects)
    sizes = {stored.name: _file_bytes(reader, stored.name) for stored in objects}
    total, largest = sum(sizes.values()), max(sizes.values())
    encoded = max(sizes[stored.name] for stored in objects if is_matrix(stored))
    half = min(STAGING_BYTES, largest)
    pinned = ctx.device.pinned_arena("weight staging", 2 * _aligned(half))
    try:
        twin = ctx.device.arena("encoded matrix", _aligned(encoded))
        try:
            loader = _Loader(ctx, reader, arena, _Staging(ctx.stream, pinned, half))
            whole = twin.take((encoded,), DType.U8)
            done = 0
            for stored in objects:
                loader.load(stored, whole)
                done += sizes[stored.name]
                if progress is not None:
                    progress(done, total)
            # The staging is still being read until here.
            ctx.stream.synchronize()
        finally:
            twin.close()
    finally:
        pinned.close()
    return LoadedWeights(loader.matrices, loader.tensors)


class _Staging:
    """Two pinned halves; a half is written again once the copy out of it has finished."""

    def __init__(self, stream: Stream, pinned: Arena, half_bytes: int) -> None:
        self._stream: Final = stream
        self._halves: Final = [pinned.take((half_bytes,), DType.U8) for _ in range(2)]
        self._copied: Final[list[Event | None]] = [None, None]
        self._turn = 0

    def upload(self, reader: ArtifactReader, name: str, destination: Tensor) -> None:
        """Enqueue the copy of an object's bytes to ``destination`` (flat U8 of that size)."""
        source = reader.view(name)
        half_bytes = self._halves[0].nbytes
        for first in range(0, destination.nbytes, half_bytes):
            count = min(half_bytes, destination.nbytes - first)
            copied = self._copied[self._turn]
            if copied is not None:
                copied.synchronize()
            part = self._halves[self._turn].rows(0, count)
            host_array(part)[:] = source[first : first + count]
            self._stream.upload(destination.rows(first, count), part)
            self._copied[self._turn] = self._stream.record()
            self._turn ^= 1


class _Loader:
    """Places objects one after another."""

    def __init__(
        self, ctx: OpContext, reader: ArtifactReader, arena: Arena, staging: _Staging
    ) -> None:
        self._ctx: Final = ctx
        self._reader: Final = reader
        self._arena: Final = arena
        self._staging: Final = staging
        self.matrices: Final[dict[str, Matrix]] = {}
        self.tensors: Final[dict[str, Tensor]] = {}

    def load(self, stored: ExpectedObject, encoded: Tensor) -> None:
        if is_matrix(stored):
            nbytes = _file_bytes(self._reader, stored.name)
            self._load_matrix(stored, encoded.rows(0, nbytes))
        else:
            self._load_tensor(stored)

    def _load_matrix(self, stored: ExpectedObject, encoded: Tensor) -> None:
        rows, columns = stored.shape
        storage = self._arena.take((resident_bytes(self._ctx, stored),), DType.U8)
        matrix = Matrix(stored_format(stored), storage, rows, columns, 0, rows)
        self._staging.upload(self._reader, stored.name, encoded)
        linear.make_resident(self._ctx, encoded, matrix)
        self.matrices[stored.name] = matrix

    def _load_tensor(self, stored: ExpectedObject) -> None:
        tensor = self._arena.take(stored.shape, direct_dtype(stored))
        flat = Tensor(tensor.address, DType.U8, (tensor.nbytes,))
        self._staging.upload(self._reader, stored.name, flat)
        self.tensors[stored.name] = tensor


def _file_bytes(reader: ArtifactReader, name: str) -> int:
    descriptor = reader.find(name)
    if descriptor is None:
        raise InvariantError(f"{name} was bound but is not in the file")
    return descriptor.nbytes


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
