"""Start-up of a Program: check the options, plan and allocate every arena, load, capture.

    refuse what this build cannot do -> weights -> solve the KV capacity -> all other arenas
    -> planes and tables -> upload the round's block -> rehearse -> warm up -> capture graphs

Afterwards nothing is allocated any more. Everything made here goes onto one stack, which closes it
in reverse order when the Program closes, or at once when start-up fails.
"""

import secrets
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

from ninfer.artifact.reader import ArtifactReader
from ninfer.config import EngineConfig, Purpose, SpeculativeBackend
from ninfer.device import Arena, CompileAhead, Device
from ninfer.errors import ConfigurationError, UnsupportedFeature
from ninfer.models.qwen_hybrid.activations import activation_bytes
from ninfer.models.qwen_hybrid.binding import BoundModel
from ninfer.models.qwen_hybrid.text import TextCaches, TextModel
from ninfer.models.qwen_hybrid.weights import TextWeights, text_weights
from ninfer.ops.context import OpContext, make_context
from ninfer.program import kv_planes, state_planes
from ninfer.program.chunk_choice import chunk_sizes, plan_chunks
from ninfer.program.decode_round import DecodeRound
from ninfer.program.kv_planes import KvPlanes
from ninfer.program.kv_pool import pages_for
from ninfer.program.memory_plan import (
    KV,
    STATE,
    WORKSPACE,
    MemoryDemand,
    MemoryPlan,
    PlannedArena,
)
from ninfer.program.model_units import ModelUnits, UnitExecutors
from ninfer.program.physical_stores import PhysicalStores, StoreShape
from ninfer.program.plane_copies import PlaneCopies
from ninfer.program.prefill import Prefill
from ninfer.program.program import GenerationParts, ModelProgram
from ninfer.program.resource_projection import CopySizes
from ninfer.program.resource_transaction import ResourceTransitions
from ninfer.program.round_io import PrefillChunk, RoundIo, RoundShape
from ninfer.program.scoring_window import HEAD_ROWS, ScoringStaging, ScoringWindow
from ninfer.program.state_planes import StatePlanes
from ninfer.program.synthetic_weights import (
    SyntheticWeights,
    imagine_cache,
    synthesise_weights,
)
from ninfer.program.timeline import Timeline
from ninfer.program.weight_loader import (
    Progress,
    load_weights,
    resident_groups,
    resident_objects,
    weight_bytes,
)
from ninfer.program.workspace_layout import Phase, Region, lay_out
from ninfer.tensor import DType, Tensor

_ROUND: Final = "round"
_SCORING: Final = "scoring"
_ACTIVATIONS: Final = "activations"
_ROUND_ACTIVATIONS: Final = "activations of rounds"


