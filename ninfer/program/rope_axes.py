"""Three-axis positions of tokens: those of a prompt as it brought them, then one after another."""

from collections.abc import Sequence

from ninfer.generation import RopePositions
from ninfer.program.sequence_table import prefix_axes


def rope_position(rope: RopePositions | None, position: int) -> tuple[int, int, int]:
    """Three-axis position of one token; the anchor of a fresh prompt is still one of its own."""
    if rope is None:
        return position, position, position
    if position < len(rope.axes[0]):
        time, height, width = rope.axes
        return time[position], height[position], width[position]
    shifted = position + rope.delta
    return shifted, shifted, shifted


def rope_axes(
    rope: RopePositions | None, first: int, stop: int
) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """Three-axis positions of ``[first, stop)``."""
    axes = prefix_axes(rope, stop)
    if axes is None:
        plain = range(first, stop)
        return plain, plain, plain
    time, height, width = axes
    return time[first:stop], height[first:stop], width[first:stop]
