"""Operands of a simulated product in one memory: columns, weights and outputs between guards."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ninfer.kernels.cuda.fragments import fragment_bytes, pack_columns
from ninfer.kernels.cuda.weight_layout import WeightLayout, pack_weight
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.tensor import TensorFormat
from tests.support.tolerances import F32_UNIT
from tests.support.warp_simulator import GLOBAL

F32 = npt.NDArray[np.float32]
Octets = npt.NDArray[np.uint8]


class View(NamedTuple):
    """Rows of one weight."""

    format: TensorFormat
    payload: Octets
    num_rows: int
    rows: slice


class Placed(NamedTuple):
    """Where a view lies.

    Attributes:
        codes: address of the stored tile that has its first row.
        out: address of its first product; rows of products are ``num_rows + 3`` apart.
        num_rows: of the view.
        skip: rows of the first tile before it.
        tiles: tiles that it touches.
    """

    codes: int
    out: int
    num_rows: int
    skip: int
    tiles: int


class ProductMemory:
    """Memory of one launch; everything that is no product keeps its bytes.

    Args:
        words: bf16 [T, K], the columns.

    Attributes:
        columns, sums: addresses of the packed columns.
        num_columns, k_tiles: extents.
    """

    def __init__(self, words: npt.NDArray[np.uint16]) -> None:
        self._parts: list[Octets] = []
        self._outs: list[tuple[int, tuple[int, int]]] = []
        self.num_columns, self._width = words.shape
        self.k_tiles = -(-self._width // 128)
        self.columns = self._put(pack_columns(words))
        self.sums = self.columns + fragment_bytes(*words.shape)

    def add(self, view: View) -> Placed:
        """Place a weight, and F32 products of some rows between guard columns of NaN."""
        layout = WeightLayout(view.format, view.num_rows, self._width)
        weight = self._put(pack_weight(view.format, view.payload, view.num_rows, self._width))
        num_rows = view.rows.stop - view.rows.start
        out = np.full((self.num_columns, num_rows + 3), np.nan, np.float32)
        at = self._put(out.view(np.uint8).reshape(-1))
        self._outs.append((at - GLOBAL, out.shape))
        first, skip = divmod(view.rows.start, 16)
        codes = weight + first * layout.k_tiles * PAIR_FORMATS[view.format].tile_bytes
        return Placed(codes, at + 4, num_rows, skip, -(-(skip + num_rows) // 16))

    def octets(self) -> Octets:
        """All bytes before the launch, a new copy each time."""
        return np.concatenate(self._parts)

    def products(self, after: Octets) -> list[F32]:
        """Products [T, rows] of each view, where nothing else has changed."""
        before, found = self.octets(), []
        for at, shape in self._outs:
            part = slice(at, at + 4 * shape[0] * shape[1])
            out = after[part].copy().view(np.float32).reshape(shape)
            assert np.all(np.isnan(out[:, [0, -2, -1]]))
            found.append(out[:, 1:-2])
            before[part] = after[part]
        np.testing.assert_array_equal(after, before)
        return found

    def _put(self, octets: Octets) -> int:
        place = GLOBAL + sum(part.size for part in self._parts)
        self._parts.append(np.pad(octets, (0, -octets.size % 256), constant_values=0xA5))
        return place


def bf16_words(values: F32) -> npt.NDArray[np.uint16]:
    """Upper halves of numbers."""
    return (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def bound(values: npt.NDArray[np.float64], x: F32) -> npt.NDArray[np.float64]:
    """Rounding of sums whose terms carry an offset of up to 160 units of their scale."""
    magnitude = np.abs(values).max(axis=1, keepdims=True) * 24 @ np.abs(x).sum(axis=1)[None]
    return np.asarray(magnitude.T * 24 * F32_UNIT + 1e-30)
