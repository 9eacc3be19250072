"""The fewest bytes and operations a correct engine must spend on a model: ceilings to compare with.

    a decode round    every weight matrix once, whatever the number of rows; routed experts by the
                      expected union of independent choices; the cache of each sequence once, its
                      recurrent state read and written once
    a prompt token    two operations a weight it meets, attention over half the prompt on average,
                      the chunked recurrence with chunks of 64

Activations stay in the cache of the device and embedding rows are few, so neither counts. Knows no
device: what its bandwidth and rate are is measured elsewhere.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ninfer.models.package import Geometry, LayerKind, MoeGeometry
from ninfer.models.qwen_hybrid.inventory import ExpectedObject
from ninfer.models.qwen_hybrid.residency import is_matrix, stored_format
from ninfer.tensor_formats import encoded_bytes

_CHUNK: Final = 64
_EMBEDDING: Final = "text/token_embedding"
_HEAD: Final = "text/output_head"
_ROUTED: Final = ("routed_gate_up", "routed_down")


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What one model must read and compute.

    Attributes:
        geometry: dimensions.
        objects: the text group, as stored.
        kv_element_bytes: of the cache, scales included.
    """

    geometry: Geometry
    objects: Sequence[ExpectedObject]
    kv_element_bytes: float

    def round_bytes(self, num_rows: int, context: int) -> float:
        """Bytes of a decode round of rows that stand at ``context`` tokens each."""
        routed = self._bytes(is_routed=True) * self._union_share(num_rows)
        of_row = self.cache_bytes(context) + 2 * self.state_bytes()
        return self._bytes(is_routed=False) + routed + num_rows * of_row

    def cache_bytes(self, context: int) -> float:
        """Keys and values of one sequence."""
        width = 2 * self.geometry.attention.kv_width * self.kv_element_bytes
        return context * width * self.geometry.count(LayerKind.FULL_ATTENTION)

    def state_bytes(self) -> float:
        """Recurrent matrices of one sequence, binary32."""
        delta = self.geometry.gated_delta
        matrix = delta.num_value_heads * delta.key_dim * delta.value_dim
        return 4.0 * matrix * self.geometry.count(LayerKind.GATED_DELTA)

    def prefill_flop(self, num_tokens: int) -> float:
        """Operations of a whole prompt of that many tokens."""
        return num_tokens * (self._dense_flop() + self._attention_flop(num_tokens / 2))

    def _dense_flop(self) -> float:
        """Of one token, whatever its position; the head serves no prompt token."""
        mlp, delta = self.geometry.mlp, self.geometry.gated_delta
        share = mlp.experts_per_token / mlp.num_experts if isinstance(mlp, MoeGeometry) else 1.0
        params = sum(
            math.prod(stored.shape) * (share if _is_routed(stored) else 1.0)
            for stored in self.objects
            if is_matrix(stored) and stored.name not in (_EMBEDDING, _HEAD)
        )
        keys, values = delta.key_dim, delta.value_dim
        recurrence = 6 * keys * values + 2 * _CHUNK * (3 * keys + 2 * values) + _CHUNK**2
        num_layers = self.geometry.count(LayerKind.GATED_DELTA)
        return 2 * params + num_layers * delta.num_value_heads * recurrence

    def _attention_flop(self, context: float) -> float:
        """Of one token over ``context`` positions."""
        num_layers = self.geometry.count(LayerKind.FULL_ATTENTION)
        return 4 * self.geometry.attention.query_width * context * num_layers

    def _bytes(self, *, is_routed: bool) -> float:
        unread = _HEAD if self.geometry.is_tied else _EMBEDDING
        return float(
            sum(
                encoded_bytes(stored_format(stored), stored.shape)
                for stored in self.objects
                if _is_routed(stored) is is_routed and stored.name != unread
            )
        )

    def _union_share(self, num_tokens: int) -> float:
        """Expected share of the experts that some of the tokens chose."""
        mlp = self.geometry.mlp
        if not isinstance(mlp, MoeGeometry):
            return 0.0
        return 1 - (1 - mlp.experts_per_token / mlp.num_experts) ** num_tokens


def _is_routed(stored: ExpectedObject) -> bool:
    return stored.name.endswith(_ROUTED)
