"""Where a sequence's positions are split for decode attention, and who works on which split.

Borders are absolute positions: multiples of 128 up to 8,192, then 32 splits between each power of
two and the next. So a split's result, and the order in which results are merged, depend on the
column's own position alone; the widths bound the partial results of 262,144 positions by 224 splits
and still give every multiprocessor work at 1,024. Work items are (column, split, heads of one key
head), long splits first; block b takes items b, b + blocks, ... whatever the lengths are (over int8
pages it draws all but its first by tickets, `attention_scout`).
"""

from typing import Any, Final

from numba import int32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function

PAGE_TOKENS: Final = 64
ROWS: Final = 8
"""Query heads that one pass over keys serves."""

_WIDTH: Final = 128
_FINE: Final = 64  # splits of that width
_PER_OCTAVE: Final = 32
_FINE_POSITIONS: Final = _WIDTH * _FINE


def num_splits(positions: int) -> int:
    """Splits of a sequence of that many positions."""
    if positions <= _FINE_POSITIONS:
        return -(-positions // _WIDTH)
    octave, start = 0, _FINE_POSITIONS
    while positions > 2 * start:
        start *= 2
        octave += 1
    return _FINE + _PER_OCTAVE * octave + -(-(positions - start) // (start // _PER_OCTAVE))


@device_function
def count_splits(positions: Any) -> Any:
    """`num_splits` on the device."""
    count = (int32(positions) + int32(127)) >> int32(7)
    if positions > 8192:
        octave, start = int32(0), int32(8192)
        while positions > 2 * start:
            start = int32(2 * start)
            octave = int32(octave + 1)
        width = start >> int32(5)
        inside = (int32(positions) - start + width - int32(1)) >> (int32(8) + octave)
        count = int32(64) + int32(32) * octave + inside
    return int32(count)


@device_function
def split_start(split: Any) -> Any:
    """First position of a split; that of the next one is its end."""
    start = int32(split) << int32(7)
    if split > 64:
        octave = (int32(split) - int32(64)) >> int32(5)
        within = (int32(split) - int32(64)) & int32(31)
        start = (int32(8192) << octave) + within * (int32(256) << octave)
    return int32(start)


@device_function
def column_items(positions: int, column: Any, num_columns: Any, num_units: Any) -> Any:
    """Items of a column; more than there are indices behind the last column."""
    count = int32(0x7FFFFFFF)
    if column < num_columns:
        position = ptx.load_i32(positions + uint64(column) * uint64(4))
        count = int32(count_splits(position + int32(1)) * int32(num_units))
    return int32(count)


@device_function
def next_item(
    positions: int, item: Any, column: Any, items: Any, num_columns: Any, num_units: Any
) -> Any:
    """Go on to the column that an item counted from ``column`` on belongs to.

    Returns:
        The item among those of its column, the column, and how many items that has.
    """
    while item >= items and column < num_columns:
        item = int32(item - items)
        column = int32(column + 1)
        items = column_items(positions, column, num_columns, num_units)
    return item, column, items
