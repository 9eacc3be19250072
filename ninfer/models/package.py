"""What a registered model package is: identity and dimensions, no code.

A package says how a checkpoint of the family is laid out. `Geometry` is the complete set of numbers
that schedules, kernels and inventories are specialised on (model contract, section 1).
"""

import enum
from dataclasses import dataclass

from ninfer.tensor import TensorFormat

GROUPWISE_INT = "groupwise-int"
BF16_WEIGHTS = "bf16"
WEIGHTS_IDS = frozenset({GROUPWISE_INT, BF16_WEIGHTS})


class LayerKind(enum.Enum):
    """The two mixers of the hybrid."""

    FULL_ATTENTION = "full_attention"
    GATED_DELTA = "linear_attention"


@dataclass(frozen=True, slots=True)
class AttentionGeometry:
    """Gated full attention. Counts are heads, dims are elements.

    ``rotary_dim`` components of each head are rotated; ``mrope_section`` splits their frequencies
    over the time, height and width axes.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    mrope_section: tuple[int, int, int]

    @property
    def query_width(self) -> int:
        """Width of all query heads together (and of their gates)."""
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of all key heads together (and of all value heads)."""
        return self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class GatedDeltaGeometry:
    """Gated DeltaNet mixer."""

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int = 4

    @property
    def key_width(self) -> int:
        """KG: width of all key heads together."""
        return self.num_key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        """VG: width of all value heads together."""
        return self.num_value_heads * self.value_dim

    @property
    def conv_channels(self) -> int:
        """C: channels of the convolution, queries, keys and values."""
        return 2 * self.key_width + self.value_width


@dataclass(frozen=True, slots=True)
class DenseGeometry:
    """SwiGLU MLP."""

    intermediate: int


@dataclass(frozen=True, slots=True)
class MoeGeometry:
    """Routed experts and one shared expert, all SwiGLU."""

    num_experts: int
    experts_per_token: int
    expert_width: int
    shared_width: int


@dataclass(frozen=True, slots=True)
class VisionGeometry:
    """Vision tower."""

    depth: int
    width: int
    num_heads: int
    mlp_width: int
    patch_width: int
    num_positions: int
    merge_size: int


@dataclass(frozen=True, slots=True)
class DraftGeometry:
    """A DFlash or DFlash2 drafter (model contract, section 6).

    ``conv_group``, ``selector_rank`` and ``selector_top_k`` are 0 for DFlash.
    """

    is_dflash2: bool
    layer_windows: tuple[int | None, ...]
    intermediate: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    target_layers: tuple[int, ...]
    block_size: int
    mask_token_id: int
    rope_theta: float
    is_causal: bool
    conv_group: int = 0
    selector_rank: int = 0
    selector_top_k: int = 0


@dataclass(frozen=True, slots=True)
class Geometry:
    """All dimensions of one text model, with the optional companions it may carry."""

    hidden: int
    vocab_rows: int
    layers: tuple[LayerKind, ...]
    attention: AttentionGeometry
    gated_delta: GatedDeltaGeometry
    mlp: DenseGeometry | MoeGeometry
    norm_eps: float
    is_tied: bool
    max_positions: int
    has_mtp: bool
    vision: VisionGeometry | None
    draft: DraftGeometry | None

    @property
    def is_moe(self) -> bool:
        """Whether the FFN routes to experts."""
        return isinstance(self.mlp, MoeGeometry)

    def count(self, kind: LayerKind) -> int:
        """Number of layers of one kind."""
        return sum(layer is kind for layer in self.layers)


class Family(enum.Enum):
    """FFN variant; decides the inventory."""

    DENSE = "dense"
    MOE = "moe"


@dataclass(frozen=True, slots=True)
class ModelPackage:
    """One entry of the closed registry.

    Attributes:
        model_id: identity in the artifact.
        family: inventory and schedule variant.
        geometry: fixed dimensions, or None when the artifact's ``model/config.json`` gives them.
        weights_ids: storage profiles the package can run.
        is_test_model: any small geometry; needs only the four text resources.
        is_text_only: published without a vision tower; needs only the four text resources.
        signature: (hidden, layers) by which a checkpoint without fixed geometry is recognised.
        vocabulary_format: groupwise format of embedding and head, where the family's differs.
        precise_down_layers: layers whose groupwise routed down projection is Q6 instead of Q5.
        usual_geometry: text dimensions of the published checkpoint, where they travel; kernels are
            compiled ahead for them.
    """

    model_id: str
    family: Family
    geometry: Geometry | None
    weights_ids: frozenset[str]
    is_test_model: bool = False
    is_text_only: bool = False
    signature: tuple[int, int] | None = None
    vocabulary_format: TensorFormat | None = None
    precise_down_layers: frozenset[int] = frozenset()
    usual_geometry: Geometry | None = None

    @property
    def is_media_optional(self) -> bool:
        """Whether the resources of images and videos may be missing."""
        return self.is_test_model or self.is_text_only

    @property
    def expected_geometry(self) -> Geometry:
        """Dimensions to expect before an artifact is seen.

        Raises:
            ValueError: nobody knows any.
        """
        geometry = self.geometry or self.usual_geometry
        if geometry is None:
            raise ValueError(f"{self.model_id} has no usual geometry")
        return geometry
