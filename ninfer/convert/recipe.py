"""How each object is put together from source tensors, and which source tensors must exist.

A stored matrix is a concatenation of row ranges; a recipe is that list, so assembling never needs
more than the rows at hand. Every possible parent of the family is described, whatever the storage
profile; the plan picks those of its inventory. Source: artifact contract, section 10.
"""

from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from ninfer.models.package import (
    DenseGeometry,
    DraftGeometry,
    Geometry,
    LayerKind,
    MoeGeometry,
    VisionGeometry,
)
from ninfer.models.qwen_hybrid.geometry import (
    PATCH_CHANNELS,
    PATCH_FRAMES,
    PATCH_SIZE,
)
from ninfer.tensor import Shape

MTP_PREFIX: Final = "mtp."
VISION_PREFIX: Final = "model.visual."
HEAD: Final = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows ``[first, first + count)`` of a source tensor, viewed as rows of the object's width."""

    source: str
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Row ranges one after another."""

    ranges: tuple[RowRange, ...]


@dataclass(frozen=True, slots=True)
class Transposed:
    """The transpose of a small source matrix of ``rows`` rows."""

    source: str
    rows: int


@dataclass(frozen=True, slots=True)
class Constant:
    """Words the converter makes itself."""

    words: npt.NDArray[np.int32]


Recipe = Rows | Transposed | Constant


@dataclass(slots=True)
class RecipeBook:
    """Recipes by object name, and the source tensors they use with their shapes."""

    recipes: dict[str, Recipe] = field(default_factory=dict)
    sources: dict[str, Shape] = field(default_factory=dict)

    def rows(self, source: str, shape: Shape, row_count: int | None = None) -> Rows:
        """Register a source; all of its rows. ``row_count`` is given where axes are merged."""
        self.sources[source] = shape
        return Rows((RowRange(source, 0, shape[0] if row_count is None else row_count),))

    def put(self, name: str, *parts: Rows) -> None:
        """Describe an object as the concatenation of parts."""
        self.recipes[name] = Rows(tuple(part for rows in parts for part in rows.ranges))


def vocabulary_source(geometry: Geometry, prefix: str) -> str:
    """Name of the tensor whose rows are the output head's."""
    return f"{prefix}embed_tokens.weight" if geometry.is_tied else HEAD


def gathered_rows(source: str, ids: npt.NDArray[np.int32]) -> Rows:
    """Rows of a source in the order of ``ids``; neighbours that follow one another are joined."""
    starts = np.flatnonzero(np.diff(ids, prepend=np.int32(-2)) != 1)
    counts = np.diff(starts, append=len(ids))
    return Rows(
        tuple(
            RowRange(source, int(ids[start]), int(count))
            for start, count in zip(starts, counts, strict=True)
        )
    )


def checkpoint_recipes(geometry: Geometry, prefix: str, names: Container[str]) -> RecipeBook:
    """Describe every object that comes from the model's own checkpoint.

    Args:
        geometry: dimensions; MTP and vision are described when it has them.
        prefix: of the text tensors, with the final dot.
        names: tensors the checkpoint has; tells fused experts from unfused ones.
    """
    book = RecipeBook()
    hidden, vocabulary = geometry.hidden, (geometry.vocab_rows, geometry.hidden)
    book.put("text/token_embedding", book.rows(f"{prefix}embed_tokens.weight", vocabulary))
    book.put("text/final_norm", book.rows(f"{prefix}norm.weight", (hidden,)))
    if not geometry.is_tied:
        book.put("text/output_head", book.rows(HEAD, vocabulary))
    for index, kind in enumerate(geometry.layers):
        _layer(book, geometry, kind, f"text/layers/{index}/", f"{prefix}layers.{index}.", names)
    if geometry.has_mtp:
        _mtp(book, geometry, names)
    if geometry.vision is not None:
        _vision(book, geometry.vision, hidden)
    return book


