"""Sizes of a token choice by a cluster, and where its blocks keep what in shared memory.

A row is cut into consecutive ids, so many for each block of the cluster. Offsets are in bytes.
Knows no kernel.
"""

from dataclasses import dataclass
from typing import Final

from ninfer.kernels.cuda.choice_selection import MAX_IDS
from ninfer.kernels.cuda.launch import WARP

QUEUE: Final = 64
"""Ids that a warp keeps waiting for noise: fewer than a warp, and a warp's."""


@dataclass(frozen=True, slots=True)
class Room:
    """One shape of the kernel.

    Attributes:
        blocks: of a cluster, 2 or more; a power of two.
        threads: of a block; a power of two.
        ids: most ids of a block.
    """

    blocks: int
    threads: int
    ids: int

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return self.threads // WARP

    @property
    def bins(self) -> int:
        """Bins of a tally: two for each thread."""
        return 2 * self.threads

    @property
    def part(self) -> int:
        """Bins whose totals one block makes for all."""
        return self.bins // self.blocks

    @property
    def few(self) -> int:
        """Most candidates that one block ranks by comparing each with each."""
        return self.threads // 4

    @property
    def sums(self) -> int:
        """u32 [2][bins], lower and upper parts of weights; then u64 [bins], the row's.

        They lie behind the block's values, f32 [ids].
        """
        return 4 * self.ids

    @property
    def given(self) -> int:
        """u64 [blocks][part]: what every block has found of this block's part of the bins."""
        return self.sums + 8 * self.bins

    @property
    def queues(self) -> int:
        """u32 [warps][QUEUE]."""
        return self.given + 8 * self.bins

    @property
    def own_words(self) -> int:
        """u64 [few]: candidates of the block that are gathered, in any order."""
        return self.queues + 4 * QUEUE * self.warps

    @property
    def sent_words(self) -> int:
        """u64 [blocks][few]: those of every block; in the first one."""
        return self.own_words + 8 * self.few

    @property
    def found_words(self) -> int:
        """u64 [few]: the same without gaps."""
        return self.sent_words + 8 * self.few * self.blocks

    @property
    def ranked_words(self) -> int:
        """u64 [few]: the same, best first."""
        return self.found_words + 8 * self.few

    @property
    def ranks(self) -> int:
        """u32 [few]."""
        return self.ranked_words + 8 * self.few

    @property
    def parts(self) -> int:
        """u64 [4][warps]: what the warps of a block have to say to each other."""
        return self.ranks + 4 * self.few

    @property
    def place(self) -> int:
        """u64 [8]: what one thread has to say to its block."""
        return self.parts + 32 * self.warps

    @property
    def tops(self) -> int:
        """u64 [blocks][warps]: best candidate of each warp."""
        return self.place + 64

    @property
    def reports(self) -> int:
        """u64 [blocks][4]: what each block has gathered."""
        return self.tops + 8 * self.warps * self.blocks

    @property
    def drawn(self) -> int:
        """u64 [blocks]: best score of each block; in the first one."""
        return self.reports + 32 * self.blocks

    @property
    def end(self) -> int:
        """u64: the last word that is kept; as many bytes before as alignment takes."""
        return self.drawn + 8 * self.blocks + 8

    @property
    def words(self) -> int:
        """u32 [20]: what random words of a row have in common."""
        return self.end + 8

    @property
    def lowest(self) -> int:
        """u32 [blocks]: lowest permitted id of each block; in the first one."""
        return self.words + 80

    @property
    def length(self) -> int:
        """u32: how many `own_words` there are, or would be."""
        return self.arrivals + 16

    @property
    def arrivals(self) -> int:
        """u64 [2]: barriers at which halves of the logits arrive."""
        return self.lowest + 4 * self.blocks

    @property
    def nbytes(self) -> int:
        """Shared memory of a block."""
        return self.length + 8


ROOM: Final = Room(blocks=8, threads=1024, ids=MAX_IDS // 8)
