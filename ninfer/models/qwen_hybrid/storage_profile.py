"""Which format each kind of matrix has under a storage profile.

Source: artifact contract, sections 9 (groupwise integers) and 14.2 (bf16). Knows no shapes.
"""

from dataclasses import dataclass, replace

from ninfer.models.package import BF16_WEIGHTS, Geometry, ModelPackage
from ninfer.tensor import TensorFormat


@dataclass(frozen=True, slots=True)
class StorageProfile:
    """Formats by role; what is not listed (norms, biases, routers, ...) has one in every profile.

    Attributes:
        has_split_parents: projections lie in two parents of different formats, not in one.
        embedding, head: vocabulary matrices; a tied head shares the embedding.
        narrow_projection: query and key rows of split parents.
        projection: all other mixer projections, and their outputs.
        gate_up, down: dense FFN.
        routed_gate_up, usual_routed_down: experts.
        precise_down_layers: layers whose routed down projection is Q6.
        shared: shared expert.
        draft_head: rows of the shortlist.
        vision_patch, vision_in, vision_out, vision_merger: vision tower.
    """

    has_split_parents: bool
    embedding: TensorFormat
    head: TensorFormat
    narrow_projection: TensorFormat
    projection: TensorFormat
    gate_up: TensorFormat
    down: TensorFormat
    routed_gate_up: TensorFormat
    usual_routed_down: TensorFormat
    precise_down_layers: frozenset[int]
    shared: TensorFormat
    draft_head: TensorFormat
    vision_patch: TensorFormat
    vision_in: TensorFormat
    vision_out: TensorFormat
    vision_merger: TensorFormat

    def routed_down(self, layer: int) -> TensorFormat:
        """Format of one text layer's routed down projection."""
        return TensorFormat.Q6 if layer in self.precise_down_layers else self.usual_routed_down

    def companion(self) -> "StorageProfile":
        """Profile of the MTP layer and of drafters: one parent, and W8 unless all is BF16."""
        stored = TensorFormat.BF16 if self.draft_head is TensorFormat.BF16 else TensorFormat.W8
        return replace(
            self,
            has_split_parents=False,
            projection=stored,
            gate_up=stored,
            down=stored,
            routed_gate_up=stored,
            usual_routed_down=stored,
            shared=stored,
        )


def storage_profile(package: ModelPackage, geometry: Geometry, weights_id: str) -> StorageProfile:
    """Choose the formats of one storage profile."""
    if weights_id == BF16_WEIGHTS:
        return _bf16()
    vocabulary = package.vocabulary_format
    if geometry.is_tied:
        # One matrix serves both ends, so it takes the finer format.
        vocabulary = TensorFormat.W8
    is_moe = geometry.is_moe
    wide = TensorFormat.W8 if is_moe else TensorFormat.Q5
    return StorageProfile(
        has_split_parents=not is_moe,
        embedding=vocabulary or (TensorFormat.W8 if is_moe else TensorFormat.Q6),
        head=vocabulary or TensorFormat.Q6,
        narrow_projection=TensorFormat.Q4,
        projection=wide,
        gate_up=TensorFormat.Q4,
        down=TensorFormat.Q5,
        routed_gate_up=TensorFormat.Q4,
        usual_routed_down=TensorFormat.Q5,
        precise_down_layers=package.precise_down_layers,
        shared=TensorFormat.W8,
        draft_head=TensorFormat.Q4,
        vision_patch=TensorFormat.Q6,
        vision_in=TensorFormat.Q4,
        vision_out=TensorFormat.Q5,
        vision_merger=TensorFormat.W8,
    )


def _bf16() -> StorageProfile:
    stored = TensorFormat.BF16
    return StorageProfile(
        has_split_parents=False,
        embedding=stored,
        head=stored,
        narrow_projection=stored,
        projection=stored,
        gate_up=stored,
        down=stored,
        routed_gate_up=stored,
        usual_routed_down=stored,
        precise_down_layers=frozenset(),
        shared=stored,
        draft_head=stored,
        vision_patch=stored,
        vision_in=stored,
        vision_out=stored,
        vision_merger=stored,
    )