def build_program(
    config: EngineConfig,
    bound: BoundModel,
    reader: ArtifactReader | SyntheticWeights,
    device: Device,
    progress: Progress | None = None,
    timeline: Timeline | None = None,
    ahead: CompileAhead | None = None,
) -> ModelProgram:
    """Build the Program of one model; the caller keeps owning ``reader`` and ``device``.

    Args:
        config: start-up options; its purpose decides which calls the Program accepts.
        bound: the checked artifact.
        reader: the open artifact, or what stands in for one; not needed any more when this
            returns.
        device: where everything lives.
        progress: told (bytes loaded, bytes in all) while weights are loaded.
        timeline: notes how long the steps took.
        ahead: see `Stream.rehearse`.

    Raises:
        ConfigurationError: an option does not fit this model or device.
        UnsupportedFeature: an option this build does not offer.
        OutOfDeviceMemory: the plan does not fit; nothing is left allocated.
    """
    _refuse_unsupported(config)
    _check_context(config, bound)
    with ExitStack() as stack:
        timeline = timeline or Timeline()
        builder = _Builder(config, bound, device, stack, timeline, ahead)
        weights = builder.load(reader, progress)
        timeline.note("weights")
        plan = builder.plan(weights)
        parts = builder.assemble(weights, plan)
        return ModelProgram(parts, plan, stack.pop_all())


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
        self,
        config: EngineConfig,
        bound: BoundModel,
        device: Device,
        stack: ExitStack,
        timeline: Timeline,
        ahead: CompileAhead | None,
    ) -> None:
        self._config: Final = config
        self._bound: Final = bound
        self._device: Final = device
        self._stack: Final = stack
        self._timeline: Final = timeline
        self._ahead: Final = ahead
        self._ctx: Final[OpContext] = make_context(device, device.stream())
        self._weights_bytes = 0
        self._imagination: SyntheticWeights | None = None

    def load(
        self, reader: ArtifactReader | SyntheticWeights, progress: Progress | None
    ) -> TextWeights:
        """Load what the configuration needs and view the text model's part of it."""
        objects = resident_objects(self._bound, resident_groups(self._config))
        self._weights_bytes = weight_bytes(self._ctx, objects)
        arena = self._device.arena("weights", self._weights_bytes)
        self._stack.callback(arena.close)
        match reader:
            case SyntheticWeights():
                self._imagination = reader
                loaded = synthesise_weights(self._ctx, reader, objects, arena, progress)
            case _:
                loaded = load_weights(self._ctx, reader, objects, arena, progress)
        return text_weights(self._bound, loaded.matrices, loaded.tensors)

    def plan(self, weights: TextWeights) -> MemoryPlan:
        """Size chunks and every arena from what is free beside the weights."""
        sizes = chunk_sizes(self._config, self._device.prefill_columns)
        demand = partial(self._demand, weights)
        return plan_chunks(self._config, sizes, demand, self._device.free_bytes())

    def assemble(self, weights: TextWeights, plan: MemoryPlan) -> GenerationParts | ScoringWindow:
        """Allocate everything else and compose the parts of the purpose."""
        extents, geometry, config = (
            self._extents(plan.prefill_chunk),
            self._bound.geometry,
            self._config,
        )
        state = state_planes.take_planes(
            self._arena(plan, STATE),
            geometry,
            extents.num_slots + 1,
            extents.num_records,
            self._device.activation_dtype,
        )
        workspace = self._arena(plan, WORKSPACE).take((plan.nbytes(WORKSPACE),), DType.U8)
        io = RoundIo(self._arena(plan, _ROUND), self._pinned(plan, _ROUND), extents.round)
        kv = kv_planes.take_planes(
            self._arena(plan, KV), geometry, plan.num_main_pages, extents.kv_dtype, io.block_table
        )
        if self._imagination is not None:
            imagine_cache(self._ctx, kv.planes, self._imagination.seed)
        model = TextModel(geometry, weights, TextCaches(kv.layers, state.layers))
        io.start(self._ctx.stream)
        self._timeline.note("arenas")
        match config.purpose:
            case Purpose.GENERATION:
                return self._generation(model, state, kv, io, workspace, plan)
            case Purpose.CAUSAL_SCORING:
                return self._scoring(model, state, io, workspace, plan)

    def _extents(self, chunk: int) -> _Extents:
        return _extents(self._config, self._bound, self._device, chunk)

    def _demand(self, weights: TextWeights, chunk: int) -> MemoryDemand:
        extents, geometry, config = self._extents(chunk), self._bound.geometry, self._config
        act = self._device.activation_dtype
        activations = Region(
            _ACTIVATIONS,
            activation_bytes(self._ctx, geometry, weights, extents.max_columns),
            frozenset({Phase.PREFILL, Phase.SCORING}),
        )
        # A round may run between two parts of a chunk, so that it has activations of its own.
        of_rounds = Region(
            _ROUND_ACTIVATIONS,
            activation_bytes(self._ctx, geometry, weights, config.max_concurrency),
            frozenset({Phase.PREFILL, Phase.DECODE}),
        )
        rows = f"up to {extents.round.max_rows} rows and {extents.max_columns} columns"
        fixed = [PlannedArena(_ROUND, RoundIo.device_bytes(extents.round), rows)]
        pinned = [PlannedArena(_ROUND, RoundIo.pinned_bytes(extents.round), rows)]
        if config.purpose is Purpose.CAUSAL_SCORING:
            nbytes = ScoringStaging.device_bytes(config.max_context, geometry.vocab_rows)
            fixed.append(PlannedArena(_SCORING, nbytes, f"{HEAD_ROWS} rows of logits"))
            pinned.append(PlannedArena(_SCORING, ScoringStaging.pinned_bytes(config.max_context)))
        return MemoryDemand(
            weights_bytes=self._weights_bytes,
            num_state_slots=extents.num_slots,
            state_planes=lambda slots: state_planes.plane_shapes(
                geometry, slots, extents.num_records, act
            ),
            kv_planes=lambda pages: kv_planes.plane_shapes(geometry, pages, extents.kv_dtype),
            workspace=lay_out([activations, of_rounds]),
            prefill_chunk=chunk,
            fixed=tuple(fixed),
            pinned=tuple(pinned),
        )

    def _generation(
        self,
        model: TextModel,
        state: StatePlanes,
        kv: KvPlanes,
        io: RoundIo,
        workspace: Tensor,
        plan: MemoryPlan,
    ) -> GenerationParts:
        ctx, config, extents = self._ctx, self._config, self._extents(plan.prefill_chunk)
        shape = StoreShape(
            max_concurrency=config.max_concurrency,
            max_context=config.max_context,
            num_state_slots=extents.num_slots,
            num_main_pages=plan.num_main_pages,
            max_fold=extents.num_records,
        )
        decode = DecodeRound(
            ctx,
            model,
            state.counts,
            io,
            _region(plan, workspace, _ROUND_ACTIVATIONS),
            self._bound.addressable_tokens,
            config.max_concurrency,
        )
        self._stack.callback(decode.close)
        columns = _region(plan, workspace, _ACTIVATIONS)
        prefill = Prefill(ctx, model, state.counts, io, columns)
        self._stack.callback(prefill.close)

        def every_unit() -> None:
            decode.enqueue_every()
            prefill.enqueue_every(extents.max_columns)

        self._rehearse(every_unit)
        # Both run once, too; what they write belongs to nobody yet.
        decode.warm_up()
        prefill.run(PrefillChunk((0,), 0, ((0,), (0,), (0,)), 0, 0, fold=0, num_counted=1))
        self._timeline.note("warm-up")
        if config.use_graphs:
            decode.capture()
            prefill.capture(extents.max_columns)
            self._timeline.note("graphs")
        # Drawn, not counted or an address: handles of a Program that is gone match no later one.
        stores = PhysicalStores(shape, secrets.randbits(63), io.table_mirror)
        executors = UnitExecutors(
            ctx.stream,
            prefill,
            decode,
            io,
            state,
            plan.prefill_chunk,
            config.max_concurrency,
            model.geometry.vocab_rows,
        )
        sizes = CopySizes(plan.state_slot_bytes, plan.page_bytes)
        transitions = ResourceTransitions(stores, PlaneCopies(ctx.stream, state, kv), sizes)
        return GenerationParts(stores, transitions, ModelUnits(stores, executors))

    def _scoring(
        self,
        model: TextModel,
        state: StatePlanes,
        io: RoundIo,
        workspace: Tensor,
        plan: MemoryPlan,
    ) -> ScoringWindow:
        staging = ScoringStaging.take(
            self._arena(plan, _SCORING),
            self._pinned(plan, _SCORING),
            self._config.max_context,
            model.geometry.vocab_rows,
        )
        window = ScoringWindow(
            self._ctx,
            model,
            state,
            io,
            _region(plan, workspace, _ACTIVATIONS),
            staging,
            addressable=self._bound.addressable_tokens,
            max_context=self._config.max_context,
            chunk_tokens=plan.prefill_chunk,
        )
        self._rehearse(window.enqueue_every)
        return window

    def _rehearse(self, every_unit: Callable[[], None]) -> None:
        """Compile, all together, and load what the units will launch."""
        self._ctx.stream.rehearse(every_unit, self._ahead)
        self._timeline.note("kernels")

    def _arena(self, plan: MemoryPlan, name: str) -> Arena:
        arena = self._device.arena(name, plan.nbytes(name))
        self._stack.callback(arena.close)
        return arena

    def _pinned(self, plan: MemoryPlan, name: str) -> Arena:
        nbytes = next(planned.nbytes for planned in plan.pinned if planned.name == name)
        arena = self._device.pinned_arena(name, nbytes)
        self._stack.callback(arena.close)
        return arena


def _region(plan: MemoryPlan, workspace: Tensor, name: str) -> Tensor:
    """A region's bytes of the workspace."""
    region = next(region for region in plan.workspace.regions if region.name == name)
    return workspace.rows(plan.workspace.offsets[name], region.nbytes)


def _extents(config: EngineConfig, bound: BoundModel, device: Device, chunk: int) -> _Extents:
    max_columns = max(min(chunk, config.max_context), config.max_concurrency)
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
