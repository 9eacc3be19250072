"""Parts of a prefill chunk: some of its layers, all of its columns.

              columns 0 .. T-1                  a round of other requests may run between two parts
    layer 0   | part 0 | ->  round
    ...       |        |
    layer 16  | part 1 | ->  round              what the parts hand on is the residual stream

A chunk is large so that weights are read for many columns at once, and whoever decodes meanwhile
would wait for all of it. Cutting it into fewer columns would change which kernels multiply its
last ones, and so its bits, by who else is there. Cutting it between layers changes nothing: every
op has the same operands whoever runs in between. Knows no op and no request.
"""

from itertools import pairwise
from typing import Final

PART_TOKENS: Final = 512
"""Work of one part, in tokens through all layers: 50 ms of a 27B model that reads 10,000/s."""


def part_layers(num_layers: int, num_columns: int) -> tuple[range, ...]:
    """Layers of each part of a chunk, in order.

    Args:
        num_layers: of the model, at least 1.
        num_columns: of the chunk, at least 1.

    Returns:
        As many parts as ``num_columns`` has `PART_TOKENS`, none empty, that differ by a layer at
        most.
    """
    count = min(num_layers, -(-num_columns // PART_TOKENS))
    ends = [num_layers * part // count for part in range(count + 1)]
    return tuple(range(first, stop) for first, stop in pairwise(ends))
