"""The text schedule without a Program, on any device: one sequence, slot 0, pages in order.

Numbers travel through pinned memory, so that the same bench serves the host and a card.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ninfer.artifact.reader import ArtifactReader
from ninfer.device import host_array
from ninfer.host.device import HostDevice
from ninfer.models.qwen_hybrid import text
from ninfer.models.qwen_hybrid.activations import (
    MoeActivations,
    TextActivations,
    activation_bytes,
    carve_activations,
)
from ninfer.models.qwen_hybrid.binding import BoundModel
from ninfer.models.qwen_hybrid.inventory import ObjectGroup
from ninfer.models.qwen_hybrid.text import TextCaches, TextColumns, TextModel
from ninfer.models.qwen_hybrid.weights import text_weights
from ninfer.ops.context import make_context
from ninfer.program import kv_planes, state_planes
from ninfer.program.synthetic_weights import SyntheticWeights, synthesise_weights
from ninfer.program.weight_loader import load_weights, resident_objects, weight_bytes
from ninfer.tensor import DType, Tensor
from ninfer.tensor_formats import bf16_to_f32

F32 = npt.NDArray[np.float32]
MAX_TOKENS = 192
SLACK_BYTES = 1 << 22
NO_ROUTER = np.empty((0, 0), np.float32)


@dataclass(frozen=True)
class BenchRun:
    """What one call left behind, copied.

    ``residual`` [T, H] is the stream after the last layer, ``logits`` [T, vocab_rows]; ``router``
    [T, E] of the last layer, if it has experts.
    """

    residual: F32
    logits: F32
    router: F32


class TextBench:
    """Owner of a device with one model; ``run`` continues the sequence, ``reset`` empties it.

    Args:
        bound: the model.
        reader: its open artifact, or what stands in for one.
        kv: element type of the cache; the activation type when None.
        open_device: makes the device.
    """

    def __init__(
        self,
        bound: BoundModel,
        reader: ArtifactReader | SyntheticWeights,
        kv: DType | None = None,
        open_device: Callable[[], Any] = HostDevice,
    ) -> None:
        self.geometry = bound.geometry
        self.device = open_device()
        kv = kv or self.device.activation_dtype
        self.ctx = make_context(self.device, self.device.stream())
        objects = resident_objects(bound, frozenset({ObjectGroup.TEXT}))
        weights = self.device.arena("weights", weight_bytes(self.ctx, objects))
        if isinstance(reader, SyntheticWeights):
            loaded = synthesise_weights(self.ctx, reader, objects, weights)
        else:
            loaded = load_weights(self.ctx, reader, objects, weights)
        views = text_weights(bound, loaded.matrices, loaded.tensors)
        work_bytes = activation_bytes(self.ctx, self.geometry, views, MAX_TOKENS)
        pages = MAX_TOKENS // 64
        logit_bytes = 4 * MAX_TOKENS * self.geometry.vocab_rows
        state_bytes = sum(
            Tensor(0, dtype, shape).nbytes
            for shapes in (
                state_planes.plane_shapes(self.geometry, 1, 1, self.device.activation_dtype),
                kv_planes.plane_shapes(self.geometry, pages, kv),
            )
            for shape, dtype in shapes
        )
        nbytes = work_bytes + logit_bytes + state_bytes + SLACK_BYTES
        arena, pinned = self.device.arena("bench", nbytes), self.device.pinned_arena("pin", nbytes)
        self._arenas = (weights, arena, pinned)
        self._staging = pinned.take((nbytes - SLACK_BYTES // 2,), DType.U8)
        self._table = arena.take((1, pages), DType.I32)
        self._write(self._table, np.arange(pages, dtype=np.int32))
        self.state = state_planes.take_planes(
            arena, self.geometry, 1, 1, self.device.activation_dtype
        )
        self.kv = kv_planes.take_planes(arena, self.geometry, pages, kv, self._table)
        self._workspace = arena.take((work_bytes,), DType.U8)
        self._logits = arena.take((MAX_TOKENS, self.geometry.vocab_rows), DType.F32)
        self._inputs = arena.take((8 * MAX_TOKENS,), DType.I32)
        self.model = TextModel(self.geometry, views, TextCaches(self.kv.layers, self.state.layers))
        self.reset()

    def reset(self) -> None:
        self.frontier = 0
        self.fold = 0
        self.state.clear(self.ctx.stream, 0)

    def truncated(self, num_layers: int) -> TextModel:
        """The model without its last layers."""
        weights = replace(self.model.weights, layers=self.model.weights.layers[:num_layers])
        return replace(self.model, weights=weights)

    def prefill(
        self,
        tokens: Sequence[int],
        *,
        model: TextModel | None = None,
        axes: npt.ArrayLike | None = None,
    ) -> BenchRun:
        """Run ``tokens`` as one chunk."""
        run = self._run(text.prefill_columns, tokens, model or self.model, axes)
        self.fold = 0
        return run

    def decode(self, token: int, *, model: TextModel | None = None) -> BenchRun:
        """Run and accept one column."""
        run = self._run(text.decode_columns, [token], model or self.model, None)
        self.fold = 1
        return run

    def fold_records(self) -> None:
        """Fold what is recorded, as the next unit would, by running a column that is dropped."""
        if self.fold:
            self._run(text.decode_columns, [0], self.model, None)
            self.frontier -= 1
            self.fold = 0

    def _run(
        self, schedule: Any, tokens: Sequence[int], model: TextModel, axes: npt.ArrayLike | None
    ) -> BenchRun:
        count = len(tokens)
        columns, activations = self._columns(tokens, axes)
        self._poison(self._workspace)
        schedule(self.ctx, model, columns, activations)
        residual = self.read(activations.residual)
        own = activations.ffn
        router = self.read(own.router)[:, :-1] if isinstance(own, MoeActivations) else NO_ROUTER
        logits = self._logits.rows(0, count)
        self._poison(logits)
        text.output_logits(self.ctx, model, activations, logits)
        self.ctx.stream.synchronize()
        self.frontier += count
        return BenchRun(residual, self.read(logits), router)

    def _columns(
        self, tokens: Sequence[int], axes: npt.ArrayLike | None
    ) -> tuple[TextColumns, TextActivations]:
        count = len(tokens)
        positions = np.arange(self.frontier, self.frontier + count)
        columns = TextColumns(
            tokens=self._put(0, tokens),
            positions=self._put(1, positions),
            rope_positions=self._put(5, positions if axes is None else axes, 3),
            table_rows=self._put(2, np.zeros(count)),
            slots=self._put(3, [0]),
            fold=self._put(4, [self.fold]),
        )
        activations = carve_activations(
            self.ctx, self.geometry, self.model.weights, count, self._workspace
        )
        return columns, activations

    def read(self, tensor: Tensor) -> npt.NDArray[Any]:
        """A copy of what a tensor holds; bf16 words as F32."""
        staged = self._staging.rows(0, tensor.nbytes)
        self.ctx.stream.download(staged, Tensor(tensor.address, DType.U8, (tensor.nbytes,)))
        self.ctx.stream.synchronize()
        words = host_array(Tensor(staged.address, tensor.dtype, tensor.shape))
        return bf16_to_f32(words) if tensor.dtype is DType.BF16 else words.copy()

    def _poison(self, tensor: Tensor) -> None:
        """All-ones bytes: NaN in every float."""
        self._write(tensor, np.full(tensor.nbytes, 0xFF, np.uint8))

    def _write(self, tensor: Tensor, values: npt.NDArray[Any]) -> None:
        octets = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        staged = self._staging.rows(0, octets.size)
        host_array(staged)[:] = octets
        self.ctx.stream.upload(Tensor(tensor.address, DType.U8, (octets.size,)), staged)
        self.ctx.stream.synchronize()

    def _put(self, field: int, values: npt.ArrayLike, num_axes: int = 1) -> Tensor:
        array = np.asarray(values, np.int32)
        if num_axes > 1:
            array = np.broadcast_to(array, (num_axes, array.shape[-1]))
        flat: Tensor = self._inputs.rows(field * MAX_TOKENS, array.size)
        self._write(flat, array)
        return flat.reshape(*array.shape)

    def close(self) -> None:
        for arena in self._arenas:
            arena.close()
        self.device.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
