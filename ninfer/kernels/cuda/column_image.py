"""Columns as Hopper's warpgroups read them from shared memory: the other order of a linear input.

A linear input of more than `FRAGMENT_COLUMNS` columns is an image where the device has warpgroups
(`is_image`, which everybody asks who writes or reads one); every other one has the order of
`fragments`. The image starts at the storage's address, has ``padded_width(K) / 64`` blocks for each
128 columns, and no sums behind it; the storage has room for either order (`input_bytes`).

A column has K features, padded with zeros as `fragments` pads them. Columns are cut into blocks of
128 x 64 features, 16 KiB each, the blocks of the same columns next to each other
(``block = column / 128 * K/64 + k / 64``), so that a product asks for a block by one copy. A block
is the image of shared memory with the swizzle over 128 bytes:

    address   128 column + 16 (piece xor column mod 8) inside a block
    piece     4 w + j: of slab w, 32 features, the j-th pairs of its four chunks

A chunk's pairs are 0,4 1,5 2,6 3,7 (`fragments`). So 16 features of a product are two pieces, in
the order in which lanes hold weights as the operand of m16n8k16 (`weight_pairs`): it only permutes
the features of a sum. Eight columns of a piece are spread over all banks. Four lanes that have the
four chunks of a slab turn them into its four pieces by four shuffles (`turn_square`), so that piece
i of a column is stored by the lane of its chunk i. Columns behind the last one are never written
and whatever they hold reaches no other column.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numba import int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.errors import ShapeError
from ninfer.kernels.cuda import fragments
from ninfer.kernels.cuda.device_functions import from_lane_xor_u32
from ninfer.kernels.cuda.fragments import PAIR_ORDER, padded_width, store_chunk

FRAGMENT_COLUMNS: Final = 128
"""Most columns of a linear input that has the order of `fragments` on every device."""

BLOCK_COLUMNS: Final = 128
BLOCK_FEATURES: Final = 64
BLOCK_BYTES: Final = BLOCK_COLUMNS * BLOCK_FEATURES * 2

_SLAB_PIECES: Final = 4

Address = Any
F32 = Any
Index = Any
Word = Any


def is_image(num_columns: int, has_warpgroups: bool) -> bool:
    """Whether a linear input of so many columns is stored as an image."""
    return has_warpgroups and num_columns > FRAGMENT_COLUMNS


def expect_fragments(num_columns: int, has_warpgroups: bool) -> None:
    """Require that so many columns are no image, for kernels that write none.

    Raises:
        ShapeError: they are.
    """
    if is_image(num_columns, has_warpgroups):
        raise ShapeError(f"{num_columns} columns, this takes up to {FRAGMENT_COLUMNS}")


def input_bytes(num_columns: int, width: int) -> int:
    """Bytes of a linear input in whichever order; more columns never need fewer."""
    nbytes = fragments.input_bytes(num_columns, width)
    if num_columns > FRAGMENT_COLUMNS:
        nbytes = max(nbytes, image_bytes(num_columns, width))
    return nbytes


def image_bytes(num_columns: int, width: int) -> int:
    """Bytes of an image."""
    blocks = -(-num_columns // BLOCK_COLUMNS) * (padded_width(width) // BLOCK_FEATURES)
    return blocks * BLOCK_BYTES


@device_function
def piece_address(base: Address, k_blocks: Index, column: Index, piece: Index) -> Address:
    """Address of a piece of 16 bytes; eight pieces follow one another in a block of features."""
    block = uint64(uint32(column) >> uint32(7)) * uint64(k_blocks)
    block += uint64(uint32(piece) >> uint32(3))
    swizzled = (uint32(piece) ^ uint32(column)) & uint32(7)
    inside = ((uint32(column) & uint32(127)) << uint32(7)) + (swizzled << uint32(4))
    return base + block * uint64(BLOCK_BYTES) + uint64(inside)


@device_function
def turn_square(lane: Index, a: Word, b: Word, c: Word, d: Word) -> Any:
    """Lane t of four has row t of a square of words; afterwards it has column t."""
    is_odd, is_upper = lane & int32(1) != 0, lane & int32(2) != 0
    e = from_lane_xor_u32(a if is_odd else b, 1)
    f = from_lane_xor_u32(c if is_odd else d, 1)
    a, b = (e, b) if is_odd else (a, e)
    c, d = (f, d) if is_odd else (c, f)
    e = from_lane_xor_u32(a if is_upper else c, 2)
    f = from_lane_xor_u32(b if is_upper else d, 2)
    return (e, f, c, d) if is_upper else (a, b, e, f)


@device_function
def store_pieces(
    base: Address,
    sums: Address,
    padded: Index,
    column: Index,
    chunk: Index,
    is_inside: Any,
    x0: F32,
    x1: F32,
    x2: F32,
    x3: F32,
    x4: F32,
    x5: F32,
    x6: F32,
    x7: F32,
) -> None:
    """`fragments.store_chunk` for an image: the same lanes and values, and nothing at ``sums``."""
    a, b = ptx.bf16x2_of_f32(x0, x4), ptx.bf16x2_of_f32(x1, x5)
    c, d = ptx.bf16x2_of_f32(x2, x6), ptx.bf16x2_of_f32(x3, x7)
    a, b, c, d = turn_square(int32(chunk), a, b, c, d)
    if is_inside:
        blocks = uint32(padded) >> uint32(6)
        ptx.store_u32x4(piece_address(base, blocks, column, chunk), a, b, c, d)


def order_suffix(to_image: bool) -> str:
    """What the name of a kernel that writes one order or the other ends in."""
    return "_image" if to_image else ""


def storer(to_image: bool) -> Any:
    """Function that stores a chunk of a linear input in one order or the other."""
    return store_pieces if to_image else store_chunk


def array_storer(to_image: bool) -> Any:
    """`storer` for the eight values of an array."""
    store = storer(to_image)

    @device_function
    def store_array(
        base: Address,
        sums: Address,
        padded: Index,
        column: Index,
        chunk: Index,
        is_inside: Any,
        x: Any,
    ) -> None:
        store(
            base, sums, padded, column, chunk, is_inside,
            x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7],
        )  # fmt: skip

    return store_array


def image_of(words: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint8]:
    """Lay bf16 words ``[T, K]`` out as an image, in NumPy; columns behind the last are zero."""
    num_columns, width = words.shape
    blocks = -(-num_columns // BLOCK_COLUMNS)
    k_blocks = padded_width(width) // BLOCK_FEATURES
    wide = np.zeros((blocks * BLOCK_COLUMNS, k_blocks * BLOCK_FEATURES), np.uint16)
    wide[:num_columns, :width] = words
    chunks = wide.reshape(blocks, BLOCK_COLUMNS, k_blocks, 2, _SLAB_PIECES, 8)[..., PAIR_ORDER]
    pairs = chunks.reshape(*chunks.shape[:-1], 4, 2)  # [.., slab, chunk, pair, 2]
    pieces = pairs.swapaxes(4, 5).reshape(blocks, BLOCK_COLUMNS, k_blocks, 8, 8)
    rows, places = np.arange(BLOCK_COLUMNS)[:, None], np.arange(8)[None, :]
    swizzled = pieces.transpose(0, 2, 1, 3, 4)[:, :, rows, places ^ (rows & 7)]
    return np.ascontiguousarray(swizzled).reshape(-1).view(np.uint8)


def words_of(
    storage: npt.NDArray[np.uint8], num_columns: int, width: int
) -> npt.NDArray[np.uint16]:
    """Read an image back: bf16 words ``[T, padded K]``."""
    blocks = -(-num_columns // BLOCK_COLUMNS)
    k_blocks = padded_width(width) // BLOCK_FEATURES
    shape = (blocks, k_blocks, BLOCK_COLUMNS, 8, 8)
    swizzled = storage[: image_bytes(num_columns, width)].view(np.uint16).reshape(shape)
    rows, places = np.arange(BLOCK_COLUMNS)[:, None], np.arange(8)[None, :]
    pieces = swizzled[:, :, rows, places ^ (rows & 7)].transpose(0, 2, 1, 3, 4)
    pairs = pieces.reshape(*pieces.shape[:3], 2, 4, _SLAB_PIECES, 2)  # [.., slab, pair, chunk, 2]
    chunks = pairs.swapaxes(4, 5).reshape(*pieces.shape[:3], 2, _SLAB_PIECES, 8)
    words = chunks[..., np.argsort(PAIR_ORDER)].reshape(-1, k_blocks * BLOCK_FEATURES)
    return words[:num_columns]
