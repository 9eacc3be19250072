"""Schedule of the text model: which op runs on which weights, in which order.

    x = embed[token]
    for each layer:
        x = x + mixer(offset_norm(x))       attention or Gated DeltaNet
        x = x + ffn(offset_norm(x))         dense or mixture of experts
    logits = head(offset_norm(x))

`prefill_columns` runs the columns of one sequence's chunk, `decode_columns` one column of each of
B sequences; they differ in the two mixer ops and in nothing else. The schedule calls ops only. It
does not know where pages, slots or weights come from, who reads the logits, or that a graph records
it; so everything that varies from call to call is data in the tensors of `TextColumns`.

Source: model contract, section 3.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ninfer.errors import InvariantError
from ninfer.models.package import Geometry
from ninfer.models.qwen_hybrid.activations import (
    DenseActivations,
    MoeActivations,
    TextActivations,
)
from ninfer.models.qwen_hybrid.weights import (
    AttentionLayer,
    DenseFfn,
    GatedDeltaLayer,
    MoeFfn,
    TextWeights,
)
from ninfer.ops import (
    attention,
    embedding,
    gated_delta,
    kv_cache,
    linear,
    moe,
    norm,
)
from ninfer.ops.context import OpContext
from ninfer.ops.gated_delta import GatedDeltaDims, GatedDeltaState
from ninfer.ops.kv_cache import PagedKv, RopeSpec
from ninfer.ops.moe import MixtureTensors, MixtureWeights
from ninfer.tensor import LinearInput, Tensor


@dataclass(frozen=True, slots=True)
class TextColumns:
    """Inputs of T columns; all i32 on the device, at addresses that a graph may keep.

    Attributes:
        tokens: [T], token of each column.
        positions: [T], absolute position in its sequence; the place in its cache.
        rope_positions: [3, T], time, height and width position.
        table_rows: [T], block-table row of each column's sequence.
        slots: [B] in decode, [1] in prefill: state slot of each sequence.
        fold: like ``slots``: recorded columns to fold in before anything else.
    """

    tokens: Tensor
    positions: Tensor
    rope_positions: Tensor
    table_rows: Tensor
    slots: Tensor
    fold: Tensor


@dataclass(frozen=True, slots=True)
class TextCaches:
    """What the layers remember.

    Attributes:
        kv: paged planes, one entry for each full-attention layer, in layer order.
        states: recurrent planes, one entry for each Gated DeltaNet layer, in layer order.
    """

    kv: tuple[PagedKv, ...]
    states: tuple[GatedDeltaState, ...]


@dataclass(frozen=True, slots=True)
class TextModel:
    """A model bound to its weights and caches."""

    geometry: Geometry
    weights: TextWeights
    caches: TextCaches


@dataclass(frozen=True, slots=True)
class _Mixers:
    """The two ops in which prefill and decode differ; their argument lists are the same."""

    attend: Callable[..., None]
    advance: Callable[..., None]


_DECODE: Final = _Mixers(attention.paged_decode, gated_delta.decode)
_PREFILL: Final = _Mixers(attention.paged_prefill, gated_delta.prefill)


def decode_columns(
    ctx: OpContext, model: TextModel, columns: TextColumns, activations: TextActivations
) -> None:
    """Run one column of each of B sequences through all layers.

    Args:
        ctx: where to run.
        model: weights and caches.
        columns: B columns, each of another sequence.
        activations: laid out for B columns.

    Writes: the KV entries at ``positions``, the states' records (the matrices stay those of the
    round's entry, with ``fold`` columns folded in), and ``activations``, whose residual is then the
    stream after the last layer.
    """
    _run(ctx, model, columns, activations, _DECODE, range(len(model.weights.layers)))


def prefill_columns(
    ctx: OpContext,
    model: TextModel,
    columns: TextColumns,
    activations: TextActivations,
    layers: range | None = None,
) -> None:
    """Run T consecutive columns of one sequence through all layers, or through some.

    Args:
        ctx: where to run.
        model: weights and caches.
        columns: T columns of one sequence, positions ascending by one.
        activations: laid out for T columns; the residual stream is that of the layers before.
        layers: consecutive ones, all when None; the first of the model starts from the embedding.

    Writes: the KV entries at ``positions``, the state of the one slot in place (``fold`` recorded
    columns first), and ``activations`` as `decode_columns` does.
    """
    layers = range(len(model.weights.layers)) if layers is None else layers
    _run(ctx, model, columns, activations, _PREFILL, layers)


def output_logits(
    ctx: OpContext,
    model: TextModel,
    activations: TextActivations,
    logits: Tensor,
    first: int = 0,
) -> None:
    """Apply the final norm and the output head to columns ``[first, first + N)``.

    Args:
        ctx: where to run.
        model: weights.
        activations: residual stream after the last layer; ``normed`` is overwritten.
        logits: f32 [N, vocab_rows], written; rows past the tokenizer included.
        first: first column.
    """
    count, hidden = logits.shape[0], model.geometry.hidden
    storage = activations.normed.storage.rows(0, linear.input_bytes(ctx, count, hidden))
    normed = LinearInput(storage, count, hidden)
    columns = activations.residual.rows(first, count)
    norm.rms_norm(ctx, columns, model.weights.final_norm, model.geometry.norm_eps, normed)
    linear.project(ctx, normed, model.weights.head, logits)


def _run(
    ctx: OpContext,
    model: TextModel,
    columns: TextColumns,
    activations: TextActivations,
    mixers: _Mixers,
    layers: range,
) -> None:
    if layers.start == 0:
        embedding.gather(ctx, model.weights.embedding, columns.tokens, activations.residual)
    before = model.weights.layers[: layers.start]
    num_attention = sum(isinstance(layer, AttentionLayer) for layer in before)
    kv = iter(model.caches.kv[num_attention:])
    states = iter(model.caches.states[len(before) - num_attention :])
    for layer in model.weights.layers[layers.start : layers.stop]:
        match layer:
            case AttentionLayer():
                _attention(ctx, model, layer, next(kv), columns, activations, mixers)
            case GatedDeltaLayer():
                _gated_delta(ctx, model, layer, next(states), columns, activations, mixers)
        _ffn(ctx, model, layer, activations)


def _attention(
    ctx: OpContext,
    model: TextModel,
    layer: AttentionLayer,
    kv: PagedKv,
    columns: TextColumns,
    activations: TextActivations,
    mixers: _Mixers,
) -> None:
    heads = model.geometry.attention
    eps = model.geometry.norm_eps
    own = activations.attention
    norm.rms_norm(ctx, activations.residual, layer.input_norm, eps, activations.normed)
    products = [(matrix, own.projected, first) for matrix, first in layer.projections]
    linear.project_all(ctx, activations.normed, products)
    kv_cache.append(
        ctx,
        own.projected,
        layer.query_norm,
        layer.key_norm,
        eps,
        RopeSpec(heads.rope_theta, heads.rotary_dim, heads.mrope_section),
        columns.rope_positions,
        columns.positions,
        columns.table_rows,
        kv,
        own.queries,
    )
    mixers.attend(
        ctx,
        own.queries,
        own.projected,
        kv,
        columns.table_rows,
        columns.positions,
        heads.head_dim**-0.5,
        own.mixed,
    )
    linear.project_add(ctx, own.mixed, layer.output, activations.residual)


def _gated_delta(
    ctx: OpContext,
    model: TextModel,
    layer: GatedDeltaLayer,
    state: GatedDeltaState,
    columns: TextColumns,
    activations: TextActivations,
    mixers: _Mixers,
) -> None:
    delta = model.geometry.gated_delta
    eps = model.geometry.norm_eps
    own = activations.gated_delta
    norm.rms_norm(ctx, activations.residual, layer.input_norm, eps, activations.normed)
    products = [(matrix, own.projected, first) for matrix, first in layer.projections]
    products += [(matrix, own.ab, first) for matrix, first in layer.ab]
    linear.project_all(ctx, activations.normed, products)
    mixers.advance(
        ctx,
        own.projected,
        own.ab,
        layer.mixer,
        GatedDeltaDims(delta.num_key_heads, delta.num_value_heads, delta.key_dim, delta.value_dim),
        state,
        columns.slots,
        columns.fold,
        eps,
        own.mixed,
    )
    linear.project_add(ctx, own.mixed, layer.output, activations.residual)


def _ffn(
    ctx: OpContext,
    model: TextModel,
    layer: AttentionLayer | GatedDeltaLayer,
    activations: TextActivations,
) -> None:
    residual, normed = activations.residual, activations.normed
    norm.rms_norm(ctx, residual, layer.post_norm, model.geometry.norm_eps, normed)
    match layer.ffn, activations.ffn:
        case DenseFfn() as dense, DenseActivations() as own:
            linear.project_gated(ctx, normed, dense.gate_up, own.gate_up, own.hidden)
            linear.project_add(ctx, own.hidden, dense.down, residual)
        case MoeFfn() as experts, MoeActivations() as own:
            _moe(ctx, experts, own, activations)
        case _:
            raise InvariantError("the weights' FFN is not the geometry's")


def _moe(ctx: OpContext, ffn: MoeFfn, own: MoeActivations, activations: TextActivations) -> None:
    normed = activations.normed
    products = [(ffn.router, own.router, 0), (ffn.shared_gate_up, own.gate_up, 0)]
    linear.project_all(ctx, normed, products)
    moe.mix(
        ctx,
        normed,
        own.router,
        own.gate_up,
        MixtureWeights(ffn.routed_gate_up, ffn.routed_down, ffn.shared_down),
        MixtureTensors(own.experts, own.weights, own.shared_gate, own.hidden, own.shared),
        activations.residual,
    )
