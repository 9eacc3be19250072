"""What launchers read of the operand groups that ops bundle.

Kernels lie below the ops and do not import them; these protocols are the part of an op's frozen
operand group that every implementation may rely on. The ops' own dataclasses state shapes and
meaning.
"""

from typing import Protocol

from ninfer.tensor import LinearInput, Matrix, Tensor


class Rope(Protocol):
    """Partial rotary embedding with interleaved axes."""

    @property
    def theta(self) -> float:
        """Base of the frequencies."""

    @property
    def rotary_dim(self) -> int:
        """Rotated components of each head."""

    @property
    def section(self) -> tuple[int, int, int]:
        """Frequencies of each axis."""


class KvPlanes(Protocol):
    """Planes of one layer's paged cache and their block table."""

    @property
    def keys(self) -> Tensor:
        """[pages, kv_heads, 64, head_dim]."""

    @property
    def values(self) -> Tensor:
        """[pages, kv_heads, 64, head_dim]."""

    @property
    def key_scales(self) -> Tensor | None:
        """[pages, kv_heads, 64, groups] F16, with I8 planes."""

    @property
    def value_scales(self) -> Tensor | None:
        """[pages, kv_heads, 64, groups] F16, with I8 planes."""

    @property
    def block_table(self) -> Tensor:
        """[table_rows, L] I32."""


class MixerWeights(Protocol):
    """Small weights of a Gated DeltaNet layer."""

    @property
    def convolution(self) -> Tensor:
        """[4, C] BF16."""

    @property
    def a_log(self) -> Tensor:
        """[Hv] F32."""

    @property
    def dt_bias(self) -> Tensor:
        """[Hv] F32."""

    @property
    def norm(self) -> Tensor:
        """[Dv] BF16."""


class MixerDims(Protocol):
    """Heads of a Gated DeltaNet layer."""

    @property
    def num_key_heads(self) -> int:
        """Hk."""

    @property
    def num_value_heads(self) -> int:
        """Hv."""

    @property
    def key_dim(self) -> int:
        """Dk."""

    @property
    def value_dim(self) -> int:
        """Dv."""


class MixerState(Protocol):
    """Slots of a Gated DeltaNet layer and the records of their unfolded columns."""

    @property
    def matrices(self) -> Tensor:
        """[slots, Hv, Dk, Dv] F32."""

    @property
    def window(self) -> Tensor:
        """[slots, 3, C]."""

    @property
    def record_x(self) -> Tensor:
        """[slots, R, C]."""

    @property
    def record_k(self) -> Tensor:
        """[slots, R, Hk * Dk] F32."""

    @property
    def record_v(self) -> Tensor:
        """[slots, R, Hv * Dv] F32."""

    @property
    def record_g(self) -> Tensor:
        """[slots, R, Hv] F32."""

    @property
    def record_beta(self) -> Tensor:
        """[slots, R, Hv] F32."""


class SamplerSettings(Protocol):
    """Settings of the rows of a sampling round."""

    @property
    def temperature(self) -> Tensor:
        """[B] F32."""

    @property
    def top_p(self) -> Tensor:
        """[B] F32."""

    @property
    def min_p(self) -> Tensor:
        """[B] F32."""

    @property
    def presence(self) -> Tensor:
        """[B] F32."""

    @property
    def frequency(self) -> Tensor:
        """[B] F32."""

    @property
    def top_k(self) -> Tensor:
        """[B] I32."""

    @property
    def seeds(self) -> Tensor:
        """[B, 2] U32."""

    @property
    def positions(self) -> Tensor:
        """[B] I32."""


class MixtureWeights(Protocol):
    """Weights of a mixture behind its router and the shared expert's gate and up."""

    @property
    def gate_up(self) -> Matrix:
        """[E * 2I, H]."""

    @property
    def down(self) -> Matrix:
        """[E * H, I]."""

    @property
    def shared_down(self) -> Matrix:
        """[H, S]."""


class MixtureTensors(Protocol):
    """Room for what lies between the launches of a mixture."""

    @property
    def experts(self) -> Tensor:
        """[T, k] I32."""

    @property
    def weights(self) -> Tensor:
        """[T, k] F32."""

    @property
    def shared_gate(self) -> Tensor:
        """[T] F32."""

    @property
    def hidden(self) -> LinearInput:
        """T columns of S features."""

    @property
    def shared(self) -> Tensor:
        """[T, H]."""
