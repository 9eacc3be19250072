"""Start-up of a Program: check the options, plan and allocate every arena, load, capture.

    refuse what this build cannot do -> weights -> solve the KV capacity -> all other arenas
    -> planes and tables -> upload the round's block -> warm up and capture graphs

Afterwards nothing is allocated any more. Everything made here goes onto one stack, which closes it
in reverse order when the Program closes, or at once when start-up fails.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from ninfer.artifact.reader import ArtifactReader
from ninfer.config import EngineConfig, Purpose, SpeculativeBackend
from ninfer.device import ALIGNMENT, Arena, Device
from ninfer.errors import ConfigurationError, OutOfDeviceMemory, UnsupportedFeature
from ninfer.models.qwen_hybrid.activations import activation_bytes
from ninfer.models.qwen_hybrid.binding import BoundModel
from ninfer.models.qwen_hybrid.text import TextCaches, TextModel
from ninfer.models.qwen_hybrid.weights import TextWeights, text_weights
from ninfer.ops.context import OpContext, make_context
from ninfer.program import kv_planes, state_planes
from ninfer.program.decode_round import DecodeRound
from ninfer.program.kv_planes import KvPlanes
from ninfer.program.kv_pool import pages_for
from ninfer.program.model_units import ModelUnits, UnitExecutors
from ninfer.program.physical_stores import PhysicalStores, StoreShape
from ninfer.program.plane_copies import PlaneCopies
from ninfer.program.prefill import Prefill
from ninfer.program.program import GenerationParts, ModelProgram
from ninfer.program.resource_projection import CopySizes
from ninfer.program.resource_transaction import ResourceTransitions
from ninfer.program.round_io import PrefillChunk, RoundIo, RoundShape
from ninfer.program.scoring_window import ScoringStaging, ScoringWindow
from ninfer.program.state_planes import StatePlanes
from ninfer.program.weight_loader import (
    Progress,
    load_weights,
    resident_groups,
    resident_objects,
    weight_bytes,
)
from ninfer.tensor import DType, Shape, Tensor


def build_program(
    config: EngineConfig,
    bound: BoundModel,
    reader: ArtifactReader,
    device: Device,
    progress: Progress | None = None,
) -> ModelProgram:
    """Build the Program of one model; the caller keeps owning ``reader`` and ``device``.

    Args:
        config: start-up options; its purpose decides which calls the Program accepts.
        bound: the checked artifact.
        reader: the open artifact; not needed any more when this returns.
        device: where everything lives.
        progress: told (bytes loaded, bytes in all) while weights are loaded.

    Raises:
        ConfigurationError: an option does not fit this model or device.
        UnsupportedFeature: an option this build does not offer.
        OutOfDeviceMemory: the plan does not fit; nothing is left allocated.
    """
    _refuse_unsupported(config)
    _check_context(config, bound)
    with ExitStack() as stack:
        builder = _Builder(config, bound, device, stack)
        weights = builder.load(reader, progress)
        parts = builder.assemble(weights)
        return ModelProgram(parts, stack.pop_all())


@dataclass(frozen=True, slots=True)
class _Extents:
    """Everything the arenas' sizes follow from."""

    max_columns: int
    num_slots: int
    num_records: int
    round: RoundShape
    kv_dtype: DType


