"""Embedding lookup on CUDA: rows of a resident table, decoded to bf16.

    out[t, :] = bf16(f32(scale) * f32(code))        table in the order of `weight_layout`

One thread decodes one chunk of eight features: 4 to 16 bytes of codes, its high bits and its scale.
A row's pieces lie in records of half a tile, which does not matter for the few rows of a call.
"""

from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.cuda.stream import CudaStream
from ninfer.kernels.cuda.device_functions import lower_bf16, store_ragged_value, upper_bf16
from ninfer.kernels.cuda.fragments import CHUNK
from ninfer.kernels.cuda.launch import KernelShapes, blocks_for
from ninfer.kernels.cuda.weight_layout import WeightLayout
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.tensor import Matrix, Tensor, TensorFormat

_THREADS: Final = 128


def gather(stream: CudaStream, table: Matrix, tokens: Tensor, out: Tensor) -> None:
    """Decode ``out[t] = table[tokens[t]]``; a token outside the table traps."""
    layout = WeightLayout(table.format, table.parent_rows, table.num_columns)
    stream.launch(
        make_gather(table.format),
        (tokens.size, blocks_for(blocks_for(table.num_columns, CHUNK), _THREADS), 1),
        (
            table.storage.address,
            tokens.address,
            out.address,
            table.num_columns,
            layout.k_tiles,
            table.first_row,
            table.num_rows,
        ),
    )


def declared(shapes: KernelShapes) -> tuple[Kernel, ...]:
    """Kernels a model needs: tables come in every format."""
    return tuple(make_gather(format) for format in _DECODERS)


@device_function
def _scale(scales: int, lane: Any, group: Any, log_groups: Any) -> Any:
    """Scale of a group of the row that a lane holds."""
    index = ((uint64(lane) >> uint64(2)) << uint64(log_groups)) + uint64(group)
    return ptx.f32_of_f16(ptx.load_u16(scales + index * uint64(2)))


@device_function
def _nibble(word: Any, place: int, high: Any, offset: Any) -> Any:
    """Code ``place`` of a word of eight, with its high bits, as f32."""
    code = ((word >> uint32(4 * place)) & uint32(15)) | high
    return float32(int32(code) - int32(offset))


@device_function
def _decode_q4(record: int, lane: Any, slab: Any) -> Any:
    word = ptx.load_u32(record + uint64(lane) * uint64(16) + uint64(slab * 4))
    scale = _scale(record + uint64(512), lane, slab >> 1, 1)
    none = uint32(0)
    return (
        scale * _nibble(word, 0, none, 8),
        scale * _nibble(word, 1, none, 8),
        scale * _nibble(word, 2, none, 8),
        scale * _nibble(word, 3, none, 8),
        scale * _nibble(word, 4, none, 8),
        scale * _nibble(word, 5, none, 8),
        scale * _nibble(word, 6, none, 8),
        scale * _nibble(word, 7, none, 8),
    )


@device_function
def _five_bits(word: Any, place: int) -> Any:
    """Code at a bit of a word of five-bit codes, as f32."""
    return float32(int32((word >> uint32(place)) & uint32(31)) - int32(16))


@device_function
def _decode_q5(record: int, lane: Any, slab: Any) -> Any:
    at = record + uint64(lane) * uint64(16)
    a, b, c, d = ptx.load_u32x4(at)
    word = ptx.load_u32(at + uint64(slab * 4))
    high = ptx.load_u32(record + uint64(512) + uint64(lane) * uint64(4))
    last = high >> uint32(slab * 5)
    if slab == 3:
        mask = uint32(0x00010001)
        last = (a >> uint32(15)) & mask | (b >> uint32(14)) & (mask << uint32(1))
        last |= (c >> uint32(13)) & (mask << uint32(2)) | (d >> uint32(12)) & (mask << uint32(3))
        last |= (high >> uint32(11)) & (mask << uint32(4))
    scale = _scale(record + uint64(640), lane, slab >> 1, 1)
    return (
        scale * _five_bits(word, 0),
        scale * _five_bits(word, 5),
        scale * _five_bits(word, 10),
        scale * _five_bits(last, 0),
        scale * _five_bits(word, 16),
        scale * _five_bits(word, 21),
        scale * _five_bits(word, 26),
        scale * _five_bits(last, 16),
    )


