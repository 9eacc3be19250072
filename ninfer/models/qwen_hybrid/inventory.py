"""Which objects an artifact of the family holds: names, shapes, formats, order.

Source: artifact contract, sections 9 (inventories), 12 (groups) and 14 (small models, bf16). The
list is computed from a geometry; nothing here reads a file or knows where a weight comes from.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ninfer.artifact.format import Layout, layout_of
from ninfer.models.package import (
    DenseGeometry,
    DraftGeometry,
    Geometry,
    LayerKind,
    ModelPackage,
    MoeGeometry,
    VisionGeometry,
)
from ninfer.models.qwen_hybrid.storage_profile import StorageProfile, storage_profile
from ninfer.tensor import Shape, TensorFormat

MODEL_CONFIG: Final = "model/config.json"
DRAFT_CONFIG: Final = "model/draft_config.json"
TEXT_RESOURCES: Final = (
    "frontend/tokenizer.json",
    "frontend/tokenizer_config.json",
    "frontend/chat_template.jinja",
    "frontend/generation_config.json",
)
MEDIA_RESOURCES: Final = (
    "frontend/preprocessor_config.json",
    "frontend/video_preprocessor_config.json",
)
SHORTLIST_ROWS: Final = 131072

# Rank 2, but read element by element.
_PLAIN_TABLES: Final = frozenset(
    {"convolution", "position_embedding", "predecessor_codebook", "successor_codebook"}
)

_BF16: Final = TensorFormat.BF16
_FP32: Final = TensorFormat.FP32


class ObjectGroup(enum.Enum):
    """What an object is for. Groups other than TEXT and RESOURCE are optional, each as a whole."""

    RESOURCE = "resource"
    TEXT = "text"
    DRAFT_HEAD = "draft_head"
    MTP = "mtp"
    VISION = "vision"
    DFLASH = "dflash"
    DFLASH2 = "dflash2"


REQUIRED_GROUPS: Final = frozenset({ObjectGroup.TEXT, ObjectGroup.RESOURCE})


@dataclass(frozen=True, slots=True)
class ExpectedObject:
    """One object of the contract.

    Attributes:
        name: its name in the directory.
        shape: extents; empty for a resource.
        format: stored format; None for a resource.
        group: what it is for.
        is_optional: may be absent although its group is present.
    """

    name: str
    shape: Shape
    format: TensorFormat | None
    group: ObjectGroup
    is_optional: bool = False

    @property
    def layout(self) -> Layout | None:
        """Layout of a tensor; None for a resource."""
        return None if self.format is None else layout_of(self.format)

    @property
    def is_matrix(self) -> bool:
        """Whether it is multiplied or gathered from, in the residency a device chooses."""
        return len(self.shape) == 2 and self.name.rpartition("/")[2] not in _PLAIN_TABLES


def inventory(
    package: ModelPackage, geometry: Geometry, weights_id: str, tokenizer_size: int
) -> tuple[ExpectedObject, ...]:
    """List every object an artifact may hold, in the writer's order.

    Args:
        package: identity and storage facts.
        geometry: dimensions; its companions decide which optional groups are known.
        weights_id: storage profile, one of the package's.
        tokenizer_size: ids the tokenizer addresses; bounds the shortlist.
    """
    profile = storage_profile(package, geometry, weights_id)
    draft_group = _draft_group(geometry.draft)
    objects = [*_resources(package, draft_group), *_text(geometry, profile)]
    rows = min(SHORTLIST_ROWS, tokenizer_size)
    objects += [
        _tensor("text/draft_head", (rows, geometry.hidden), profile.draft_head),
        _tensor("text/draft_head_token_ids", (rows,), TensorFormat.I32),
    ]
    if geometry.has_mtp:
        objects += _mtp(geometry, profile)
    if geometry.vision is not None:
        objects += _vision(geometry.vision, geometry.hidden, profile)
    if geometry.draft is not None:
        objects += _draft(geometry.draft, geometry, profile)
    return tuple(objects)


def group_of(name: str) -> ObjectGroup:
    """Tell which group a tensor's name belongs to."""
    head, _, rest = name.partition("/")
    if head == "text" and rest in {"draft_head", "draft_head_token_ids"}:
        return ObjectGroup.DRAFT_HEAD
    return ObjectGroup(head)


def _draft_group(draft: DraftGeometry | None) -> ObjectGroup | None:
    if draft is None:
        return None
    return ObjectGroup.DFLASH2 if draft.is_dflash2 else ObjectGroup.DFLASH


def _tensor(name: str, shape: Shape, stored: TensorFormat = _BF16) -> ExpectedObject:
    return ExpectedObject(name, shape, stored, group_of(name))


