"""Everything decided and checked before a byte of the output exists.

Joins the model contract (which objects), the recipes (made of what) and the checkpoint (is it all
there). A plan that was made can only fail through values that are not finite, or through I/O.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ninfer.artifact.format import ObjectDescriptor
from ninfer.artifact.writer import ResourceSpec, TensorSpec, plan_layout
from ninfer.convert.checkpoint import SourceCheckpoint, list_names
from ninfer.convert.recipe import (
    MTP_PREFIX,
    VISION_PREFIX,
    Constant,
    Recipe,
    RecipeBook,
    checkpoint_recipes,
    draft_recipes,
    gathered_rows,
    vocabulary_source,
)
from ninfer.convert.resources import ResourceSet, collect_resources
from ninfer.convert.shortlist import (
    default_shortlist,
    read_ranking,
    select_shortlist,
    shortlist_rows,
)
from ninfer.errors import CheckpointError, ConfigurationError
from ninfer.models.package import GROUPWISE_INT, WEIGHTS_IDS, Geometry, ModelPackage
from ninfer.models.qwen_hybrid.geometry import geometry_from_config, is_multimodal_config
from ninfer.models.qwen_hybrid.inventory import ExpectedObject, ObjectGroup, inventory
from ninfer.models.qwen_hybrid.recognition import check_package, recognise
from ninfer.models.registry import lookup, model_ids
from ninfer.tensor import Shape

_TYPES: Final = ("BF16", "F32")
_SPECULATIVE: Final = frozenset({ObjectGroup.MTP, ObjectGroup.DFLASH, ObjectGroup.DFLASH2})
_DRAFT_HEAD: Final = "text/draft_head"
_DRAFT_HEAD_IDS: Final = "text/draft_head_token_ids"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertOptions:
    """What to convert, to what, and how.

    Attributes:
        source: folder of the checkpoint.
        output: artifact to write.
        profile: storage profile.
        model_id: identity; None recognises it from the config.
        draft: folder of a DFlash or DFlash2 checkpoint.
        ranking: token counts for the short proposal head.
        is_dry_run: stop after all checks.
        num_workers: threads that read and encode.
        is_forced: an existing output may be replaced.
        has_strict_resources: resources must be the published ones.
    """

    source: Path
    output: Path
    profile: str = GROUPWISE_INT
    model_id: str | None = None
    draft: Path | None = None
    ranking: Path | None = None
    is_dry_run: bool = False
    num_workers: int = 2
    is_forced: bool = False
    has_strict_resources: bool = False

    def __post_init__(self) -> None:
        if self.profile not in WEIGHTS_IDS:
            raise _refused("profile", self.profile, ", ".join(sorted(WEIGHTS_IDS)))
        if self.model_id is not None and self.model_id not in model_ids():
            raise _refused("model_id", self.model_id, ", ".join(model_ids()))
        if not 1 <= self.num_workers <= 64:
            raise _refused("num_workers", self.num_workers, "1..64")


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """One tensor of the output.

    Attributes:
        wanted: its place in the contract.
        recipe: what it is made of.
        checkpoint: where its sources are.
    """

    wanted: ExpectedObject
    recipe: Recipe
    checkpoint: SourceCheckpoint


@dataclass(frozen=True, slots=True)
class ConversionPlan:
    """A checked conversion.

    Attributes:
        package: identity.
        geometry: dimensions, with the companions the output carries.
        weights_id: storage profile.
        resources: what travels unchanged.
        tensors: in the writer's order.
        descriptors: every object with its place.
        notes: what the user should know.
        checkpoints: those that are read.
    """

    package: ModelPackage
    geometry: Geometry
    weights_id: str
    resources: ResourceSet
    tensors: tuple[PlannedTensor, ...]
    descriptors: tuple[ObjectDescriptor, ...]
    notes: tuple[str, ...]
    checkpoints: tuple[SourceCheckpoint, ...]


def make_plan(
    options: ConvertOptions, checkpoint: SourceCheckpoint, draft: SourceCheckpoint | None
) -> ConversionPlan:
    """Decide and check a whole conversion.

    Raises:
        CheckpointError: the source is not a complete checkpoint of a registered model.
        OSError: a file cannot be read.
    """
    notes = [*checkpoint.notes, *(draft.notes if draft is not None else ())]
    full = geometry_from_config(checkpoint.config, None if draft is None else draft.config)
    package = recognise(checkpoint.config) if options.model_id is None else lookup(options.model_id)
    check_package(package, full)
    geometry = _carried_geometry(full, checkpoint, notes)
    resources = collect_resources(
        package, checkpoint, draft, is_strict=options.has_strict_resources
    )
    if resources.addressable_tokens > geometry.vocab_rows:
        raise CheckpointError(
            f"tokenizer.json addresses {resources.addressable_tokens} ids; the vocabulary has"
            f" {geometry.vocab_rows} rows",
            field="tokenizer.json",
        )
    objects = _objects(package, geometry, options.profile, resources)
    tensors = _tensors(options, geometry, checkpoint, draft, objects, resources, notes)
    specs = [
        ResourceSpec(wanted.name, len(resources.contents[wanted.name]))
        if wanted.format is None
        else TensorSpec(wanted.name, wanted.shape, wanted.format)
        for wanted in objects
    ]
    return ConversionPlan(
        package=package,
        geometry=geometry,
        weights_id=options.profile,
        resources=resources,
        tensors=tensors,
        descriptors=plan_layout(specs),
        notes=(*notes, *resources.notes),
        checkpoints=(checkpoint,) if draft is None else (checkpoint, draft),
    )


def _carried_geometry(
    geometry: Geometry, checkpoint: SourceCheckpoint, notes: list[str]
) -> Geometry:
    """Leave out companions the config knows and the checkpoint has no tensor of."""

    def has(prefix: str) -> bool:
        return any(name.startswith(prefix) for name in checkpoint.tensors)

    if geometry.has_mtp and not has(MTP_PREFIX):
        notes.append("the checkpoint has no MTP tensors: the artifact has no MTP group")
        geometry = replace(geometry, has_mtp=False)
    if geometry.vision is not None and not has(VISION_PREFIX):
        notes.append("the checkpoint has no vision tensors: the artifact has no vision group")
        geometry = replace(geometry, vision=None)
    return geometry


def _objects(
    package: ModelPackage, geometry: Geometry, profile: str, resources: ResourceSet
) -> tuple[ExpectedObject, ...]:
    """The inventory's objects that this output has."""
    known = inventory(package, geometry, profile, resources.addressable_tokens)
    has_drafter = any(wanted.group in _SPECULATIVE for wanted in known)
    return tuple(
        wanted
        for wanted in known
        if (wanted.format is not None or wanted.name in resources.contents)
        and (has_drafter or wanted.group is not ObjectGroup.DRAFT_HEAD)
    )


