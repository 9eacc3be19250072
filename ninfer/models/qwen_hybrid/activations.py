"""Activation buffers of the text schedule: which exist, how large, and which share bytes.

A layer runs in phases that exclude one another: a mixer (attention or Gated DeltaNet) and then an
FFN. Only the residual stream and the normalised input outlive a phase, so the phases share one
region of the storage:

    | residual | normed | attention:  projected, queries, mixed          |
                        | delta:      projected, ab, mixed               |
                        | ffn:        gate_up, hidden, (MoE) router, ... |

Nothing here allocates: storage is handed in, and the same storage serves every number of columns up
to the one it was sized for. Gates and ups have bytes only for so many columns as the device does
not gate at once. What the columns mean is the schedule's business.
"""

from dataclasses import dataclass

from ninfer.device import ALIGNMENT
from ninfer.models.package import DenseGeometry, Geometry, MoeGeometry
from ninfer.models.qwen_hybrid.weights import DenseFfn, TextWeights
from ninfer.ops import linear
from ninfer.ops.context import OpContext
from ninfer.tensor import DType, LinearInput, Matrix, Shape, Tensor


@dataclass(frozen=True, slots=True)
class AttentionActivations:
    """Mixer phase of a full-attention layer.

    Attributes:
        projected: [T, 2Q + 2KV], columns q, k, gate, v.
        queries: [T, heads, head_dim], normalised and rotated.
        mixed: [T, Q], gated output, input of the output projection.
    """

    projected: Tensor
    queries: Tensor
    mixed: LinearInput


@dataclass(frozen=True, slots=True)
class GatedDeltaActivations:
    """Mixer phase of a Gated DeltaNet layer.

    Attributes:
        projected: [T, C + VG], columns q, k, v, z.
        ab: f32 [T, 2Hv], decay inputs, then write strengths.
        mixed: [T, VG], input of the output projection.
    """

    projected: Tensor
    ab: Tensor
    mixed: LinearInput


@dataclass(frozen=True, slots=True)
class DenseActivations:
    """FFN phase of a dense layer.

    Attributes:
        gate_up: [T, 2I], gate, then up; no rows where every layer gates at once.
        hidden: [T, I], input of the down projection.
    """

    gate_up: Tensor
    hidden: LinearInput


@dataclass(frozen=True, slots=True)
class MoeActivations:
    """FFN phase of a mixture-of-experts layer.

    Attributes:
        router: f32 [T, E + 1], expert logits, then the shared expert's gate.
        experts, weights: i32 and f32 [T, k], ranking of each token.
        shared_gate: f32 [T].
        gate_up, hidden: the shared expert's, as in the dense layer.
        shared: [T, H], the shared expert's output.
    """

    router: Tensor
    experts: Tensor
    weights: Tensor
    shared_gate: Tensor
    gate_up: Tensor
    hidden: LinearInput
    shared: Tensor


@dataclass(frozen=True, slots=True)
class TextActivations:
    """Every activation of T columns.

    Attributes:
        residual: [T, H], the residual stream.
        normed: [T, H], normalised residual, input of projections and of the head.
    """

    residual: Tensor
    normed: LinearInput
    attention: AttentionActivations
    gated_delta: GatedDeltaActivations
    ffn: DenseActivations | MoeActivations


def carve_activations(
    ctx: OpContext, geometry: Geometry, weights: TextWeights, num_columns: int, storage: Tensor
) -> TextActivations:
    """Lay the activations of ``num_columns`` columns out in ``storage``.

    Args:
        ctx: device whose activation type and linear inputs are meant.
        geometry: dimensions of the model.
        weights: its weights; what is needed between two kernels depends on theirs.
        num_columns: T, at least 1.
        storage: flat U8 of at least `activation_bytes` for T; the views point into it.

    Raises:
        ShapeError: the storage is too small.
    """
    carver = _Carver(storage)
    return _lay_out(ctx, geometry, _gate_ups(weights), num_columns, carver)