def _resources(package: ModelPackage, draft_group: ObjectGroup | None) -> Iterator[ExpectedObject]:
    is_fixed = package.geometry is not None
    resource = ObjectGroup.RESOURCE
    yield ExpectedObject(MODEL_CONFIG, (), None, resource, is_optional=is_fixed)
    if draft_group is not None and not is_fixed:
        # Belongs to the companion: without it the companion's shapes are unknown.
        yield ExpectedObject(DRAFT_CONFIG, (), None, draft_group)
    for name in TEXT_RESOURCES:
        yield ExpectedObject(name, (), None, resource)
    for name in MEDIA_RESOURCES:
        is_optional = package.is_media_optional
        yield ExpectedObject(name, (), None, resource, is_optional=is_optional)


def _text(geometry: Geometry, profile: StorageProfile) -> Iterator[ExpectedObject]:
    vocabulary = (geometry.vocab_rows, geometry.hidden)
    yield _tensor("text/token_embedding", vocabulary, profile.embedding)
    for index, kind in enumerate(geometry.layers):
        prefix = f"text/layers/{index}/"
        yield _tensor(f"{prefix}input_norm", (geometry.hidden,))
        match kind:
            case LayerKind.FULL_ATTENTION:
                yield from _attention(prefix, geometry, profile)
            case LayerKind.GATED_DELTA:
                yield from _gated_delta(prefix, geometry, profile)
        yield _tensor(f"{prefix}post_attention_norm", (geometry.hidden,))
        yield from _ffn(prefix, geometry, profile, profile.routed_down(index))
    yield _tensor("text/final_norm", (geometry.hidden,))
    if not geometry.is_tied:
        yield _tensor("text/output_head", vocabulary, profile.head)


def _attention(
    prefix: str, geometry: Geometry, profile: StorageProfile
) -> Iterator[ExpectedObject]:
    heads = geometry.attention
    hidden, query, kv = geometry.hidden, heads.query_width, heads.kv_width
    at = f"{prefix}attention/"
    if profile.has_split_parents:
        yield _tensor(f"{at}query_key", (query + kv, hidden), profile.narrow_projection)
        yield _tensor(f"{at}gate_value", (query + kv, hidden), profile.projection)
    else:
        yield _tensor(f"{at}query_key_gate_value", (2 * (query + kv), hidden), profile.projection)
    yield _tensor(f"{at}query_norm", (heads.head_dim,))
    yield _tensor(f"{at}key_norm", (heads.head_dim,))
    yield _tensor(f"{at}output", (hidden, query), profile.projection)


def _gated_delta(
    prefix: str, geometry: Geometry, profile: StorageProfile
) -> Iterator[ExpectedObject]:
    mixer = geometry.gated_delta
    hidden, num_heads = geometry.hidden, mixer.num_value_heads
    keys, values = 2 * mixer.key_width, 2 * mixer.value_width
    at = f"{prefix}gdn/"
    yield _tensor(f"{at}a_log", (num_heads,), _FP32)
    yield _tensor(f"{at}dt_bias", (num_heads,), _FP32)
    yield _tensor(f"{at}convolution", (mixer.conv_width, mixer.conv_channels))
    if profile.has_split_parents:
        yield _tensor(f"{at}a_projection", (num_heads, hidden))
        yield _tensor(f"{at}b_projection", (num_heads, hidden))
        yield _tensor(f"{at}query_key", (keys, hidden), profile.narrow_projection)
        yield _tensor(f"{at}value_z", (values, hidden), profile.projection)
    else:
        yield _tensor(f"{at}a_b_projection", (2 * num_heads, hidden))
        yield _tensor(f"{at}query_key_value_z", (keys + values, hidden), profile.projection)
    yield _tensor(f"{at}norm", (mixer.value_dim,))
    yield _tensor(f"{at}output", (hidden, mixer.value_width), profile.projection)


def _ffn(
    prefix: str, geometry: Geometry, profile: StorageProfile, routed_down: TensorFormat
) -> Iterator[ExpectedObject]:
    hidden = geometry.hidden
    match geometry.mlp:
        case DenseGeometry(intermediate):
            yield _tensor(f"{prefix}mlp/gate_up", (2 * intermediate, hidden), profile.gate_up)
            yield _tensor(f"{prefix}mlp/down", (hidden, intermediate), profile.down)
        case MoeGeometry(num_experts, _, width, shared):
            at = f"{prefix}moe/"
            yield _tensor(f"{at}router_shared_gate", (num_experts + 1, hidden))
            gate_up = (num_experts * 2 * width, hidden)
            yield _tensor(f"{at}routed_gate_up", gate_up, profile.routed_gate_up)
            yield _tensor(f"{at}routed_down", (num_experts * hidden, width), routed_down)
            yield _tensor(f"{at}shared_gate_up", (2 * shared, hidden), profile.shared)
            yield _tensor(f"{at}shared_down", (hidden, shared), profile.shared)