def _tensors(
    options: ConvertOptions,
    geometry: Geometry,
    checkpoint: SourceCheckpoint,
    draft: SourceCheckpoint | None,
    objects: tuple[ExpectedObject, ...],
    resources: ResourceSet,
    notes: list[str],
) -> tuple[PlannedTensor, ...]:
    prefix = "model.language_model." if is_multimodal_config(checkpoint.config) else "model."
    book = checkpoint_recipes(geometry, prefix, checkpoint.tensors)
    _check_sources(checkpoint, book.sources)
    _add_shortlist(options, geometry, vocabulary_source(geometry, prefix), book, resources, notes)
    origin: dict[str, SourceCheckpoint] = dict.fromkeys(book.recipes, checkpoint)
    recipes = dict(book.recipes)
    if draft is not None and geometry.draft is not None:
        draft_book = draft_recipes(geometry.draft, geometry)
        _check_sources(draft, draft_book.sources)
        recipes |= draft_book.recipes
        origin |= dict.fromkeys(draft_book.recipes, draft)
    return tuple(
        PlannedTensor(wanted, recipes[wanted.name], origin[wanted.name])
        for wanted in objects
        if wanted.format is not None
    )


def _add_shortlist(
    options: ConvertOptions,
    geometry: Geometry,
    head: str,
    book: RecipeBook,
    resources: ResourceSet,
    notes: list[str],
) -> None:
    size, forced = resources.addressable_tokens, resources.forced_ids
    if options.ranking is None:
        notes.append("the short proposal head has the lowest token ids: no ranking was given")
        ids = default_shortlist(forced, size, shortlist_rows(size))
    else:
        counts = read_ranking(options.ranking, geometry.vocab_rows)
        ids = select_shortlist(counts, forced, size, shortlist_rows(size))
    book.recipes[_DRAFT_HEAD] = gathered_rows(head, ids)
    book.recipes[_DRAFT_HEAD_IDS] = Constant(ids)


def _check_sources(checkpoint: SourceCheckpoint, expected: Mapping[str, Shape]) -> None:
    """Every source once, of the right shape and type, and nothing else."""
    found = checkpoint.tensors
    if missing := sorted(expected.keys() - found.keys()):
        raise CheckpointError(
            f"{checkpoint.folder}: {len(missing)} of {len(expected)} tensors are missing:"
            f" {list_names(missing)}",
            field=missing[0],
        )
    if extra := sorted(found.keys() - expected.keys()):
        raise CheckpointError(
            f"{checkpoint.folder}: {len(extra)} tensors are not part of the model:"
            f" {list_names(extra)}",
            field=extra[0],
        )
    for name, shape in expected.items():
        tensor = found[name]
        if tensor.shape != shape:
            raise CheckpointError(
                f"{tensor.path.name}: {name} has the shape {list(tensor.shape)}; the config makes"
                f" it {list(shape)}",
                field=name,
            )
        if tensor.dtype not in _TYPES:
            raise CheckpointError(
                f"{tensor.path.name}: {name} is {tensor.dtype}; allowed is {' or '.join(_TYPES)}",
                field=name,
            )


def _refused(name: str, value: object, allowed: str) -> ConfigurationError:
    return ConfigurationError(f"{name} is {value}; allowed is {allowed}", field=name)
