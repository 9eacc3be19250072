"""Device planes of the main KV pool: what one page group physically is, and how it is copied.

A page group is the same slice of every plane: keys and values of all full-attention layers, and
their scales when the cache holds int8 codes. Physical order is page-major,
``[page][head][token][dim]``. Which page belongs to whom is the pool's business.
"""

from dataclasses import dataclass

from ninfer.config import PAGE_TOKENS, KvDtype
from ninfer.device import Arena, Stream
from ninfer.errors import ConfigurationError
from ninfer.models.package import AttentionGeometry, Geometry, LayerKind
from ninfer.ops.kv_cache import PagedKv
from ninfer.tensor import DType, Shape, Tensor

SCALE_GROUP = 64
"""Dims that share one fp16 scale in an int8 cache; a narrower head is one group."""


@dataclass(frozen=True, slots=True)
class KvPlanes:
    """All planes, pages as the leading axis; the arena they were taken from owns them.

    Attributes:
        layers: one entry for each full-attention layer, in layer order, sharing one block table.
    """

    layers: tuple[PagedKv, ...]

    @property
    def planes(self) -> tuple[Tensor, ...]:
        """Every plane once: codes, and scales where there are any."""
        return tuple(
            plane
            for layer in self.layers
            for plane in (layer.keys, layer.values, layer.key_scales, layer.value_scales)
            if plane is not None
        )

    def copy_page(self, stream: Stream, source: int, destination: int) -> None:
        """Make page group ``destination`` equal to ``source``."""
        for plane in self.planes:
            stream.copy(plane.rows(destination, 1), plane.rows(source, 1))


def element_dtype(kv_dtype: KvDtype, activation_dtype: DType, device_kind: str) -> DType:
    """Element type of the cache on this device.

    Raises:
        ConfigurationError: the device has no such cache.
    """
    match kv_dtype:
        case KvDtype.AUTO:
            return activation_dtype
        case KvDtype.F32:
            if device_kind != "host":
                raise ConfigurationError(
                    f"kv_dtype f32 exists on the host device only, not on {device_kind!r}",
                    field="kv_dtype",
                )
            return DType.F32
        case KvDtype.BF16:
            return DType.BF16
        case KvDtype.INT8_G64:
            return DType.I8


def plane_shapes(
    geometry: Geometry, num_pages: int, dtype: DType
) -> tuple[tuple[Shape, DType], ...]:
    """Shapes of all planes in the order in which `take_planes` takes them."""
    heads = geometry.attention
    codes: tuple[Shape, DType] = (
        (num_pages, heads.num_kv_heads, PAGE_TOKENS, heads.head_dim),
        dtype,
    )
    scales: tuple[Shape, DType] = (
        (num_pages, heads.num_kv_heads, PAGE_TOKENS, _num_groups(heads)),
        DType.F16,
    )
    of_layer = (codes, codes, scales, scales) if dtype is DType.I8 else (codes, codes)
    return of_layer * geometry.count(LayerKind.FULL_ATTENTION)


def take_planes(
    arena: Arena, geometry: Geometry, num_pages: int, dtype: DType, block_table: Tensor
) -> KvPlanes:
    """Take all planes from ``arena``; their bytes are not initialised.

    Args:
        arena: owner of the planes.
        geometry: dimensions of the model.
        num_pages: page groups of the pool.
        dtype: F32, BF16 or I8.
        block_table: i32 [table rows, pages a sequence may have], shared by all layers.
    """
    taken = [arena.take(shape, kind) for shape, kind in plane_shapes(geometry, num_pages, dtype)]
    if dtype is not DType.I8:
        return KvPlanes(
            tuple(
                PagedKv(taken[i], taken[i + 1], None, None, block_table)
                for i in range(0, len(taken), 2)
            )
        )
    return KvPlanes(
        tuple(
            PagedKv(taken[i], taken[i + 1], taken[i + 2], taken[i + 3], block_table)
            for i in range(0, len(taken), 4)
        )
    )


def _num_groups(heads: AttentionGeometry) -> int:
    return max(1, heads.head_dim // SCALE_GROUP)
