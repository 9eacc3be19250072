"""Rows of a weight and where their products go: what launchers of few columns share."""

from collections.abc import Iterable
from typing import Final, NamedTuple, Self

from ninfer.kernels.cuda.launch import blocks_for
from ninfer.kernels.cuda.product_output import Output
from ninfer.kernels.cuda.weight_layout import TILE_ROWS, WeightLayout
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.tensor import Matrix, Tensor, TensorFormat

MODE_AT: Final = 4
SKIP_AT: Final = 8
"""Bits of a weight's kind where its output and its skipped rows lie; its format is below."""

Formats = tuple[TensorFormat, ...]
"""Formats of one launch; a weight's number is its place here."""


class RowProduct(NamedTuple):
    """Products of a weight's rows with all columns of a launch.

    Attributes:
        format: of the weight.
        num_rows: rows.
        address: of the first row tile.
        tiles: row tiles that the rows lie in.
        skip: rows of the first tile that are left out.
        target: address of the first product.
        width: elements from column to column of the products.
        output: what happens to them.
    """

    format: TensorFormat
    num_rows: int
    address: int
    tiles: int
    skip: int
    target: int
    width: int
    output: Output

    @classmethod
    def of(cls, weight: Matrix, out: Tensor, first_column: int, output: Output) -> Self:
        """Products of a weight or a view of one, written behind so many columns of ``out``."""
        layout = WeightLayout(weight.format, weight.parent_rows, weight.num_columns)
        first, skip = divmod(weight.first_row, TILE_ROWS)
        return cls(
            weight.format,
            weight.num_rows,
            weight.storage.address
            + first * layout.k_tiles * PAIR_FORMATS[weight.format].tile_bytes,
            blocks_for(skip + weight.num_rows, TILE_ROWS),
            skip,
            out.address + first_column * out.dtype.itemsize,
            out.shape[1],
            output,
        )

    def kind(self, formats: Formats) -> int:
        """What a kernel for these formats has to know of the weight, in one word."""
        return formats.index(self.format) | int(self.output) << MODE_AT | self.skip << SKIP_AT


def formats_of(products: Iterable[RowProduct]) -> Formats:
    """Every format once, in the order of the products."""
    return tuple(dict.fromkeys(product.format for product in products))