def activation_bytes(
    ctx: OpContext, geometry: Geometry, weights: TextWeights, num_columns: int
) -> int:
    """Bytes of storage that `carve_activations` needs for up to ``num_columns`` columns."""
    gate_ups = _gate_ups(weights)
    # What fewer columns need between two kernels may be more than all that more columns need.
    most_between = next(
        (t for t in range(num_columns, 0, -1) if not _gate_at_once(ctx, gate_ups, t)), num_columns
    )
    nbytes = 0
    for count in (num_columns, most_between):
        carver = _Carver(None)
        _lay_out(ctx, geometry, gate_ups, count, carver)
        nbytes = max(nbytes, carver.high_water)
    return nbytes


class _Carver:
    """Bump allocator over one storage, or over none when only the size is wanted."""

    def __init__(self, storage: Tensor | None) -> None:
        self._storage = storage
        self.cursor = 0
        self.high_water = 0

    def take(self, dtype: DType, *shape: int) -> Tensor:
        tensor = Tensor(0, dtype, shape)
        return Tensor(self._advance(tensor.nbytes), dtype, shape)

    def take_input(self, ctx: OpContext, num_columns: int, width: int) -> LinearInput:
        nbytes = linear.input_bytes(ctx, num_columns, width)
        shape: Shape = (nbytes,)
        return LinearInput(Tensor(self._advance(nbytes), DType.U8, shape), num_columns, width)

    def _advance(self, nbytes: int) -> int:
        first = self.cursor
        self.cursor = -(-(first + nbytes) // ALIGNMENT) * ALIGNMENT
        self.high_water = max(self.high_water, self.cursor)
        if self._storage is None:
            return first
        return self._storage.rows(first, nbytes).address


def _gate_ups(weights: TextWeights) -> tuple[Matrix, ...]:
    """Matrices of gates and ups of dense layers, one of each kind."""
    found = {}
    for layer in weights.layers:
        if isinstance(layer.ffn, DenseFfn):
            one = layer.ffn.gate_up
            kind = one.format, one.parent_rows, one.num_columns, one.first_row, one.num_rows
            found[kind] = one
    return tuple(found.values())


def _gate_at_once(ctx: OpContext, gate_ups: tuple[Matrix, ...], num_columns: int) -> bool:
    return all(linear.gates_at_once(ctx, num_columns, one) for one in gate_ups)


def _lay_out(
    ctx: OpContext, geometry: Geometry, gate_ups: tuple[Matrix, ...], t: int, carver: _Carver
) -> TextActivations:
    act = ctx.device.activation_dtype
    residual = carver.take(act, t, geometry.hidden)
    normed = carver.take_input(ctx, t, geometry.hidden)
    phase = carver.cursor
    heads = geometry.attention
    attention = AttentionActivations(
        carver.take(act, t, 2 * heads.query_width + 2 * heads.kv_width),
        carver.take(act, t, heads.num_heads, heads.head_dim),
        carver.take_input(ctx, t, heads.query_width),
    )
    carver.cursor = phase
    delta = geometry.gated_delta
    gated_delta = GatedDeltaActivations(
        carver.take(act, t, delta.conv_channels + delta.value_width),
        carver.take(DType.F32, t, 2 * delta.num_value_heads),
        carver.take_input(ctx, t, delta.value_width),
    )
    carver.cursor = phase
    ffn: DenseActivations | MoeActivations
    match geometry.mlp:
        case DenseGeometry(intermediate=width):
            between = 0 if _gate_at_once(ctx, gate_ups, t) else t
            gate_up = carver.take(act, between, 2 * width)
            ffn = DenseActivations(gate_up, carver.take_input(ctx, t, width))
        case MoeGeometry() as moe:
            ffn = MoeActivations(
                carver.take(DType.F32, t, moe.num_experts + 1),
                carver.take(DType.I32, t, moe.experts_per_token),
                carver.take(DType.F32, t, moe.experts_per_token),
                carver.take(DType.F32, t),
                carver.take(act, t, 2 * moe.shared_width),
                carver.take_input(ctx, t, moe.shared_width),
                carver.take(act, t, geometry.hidden),
            )
    return TextActivations(residual, normed, attention, gated_delta, ffn)