def draft_recipes(draft: DraftGeometry, geometry: Geometry) -> RecipeBook:
    """Describe every object that comes from a DFlash or DFlash2 checkpoint."""
    book = RecipeBook()
    hidden, dim, inner = geometry.hidden, draft.head_dim, draft.intermediate
    query, kv = draft.num_heads * dim, draft.num_kv_heads * dim
    root = "dflash2/" if draft.is_dflash2 else "dflash/"
    features = len(draft.target_layers) * hidden
    book.put(f"{root}feature_projection", book.rows("fc.weight", (hidden, features)))
    book.put(f"{root}context_norm", book.rows("hidden_norm.weight", (hidden,)))
    book.put(f"{root}final_norm", book.rows("norm.weight", (hidden,)))
    for index in range(len(draft.layer_windows)):
        to, of = f"{root}layers/{index}/", f"layers.{index}."
        _layer_norms(book, hidden, to, of)
        at = f"{of}self_attn."
        book.put(
            f"{to}attention/query_key_value",
            book.rows(f"{at}q_proj.weight", (query, hidden)),
            book.rows(f"{at}k_proj.weight", (kv, hidden)),
            book.rows(f"{at}v_proj.weight", (kv, hidden)),
        )
        _attention_rest(book, to, at, hidden, query, dim)
        _mlp(book, f"{to}mlp/gate_up", f"{to}mlp/down", f"{of}mlp.", inner, hidden)
        if draft.is_dflash2:
            kernels = 4 * (hidden // draft.conv_group)
            for branch in ("attention_conv", "mlp_conv"):
                at = f"{of}{branch}."
                base = book.rows(f"{at}base_kernel", (2, 2, hidden), 4)
                book.put(f"{to}{branch}/base_kernel", base)
                projection = book.rows(f"{at}kernel_projection.weight", (kernels, hidden))
                book.put(f"{to}{branch}/kernel_projection", projection)
    if draft.is_dflash2:
        to, of, rank = f"{root}candidate_selector/", "candidate_selector.", draft.selector_rank
        hidden_rows = book.rows(f"{of}hidden_projection.weight", (rank, hidden))
        book.put(f"{to}hidden_projection", hidden_rows)
        for codebook in ("predecessor_codebook", "successor_codebook"):
            rows = book.rows(f"{of}{codebook}", (geometry.vocab_rows, rank))
            book.put(f"{to}{codebook}", rows)
    return book


def _layer(
    book: RecipeBook,
    geometry: Geometry,
    kind: LayerKind,
    to: str,
    of: str,
    names: Container[str],
) -> None:
    _layer_norms(book, geometry.hidden, to, of)
    match kind:
        case LayerKind.FULL_ATTENTION:
            _attention(book, geometry, to, f"{of}self_attn.")
        case LayerKind.GATED_DELTA:
            _gated_delta(book, geometry, f"{to}gdn/", f"{of}linear_attn.")
    match geometry.mlp:
        case DenseGeometry(inner):
            _mlp(book, f"{to}mlp/gate_up", f"{to}mlp/down", f"{of}mlp.", inner, geometry.hidden)
        case MoeGeometry() as moe:
            _experts(book, moe, geometry.hidden, f"{to}moe/", f"{of}mlp.", names)


def _layer_norms(book: RecipeBook, hidden: int, to: str, of: str) -> None:
    book.put(f"{to}input_norm", book.rows(f"{of}input_layernorm.weight", (hidden,)))
    post = book.rows(f"{of}post_attention_layernorm.weight", (hidden,))
    book.put(f"{to}post_attention_norm", post)


def _attention(book: RecipeBook, geometry: Geometry, to: str, of: str) -> None:
    heads, hidden = geometry.attention, geometry.hidden
    dim, source = heads.head_dim, f"{of}q_proj.weight"
    book.sources[source] = (2 * heads.query_width, hidden)
    # Rows of each head are [query dim, gate dim]; all queries and all gates go together.
    starts = range(0, 2 * heads.query_width, 2 * dim)
    query = Rows(tuple(RowRange(source, start, dim) for start in starts))
    gate = Rows(tuple(RowRange(source, start + dim, dim) for start in starts))
    key = book.rows(f"{of}k_proj.weight", (heads.kv_width, hidden))
    value = book.rows(f"{of}v_proj.weight", (heads.kv_width, hidden))
    book.put(f"{to}attention/query_key", query, key)
    book.put(f"{to}attention/gate_value", gate, value)
    book.put(f"{to}attention/query_key_gate_value", query, key, gate, value)
    _attention_rest(book, to, of, hidden, heads.query_width, dim)


def _attention_rest(
    book: RecipeBook, to: str, of: str, hidden: int, query_width: int, head_dim: int
) -> None:
    book.put(f"{to}attention/query_norm", book.rows(f"{of}q_norm.weight", (head_dim,)))
    book.put(f"{to}attention/key_norm", book.rows(f"{of}k_norm.weight", (head_dim,)))
    book.put(f"{to}attention/output", book.rows(f"{of}o_proj.weight", (hidden, query_width)))


def _gated_delta(book: RecipeBook, geometry: Geometry, to: str, of: str) -> None:
    mixer, hidden = geometry.gated_delta, geometry.hidden
    num_heads, channels = mixer.num_value_heads, mixer.conv_channels
    book.put(f"{to}a_log", book.rows(f"{of}A_log", (num_heads,)))
    book.put(f"{to}dt_bias", book.rows(f"{of}dt_bias", (num_heads,)))
    convolution = f"{of}conv1d.weight"
    book.sources[convolution] = (channels, 1, mixer.conv_width)
    book.recipes[f"{to}convolution"] = Transposed(convolution, channels)
    a = book.rows(f"{of}in_proj_a.weight", (num_heads, hidden))
    b = book.rows(f"{of}in_proj_b.weight", (num_heads, hidden))
    book.put(f"{to}a_projection", a)
    book.put(f"{to}b_projection", b)
    book.put(f"{to}a_b_projection", a, b)
    source, keys = f"{of}in_proj_qkv.weight", 2 * mixer.key_width
    book.sources[source] = (channels, hidden)
    query_key = Rows((RowRange(source, 0, keys),))
    value = Rows((RowRange(source, keys, mixer.value_width),))
    z = book.rows(f"{of}in_proj_z.weight", (mixer.value_width, hidden))
    book.put(f"{to}query_key", query_key)
    book.put(f"{to}value_z", value, z)
    book.put(f"{to}query_key_value_z", query_key, value, z)
    book.put(f"{to}norm", book.rows(f"{of}norm.weight", (mixer.value_dim,)))
    book.put(f"{to}output", book.rows(f"{of}out_proj.weight", (hidden, mixer.value_width)))


def _mlp(book: RecipeBook, gate_up: str, down: str, of: str, inner: int, hidden: int) -> None:
    gate = book.rows(f"{of}gate_proj.weight", (inner, hidden))
    up = book.rows(f"{of}up_proj.weight", (inner, hidden))
    book.put(gate_up, gate, up)
    book.put(down, book.rows(f"{of}down_proj.weight", (hidden, inner)))


def _experts(
    book: RecipeBook, moe: MoeGeometry, hidden: int, to: str, of: str, names: Container[str]
) -> None:
    router = book.rows(f"{of}gate.weight", (moe.num_experts, hidden))
    shared_gate = book.rows(f"{of}shared_expert_gate.weight", (1, hidden))
    book.put(f"{to}router_shared_gate", router, shared_gate)
    count, width = moe.num_experts, moe.expert_width
    at = f"{of}experts."
    if f"{at}0.gate_proj.weight" in names:
        gate_up, down = _unfused_experts(book, moe, hidden, at)
    else:
        gate_up = book.rows(f"{at}gate_up_proj", (count, 2 * width, hidden), count * 2 * width)
        down = book.rows(f"{at}down_proj", (count, hidden, width), count * hidden)
    book.put(f"{to}routed_gate_up", gate_up)
    book.put(f"{to}routed_down", down)
    _mlp(
        book,
        f"{to}shared_gate_up",
        f"{to}shared_down",
        f"{of}shared_expert.",
        moe.shared_width,
        hidden,
    )


def _unfused_experts(book: RecipeBook, moe: MoeGeometry, hidden: int, at: str) -> tuple[Rows, Rows]:
    """Older spelling: one tensor for each projection of each expert."""
    width = moe.expert_width

    def gate_up() -> Iterator[RowRange]:
        for expert in range(moe.num_experts):
            for part in ("gate_proj", "up_proj"):
                source = f"{at}{expert}.{part}.weight"
                yield from book.rows(source, (width, hidden)).ranges

    def down() -> Iterator[RowRange]:
        for expert in range(moe.num_experts):
            yield from book.rows(f"{at}{expert}.down_proj.weight", (hidden, width)).ranges

    return Rows(tuple(gate_up())), Rows(tuple(down()))


def _mtp(book: RecipeBook, geometry: Geometry, names: Container[str]) -> None:
    hidden = geometry.hidden
    projection = book.rows(f"{MTP_PREFIX}fc.weight", (hidden, 2 * hidden))
    book.put("mtp/input_projection", projection)
    for name, source in (
        ("embedding_norm", "pre_fc_norm_embedding"),
        ("hidden_norm", "pre_fc_norm_hidden"),
        ("final_norm", "norm"),
    ):
        book.put(f"mtp/{name}", book.rows(f"{MTP_PREFIX}{source}.weight", (hidden,)))
    kind = LayerKind.FULL_ATTENTION
    _layer(book, geometry, kind, "mtp/layer/", f"{MTP_PREFIX}layers.0.", names)


def _vision(book: RecipeBook, vision: VisionGeometry, hidden: int) -> None:
    width, mlp, of = vision.width, vision.mlp_width, VISION_PREFIX
    patch = (width, PATCH_CHANNELS, PATCH_FRAMES, PATCH_SIZE, PATCH_SIZE)
    book.put("vision/patch_embedding", book.rows(f"{of}patch_embed.proj.weight", patch))
    book.put("vision/patch_embedding_bias", book.rows(f"{of}patch_embed.proj.bias", (width,)))
    positions = book.rows(f"{of}pos_embed.weight", (vision.num_positions, width))
    book.put("vision/position_embedding", positions)

    def affine(to: str, source: str, rows: int, columns: int) -> None:
        book.put(to, book.rows(f"{of}{source}.weight", (rows, columns)))
        book.put(f"{to}_bias", book.rows(f"{of}{source}.bias", (rows,)))

    def norm(to: str, source: str) -> None:
        for name in ("weight", "bias"):
            book.put(f"{to}/{name}", book.rows(f"{of}{source}.{name}", (width,)))

    for block in range(vision.depth):
        to, at = f"vision/layers/{block}/", f"blocks.{block}."
        affine(f"{to}attention/qkv", f"{at}attn.qkv", 3 * width, width)
        affine(f"{to}attention/output", f"{at}attn.proj", width, width)
        affine(f"{to}mlp/fc1", f"{at}mlp.linear_fc1", mlp, width)
        affine(f"{to}mlp/fc2", f"{at}mlp.linear_fc2", width, mlp)
        norm(f"{to}norm1", f"{at}norm1")
        norm(f"{to}norm2", f"{at}norm2")
    merged = width * vision.merge_size**2
    affine("vision/merger/fc1", "merger.linear_fc1", merged, merged)
    affine("vision/merger/fc2", "merger.linear_fc2", hidden, merged)
    norm("vision/merger/norm", "merger.norm")