@device_function
def _decode_q6(record: int, lane: Any, slab: Any) -> Any:
    word = ptx.load_u32(record + uint64(lane) * uint64(16) + uint64(slab * 4))
    at = uint64(lane) * uint64(8) + uint64(slab >> 1) * uint64(4)
    bits = ptx.load_u32(record + uint64(512) + at) >> uint32((slab & 1) * 8)
    scale = _scale(record + uint64(768), lane, slab >> 1, 1)
    return (
        scale * _nibble(word, 0, (bits << uint32(4)) & uint32(48), 32),
        scale * _nibble(word, 1, (bits << uint32(2)) & uint32(48), 32),
        scale * _nibble(word, 2, bits & uint32(48), 32),
        scale * _nibble(word, 3, (bits >> uint32(2)) & uint32(48), 32),
        scale * _nibble(word, 4, (bits >> uint32(12)) & uint32(48), 32),
        scale * _nibble(word, 5, (bits >> uint32(14)) & uint32(48), 32),
        scale * _nibble(word, 6, (bits >> uint32(16)) & uint32(48), 32),
        scale * _nibble(word, 7, (bits >> uint32(18)) & uint32(48), 32),
    )


@device_function
def _signed_byte(word: Any, place: int) -> Any:
    return float32(int32(word << uint32(24 - 8 * place)) >> int32(24))


@device_function
def _decode_w8(record: int, lane: Any, slab: Any) -> Any:
    at = uint64(slab >> 1) * uint64(512) + uint64(lane) * uint64(16) + uint64(slab & 1) * uint64(8)
    a, b = ptx.load_u32x2(record + at)
    scale = _scale(record + uint64(1024), lane, slab, 2)
    return (
        scale * _signed_byte(a, 0),
        scale * _signed_byte(a, 1),
        scale * _signed_byte(a, 2),
        scale * _signed_byte(a, 3),
        scale * _signed_byte(b, 0),
        scale * _signed_byte(b, 1),
        scale * _signed_byte(b, 2),
        scale * _signed_byte(b, 3),
    )


@device_function
def _decode_bf16(record: int, lane: Any, slab: Any) -> Any:
    a, b, c, d = ptx.load_u32x4(record + uint64(slab * 512) + uint64(lane) * uint64(16))
    return (
        lower_bf16(a),
        lower_bf16(b),
        lower_bf16(c),
        lower_bf16(d),
        upper_bf16(a),
        upper_bf16(b),
        upper_bf16(c),
        upper_bf16(d),
    )


_DECODERS: Final[dict[TensorFormat, Any]] = {
    TensorFormat.BF16: _decode_bf16,
    TensorFormat.Q4: _decode_q4,
    TensorFormat.Q5: _decode_q5,
    TensorFormat.Q6: _decode_q6,
    TensorFormat.W8: _decode_w8,
}


@cache
def make_gather(format: TensorFormat) -> Kernel:
    """One thread per chunk of a row; grid (tokens, blocks of chunks), block (128,)."""
    decode = _DECODERS[format]
    record_bytes = PAIR_FORMATS[format].record_bytes

    def gather_row(
        records: int,
        tokens: int,
        out: int,
        width: int,
        k_tiles: int,
        first_row: int,
        num_rows: int,
    ) -> None:
        ptx.release_successor()
        ptx.wait_for_predecessor()
        position = cuda.blockIdx.x
        chunk = cuda.blockIdx.y * _THREADS + cuda.threadIdx.x
        first = int32(chunk) * int32(8)
        token = ptx.load_i32(tokens + uint64(position) * uint64(4))
        if token < 0 or token >= num_rows:
            ptx.trap()
        elif first < width:
            row = uint32(first_row + token)
            tile = (row >> uint32(4)) * uint32(k_tiles) + (uint32(chunk) >> uint32(4))
            half = (row >> uint32(3)) & uint32(1)
            record = records + (uint64(tile) * uint64(2) + uint64(half)) * uint64(record_bytes)
            lane = (row & uint32(7)) * uint32(4) + uint32(chunk & 3)
            y0, y1, y2, y3, y4, y5, y6, y7 = decode(record, lane, (chunk >> 2) & 3)
            target = out + uint64(position) * uint64(width) * uint64(2)
            if width & 7 == 0:
                ptx.store_u32x4(
                    target + uint64(chunk) * uint64(16),
                    ptx.bf16x2_of_f32(y0, y1),
                    ptx.bf16x2_of_f32(y2, y3),
                    ptx.bf16x2_of_f32(y4, y5),
                    ptx.bf16x2_of_f32(y6, y7),
                )
            else:
                store_ragged_value(target, first, width, y0)
                store_ragged_value(target, first + 1, width, y1)
                store_ragged_value(target, first + 2, width, y2)
                store_ragged_value(target, first + 3, width, y3)
                store_ragged_value(target, first + 4, width, y4)
                store_ragged_value(target, first + 5, width, y5)
                store_ragged_value(target, first + 6, width, y6)
                store_ragged_value(target, first + 7, width, y7)

    params = (Param.ADDRESS,) * 3 + (Param.I32,) * 4
    name = f"embedding_{format.name.lower()}"
    return Kernel(name, gather_row, params, threads=_THREADS, max_registers=64)