def _mtp(geometry: Geometry, profile: StorageProfile) -> Iterator[ExpectedObject]:
    hidden, own = geometry.hidden, profile.companion()
    yield _tensor("mtp/input_projection", (hidden, 2 * hidden), own.projection)
    for name in ("embedding_norm", "hidden_norm", "layer/input_norm"):
        yield _tensor(f"mtp/{name}", (hidden,))
    yield from _attention("mtp/layer/", geometry, own)
    yield _tensor("mtp/layer/post_attention_norm", (hidden,))
    yield from _ffn("mtp/layer/", geometry, own, own.routed_gate_up)
    yield _tensor("mtp/final_norm", (hidden,))


def _vision(
    vision: VisionGeometry, hidden: int, profile: StorageProfile
) -> Iterator[ExpectedObject]:
    width, mlp = vision.width, vision.mlp_width
    yield _tensor("vision/patch_embedding", (width, vision.patch_width), profile.vision_patch)
    yield _tensor("vision/patch_embedding_bias", (width,))
    yield _tensor("vision/position_embedding", (vision.num_positions, width))
    for block in range(vision.depth):
        at = f"vision/layers/{block}/"
        for name, shape, stored in (
            ("attention/qkv", (3 * width, width), profile.vision_in),
            ("attention/output", (width, width), profile.vision_out),
            ("mlp/fc1", (mlp, width), profile.vision_in),
            ("mlp/fc2", (width, mlp), profile.vision_out),
        ):
            yield _tensor(f"{at}{name}", shape, stored)
            yield _tensor(f"{at}{name}_bias", shape[:1])
        for name in ("norm1/weight", "norm1/bias", "norm2/weight", "norm2/bias"):
            yield _tensor(f"{at}{name}", (width,))
    merged = width * vision.merge_size**2
    for name, rows in (("fc1", merged), ("fc2", hidden)):
        yield _tensor(f"vision/merger/{name}", (rows, merged), profile.vision_merger)
        yield _tensor(f"vision/merger/{name}_bias", (rows,))
    for name in ("norm/weight", "norm/bias"):
        yield _tensor(f"vision/merger/{name}", (width,))


def _draft(
    draft: DraftGeometry, geometry: Geometry, profile: StorageProfile
) -> Iterator[ExpectedObject]:
    hidden, stored = geometry.hidden, profile.companion().projection
    query, kv = draft.num_heads * draft.head_dim, draft.num_kv_heads * draft.head_dim
    root = "dflash2/" if draft.is_dflash2 else "dflash/"
    features = len(draft.target_layers) * hidden
    yield _tensor(f"{root}feature_projection", (hidden, features), stored)
    yield _tensor(f"{root}context_norm", (hidden,))
    for index in range(len(draft.layer_windows)):
        at = f"{root}layers/{index}/"
        yield _tensor(f"{at}input_norm", (hidden,))
        yield _tensor(f"{at}attention/query_key_value", (query + 2 * kv, hidden), stored)
        yield _tensor(f"{at}attention/query_norm", (draft.head_dim,))
        yield _tensor(f"{at}attention/key_norm", (draft.head_dim,))
        yield _tensor(f"{at}attention/output", (hidden, query), stored)
        yield _tensor(f"{at}post_attention_norm", (hidden,))
        yield _tensor(f"{at}mlp/gate_up", (2 * draft.intermediate, hidden), stored)
        yield _tensor(f"{at}mlp/down", (hidden, draft.intermediate), stored)
        if draft.is_dflash2:
            kernels = 4 * (hidden // draft.conv_group)  # two sides, two taps, one value a group
            for branch in ("attention_conv", "mlp_conv"):
                yield _tensor(f"{at}{branch}/base_kernel", (2, 2, hidden))
                yield _tensor(f"{at}{branch}/kernel_projection", (kernels, hidden))
    if draft.is_dflash2:
        at, rank = f"{root}candidate_selector/", draft.selector_rank
        yield _tensor(f"{at}hidden_projection", (rank, hidden))
        yield _tensor(f"{at}predecessor_codebook", (geometry.vocab_rows, rank))
        yield _tensor(f"{at}successor_codebook", (geometry.vocab_rows, rank))
    yield _tensor(f"{root}final_norm", (hidden,))
