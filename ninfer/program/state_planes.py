"""Device planes of the StateImages: what a slot physically is, and how it is cleared or copied.

A slot is the same slice of every plane: for each Gated DeltaNet layer the recurrent matrices, the
convolution window and the records of the columns not folded in yet; and once, for the whole model,
the counts of output tokens that penalties read. Which slot belongs to whom is the state store's
business, how many recorded columns are still to be folded the sequence's.
"""

from dataclasses import dataclass, fields

from ninfer.device import Arena, Stream
from ninfer.models.package import Geometry, LayerKind
from ninfer.ops.gated_delta import GatedDeltaState
from ninfer.tensor import DType, Shape, Tensor


@dataclass(frozen=True, slots=True)
class StatePlanes:
    """All planes, slots as the leading axis; the arena they were taken from owns them.

    Attributes:
        layers: one entry for each Gated DeltaNet layer, in layer order.
        counts: i32 [slots, vocab_rows], committed output tokens of the slot's sequence.
    """

    layers: tuple[GatedDeltaState, ...]
    counts: Tensor

    def clear(self, stream: Stream, slot: int) -> None:
        """Make ``slot`` the state of an empty sequence; its records stay, unreadable."""
        for layer in self.layers:
            stream.clear(layer.matrices.rows(slot, 1))
            stream.clear(layer.window.rows(slot, 1))
        stream.clear(self.counts.rows(slot, 1))

    def copy(self, stream: Stream, source: int, destination: int) -> None:
        """Make ``destination`` equal to ``source``, records included."""
        for plane in self._planes():
            stream.copy(plane.rows(destination, 1), plane.rows(source, 1))

    def _planes(self) -> tuple[Tensor, ...]:
        of_layers = (
            plane
            for layer in self.layers
            for plane in (
                layer.matrices,
                layer.window,
                layer.record_x,
                layer.record_k,
                layer.record_v,
                layer.record_g,
                layer.record_beta,
            )
        )
        return (*of_layers, self.counts)


def plane_shapes(
    geometry: Geometry, num_slots: int, num_records: int, activation_dtype: DType
) -> tuple[tuple[Shape, DType], ...]:
    """Shapes of all planes in the order in which `take_planes` takes them.

    Args:
        geometry: dimensions of the model.
        num_slots: StateImages, scratch included.
        num_records: columns one unit may leave unfolded, at least 1.
        activation_dtype: element type of convolution inputs.
    """
    delta = geometry.gated_delta
    heads = delta.num_value_heads
    of_layer: tuple[tuple[Shape, DType], ...] = (
        ((num_slots, heads, delta.key_dim, delta.value_dim), DType.F32),
        ((num_slots, delta.conv_width - 1, delta.conv_channels), activation_dtype),
        ((num_slots, num_records, delta.conv_channels), activation_dtype),
        ((num_slots, num_records, delta.key_width), DType.F32),
        ((num_slots, num_records, delta.value_width), DType.F32),
        ((num_slots, num_records, heads), DType.F32),
        ((num_slots, num_records, heads), DType.F32),
    )
    layers = of_layer * geometry.count(LayerKind.GATED_DELTA)
    return (*layers, ((num_slots, geometry.vocab_rows), DType.I32))


def take_planes(
    arena: Arena, geometry: Geometry, num_slots: int, num_records: int, activation_dtype: DType
) -> StatePlanes:
    """Take all planes from ``arena``; their bytes are not initialised."""
    shapes = plane_shapes(geometry, num_slots, num_records, activation_dtype)
    taken = [arena.take(shape, dtype) for shape, dtype in shapes]
    of_layer = len(fields(GatedDeltaState))
    layers = tuple(
        GatedDeltaState(*taken[first : first + of_layer])
        for first in range(0, len(taken) - 1, of_layer)
    )
    return StatePlanes(layers, taken[-1])