class _Builder:
    """Makes the parts in order; each arena goes onto the stack as it is made."""

    def __init__(
        self, config: EngineConfig, bound: BoundModel, device: Device, stack: ExitStack
    ) -> None:
        self._config: Final = config
        self._bound: Final = bound
        self._device: Final = device
        self._stack: Final = stack
        self._ctx: Final[OpContext] = make_context(device, device.stream())
        self._extents: Final = _extents(config, bound, device)

    def load(self, reader: ArtifactReader, progress: Progress | None) -> TextWeights:
        """Load what the configuration needs and view the text model's part of it."""
        objects = resident_objects(self._bound, resident_groups(self._config))
        arena = self._arena("weights", weight_bytes(self._ctx, objects))
        loaded = load_weights(self._ctx, reader, objects, arena, progress)
        return text_weights(self._bound, loaded.matrices, loaded.tensors)

    def assemble(self, weights: TextWeights) -> GenerationParts | ScoringWindow:
        """Allocate everything else and compose the parts of the purpose."""
        extents, geometry = self._extents, self._bound.geometry
        act = self._device.activation_dtype
        state_shapes = state_planes.plane_shapes(
            geometry, extents.num_slots + 1, extents.num_records, act
        )
        state = state_planes.take_planes(
            self._arena("state", _planned_bytes(state_shapes)),
            geometry,
            extents.num_slots + 1,
            extents.num_records,
            act,
        )
        workspace_bytes = activation_bytes(self._ctx, geometry, extents.max_columns)
        workspace = self._arena("workspace", workspace_bytes).take((workspace_bytes,), DType.U8)
        io = RoundIo(
            self._arena("round", RoundIo.device_bytes(extents.round)),
            self._pinned("round", RoundIo.pinned_bytes(extents.round)),
            extents.round,
        )
        staging = self._scoring_staging()
        # Last, because an automatic capacity takes what is left.
        num_pages = self._num_pages()
        kv_shapes = kv_planes.plane_shapes(geometry, num_pages, extents.kv_dtype)
        kv = kv_planes.take_planes(
            self._arena("kv", _planned_bytes(kv_shapes)),
            geometry,
            num_pages,
            extents.kv_dtype,
            io.block_table,
        )
        model = TextModel(geometry, weights, TextCaches(kv.layers, state.layers))
        io.start(self._ctx.stream)
        if staging is not None:
            return self._scoring(model, state, io, workspace, staging)
        return self._generation(model, state, kv, io, workspace, num_pages)

    def _generation(
        self,
        model: TextModel,
        state: StatePlanes,
        kv: KvPlanes,
        io: RoundIo,
        workspace: Tensor,
        num_pages: int,
    ) -> GenerationParts:
        ctx, config, extents = self._ctx, self._config, self._extents
        shape = StoreShape(
            max_concurrency=config.max_concurrency,
            max_context=config.max_context,
            num_state_slots=extents.num_slots,
            num_main_pages=num_pages,
            max_fold=extents.num_records,
        )
        prefill = Prefill(ctx, model, state.counts, io, workspace)
        # Compiles and loads the prefill kernels; what it writes belongs to nobody yet.
        prefill.run(PrefillChunk((0,), 0, ((0,), (0,), (0,)), 0, 0, fold=0, num_counted=1))
        decode = DecodeRound(
            ctx,
            model,
            state.counts,
            io,
            workspace,
            self._bound.addressable_tokens,
            config.max_concurrency,
            use_graphs=config.use_graphs,
        )
        self._stack.callback(decode.close)
        stores = PhysicalStores(shape, id(self), io.table_mirror)
        executors = UnitExecutors(
            ctx.stream,
            prefill,
            decode,
            io,
            state,
            config.prefill_chunk,
            config.max_concurrency,
            model.geometry.vocab_rows,
        )
        geometry, act = model.geometry, self._device.activation_dtype
        sizes = CopySizes(
            _planned_bytes(state_planes.plane_shapes(geometry, 1, extents.num_records, act)),
            _planned_bytes(kv_planes.plane_shapes(geometry, 1, extents.kv_dtype)),
        )
        transitions = ResourceTransitions(stores, PlaneCopies(ctx.stream, state, kv), sizes)
        return GenerationParts(stores, transitions, ModelUnits(stores, executors))

    def _scoring(
        self,
        model: TextModel,
        state: StatePlanes,
        io: RoundIo,
        workspace: Tensor,
        staging: ScoringStaging,
    ) -> ScoringWindow:
        return ScoringWindow(
            self._ctx,
            model,
            state,
            io,
            workspace,
            staging,
            addressable=self._bound.addressable_tokens,
            max_context=self._config.max_context,
            chunk_tokens=self._config.prefill_chunk,
        )

    def _scoring_staging(self) -> ScoringStaging | None:
        if self._config.purpose is not Purpose.CAUSAL_SCORING:
            return None
        max_context, rows = self._config.max_context, self._bound.geometry.vocab_rows
        return ScoringStaging.take(
            self._arena("scoring", ScoringStaging.device_bytes(max_context, rows)),
            self._pinned("scoring", ScoringStaging.pinned_bytes(max_context)),
            max_context,
            rows,
        )

    def _num_pages(self) -> int:
        """Page groups of the main pool: as configured, or as many as fit and are of use."""
        config = self._config
        longest = pages_for(config.max_context)
        least = max(longest, config.max_concurrency)
        most = config.max_concurrency * longest
        if config.kv_capacity is not None:
            return min(max(pages_for(config.kv_capacity), least), most)
        page = kv_planes.plane_shapes(self._bound.geometry, 1, self._extents.kv_dtype)
        page_bytes = sum(Tensor(0, dtype, shape).nbytes for shape, dtype in page)
        room = self._device.free_bytes() - config.kv_headroom_bytes
        fitting = room // page_bytes
        if fitting < least:
            raise OutOfDeviceMemory(
                f"{least} pages of {page_bytes} bytes are needed for max_context "
                f"{config.max_context}; {least * page_bytes - room} bytes are missing"
            )
        return min(fitting, most)

    def _arena(self, name: str, nbytes: int) -> Arena:
        arena = self._device.arena(name, nbytes)
        self._stack.callback(arena.close)
        return arena

    def _pinned(self, name: str, nbytes: int) -> Arena:
        arena = self._device.pinned_arena(name, nbytes)
        self._stack.callback(arena.close)
        return arena


def _extents(config: EngineConfig, bound: BoundModel, device: Device) -> _Extents:
    max_columns = max(min(config.prefill_chunk, config.max_context), config.max_concurrency)
    return _Extents(
        max_columns=max_columns,
        num_slots=config.max_concurrency + config.device_state_slots,
        num_records=1 + config.draft_tokens,
        round=RoundShape(
            max_rows=config.max_concurrency,
            max_columns=max_columns,
            table_rows=config.max_concurrency,
            table_width=pages_for(config.max_context),
            vocab_rows=bound.geometry.vocab_rows,
        ),
        kv_dtype=kv_planes.element_dtype(config.kv_dtype, device.activation_dtype, device.kind),
    )


def _refuse_unsupported(config: EngineConfig) -> None:
    if config.has_vision:
        raise UnsupportedFeature("this build runs no vision tower", field="has_vision")
    if config.speculative is not SpeculativeBackend.NONE:
        raise UnsupportedFeature(
            f"this build has no speculative backend {config.speculative.value!r}",
            field="speculative",
        )
    for name in ("host_state_slots", "host_kv_bytes"):
        if getattr(config, name):
            raise UnsupportedFeature("this build keeps no checkpoints in host memory", field=name)


def _check_context(config: EngineConfig, bound: BoundModel) -> None:
    limit = bound.geometry.max_positions
    if config.max_context > limit:
        raise ConfigurationError(
            f"max_context is {config.max_context}; this model has {limit} positions",
            field="max_context",
        )


def _planned_bytes(shapes: tuple[tuple[Shape, DType], ...]) -> int:
    return sum(
        -(-Tensor(0, dtype, shape).nbytes // ALIGNMENT) * ALIGNMENT for shape, dtype in shapes
    )
