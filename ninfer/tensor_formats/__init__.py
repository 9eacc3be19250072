"""Encode and decode every stored number format, in NumPy.

The public names of the package: `geometry` says where bytes lie, `direct` and `grouped` turn values
into them and back, `quantise` holds the shared arithmetic, `kv_int8` is the format of the key/value
cache. Knows no file, no device and no model. Source: artifact page, sections 5 to 7.
"""

from ninfer.tensor_formats.direct import bf16_to_f32, decode_direct, encode_direct, f32_to_bf16
from ninfer.tensor_formats.geometry import (
    GROUPED,
    DirectGeometry,
    GroupedCodec,
    RowSplitGeometry,
    Span,
    align_up,
    encoded_bytes,
    geometry_of,
)
from ninfer.tensor_formats.grouped import (
    Planes,
    assemble,
    decode_matrix,
    decode_rows,
    encode_matrix,
    encode_rows,
    pack_codes,
    split_planes,
    take_rows,
    unpack_codes,
)
from ninfer.tensor_formats.kv_int8 import KV_GROUP, decode_int8_g64, encode_int8_g64
from ninfer.tensor_formats.quantise import EncodeError

__all__ = [
    "GROUPED",
    "KV_GROUP",
    "DirectGeometry",
    "EncodeError",
    "GroupedCodec",
    "Planes",
    "RowSplitGeometry",
    "Span",
    "align_up",
    "assemble",
    "bf16_to_f32",
    "decode_direct",
    "decode_int8_g64",
    "decode_matrix",
    "decode_rows",
    "encode_direct",
    "encode_int8_g64",
    "encode_matrix",
    "encode_rows",
    "encoded_bytes",
    "f32_to_bf16",
    "geometry_of",
    "pack_codes",
    "split_planes",
    "take_rows",
    "unpack_codes",
]
