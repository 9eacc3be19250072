"""Memory that only remembers which tokens were written where.

A page is 64 cells, a StateImage a tuple of folded tokens and a tuple of records. A test writes
tokens through table rows and slots the way kernels would, and afterwards reads a sequence back:
when a page was shared wrongly, a tail not copied or a slot handed out twice, the tokens differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ninfer.program.kv_pool import PageId, PoolKind
from ninfer.program.state_store import SlotId

PAGE = 64
UNWRITTEN = -1


@dataclass
class Image:
    """One StateImage: tokens folded in, tokens recorded behind them, output counts."""

    folded: tuple[int, ...] = (UNWRITTEN,)
    records: tuple[int, ...] = ()
    counted: tuple[int, ...] = ()


@dataclass
class SimulatedMemory:
    """Pages and slots; implements `PhysicalCopies`."""

    num_pages: int
    num_slots: int
    images: list[Image] = field(init=False)
    pages: npt.NDArray[np.int64] = field(init=False)
    num_copies: int = 0

    def __post_init__(self) -> None:
        self.images = [Image() for _ in range(self.num_slots + 1)]
        self.pages = np.full((self.num_pages, PAGE), UNWRITTEN, np.int64)

    def clear_state(self, slot: SlotId) -> None:
        self.images[slot] = Image(folded=())

    def copy_state(self, source: SlotId, destination: SlotId) -> None:
        image = self.images[source]
        self.images[destination] = Image(image.folded, image.records, image.counted)
        self.num_copies += 1

    def reset_sampler(self, slot: SlotId) -> None:
        self.images[slot].counted = ()

    def copy_page(self, pool: PoolKind, source: PageId, destination: PageId) -> None:
        assert pool is PoolKind.MAIN
        self.pages[destination] = self.pages[source]
        self.num_copies += 1

    def write(self, row: Sequence[int], position: int, tokens: Sequence[int]) -> None:
        """Write tokens at consecutive positions through the pages of a table row."""
        for index, token in enumerate(tokens, position):
            self.pages[row[index // PAGE], index % PAGE] = token

    def read(self, pages: Sequence[int], num_tokens: int) -> list[int]:
        """Tokens of the first positions of a list of pages."""
        return [int(self.pages[pages[i // PAGE], i % PAGE]) for i in range(num_tokens)]
