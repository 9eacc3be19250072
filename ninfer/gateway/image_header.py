"""Kind and size of an image from its first bytes, without decoding anything.

The kind is decided by magic bytes, never by a name or a MIME type. Limits are checked on what the
header declares, so that a small file cannot ask for a huge picture. Sources: the PNG
specification, JPEG (ITU T.81, annex B), the WebP container, GIF89a, the BMP file header; limits
are the serving contract's, section 10.
"""

import struct
from dataclasses import dataclass
from typing import Final

from ninfer.errors import RequestError

MAX_IMAGE_BYTES: Final = 20 << 20
MAX_PIXELS: Final = 64_000_000
MAX_SIDE: Final = 16384
MAX_ASPECT: Final = 200
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_START_OF_FRAME: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_STANDALONE: Final = frozenset({0x01, *range(0xD0, 0xD8)})


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """What an image says about itself; sizes in pixels."""

    kind: str
    width: int
    height: int


def checked_image(data: bytes, field: str) -> ImageHeader:
    """Read the header of an image and check every limit.

    Args:
        data: the whole file.
        field: dotted path, for messages.

    Raises:
        RequestError: ``invalid_media`` or ``media_budget_exceeded``.
    """
    if len(data) > MAX_IMAGE_BYTES:
        raise _over(field, f"has {len(data)} bytes; allowed is {MAX_IMAGE_BYTES}")
    header = read_image_header(data)
    if header is None:
        raise RequestError(
            f"{field} is no readable PNG, JPEG, WebP, GIF or BMP image",
            code="invalid_media",
            field=field,
        )
    width, height = header.width, header.height
    if not (1 <= width <= MAX_SIDE and 1 <= height <= MAX_SIDE):
        raise _over(field, f"is {width}x{height}; a side may have 1..{MAX_SIDE} pixels")
    if width * height > MAX_PIXELS:
        raise _over(field, f"is {width}x{height}; allowed are {MAX_PIXELS} pixels")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise RequestError(
            f"{field} is {width}x{height}; sides may differ by a factor of {MAX_ASPECT}",
            code="invalid_media",
            field=field,
        )
    return header


def read_image_header(data: bytes) -> ImageHeader | None:
    """Kind and size, or None when the bytes are none of the known kinds."""
    try:
        if data.startswith(_PNG) and data[12:16] == b"IHDR":
            return ImageHeader("png", *struct.unpack_from(">II", data, 16))
        if data.startswith(b"\xff\xd8\xff"):
            return _jpeg(data)
        if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            return _webp(data)
        if data[:6] in (b"GIF87a", b"GIF89a"):
            return ImageHeader("gif", *struct.unpack_from("<HH", data, 6))
        if data[:2] == b"BM":
            return _bmp(data)
    except (struct.error, IndexError):  # The header itself is cut.
        return None
    return None


def _jpeg(data: bytes) -> ImageHeader | None:
    """Walk the segments to the frame header."""
    place = 2
    while data[place] == 0xFF:
        marker = data[place + 1]
        if marker == 0xFF:
            place += 1
        elif marker in _STANDALONE:
            place += 2
        elif marker in _START_OF_FRAME:
            height, width = struct.unpack_from(">HH", data, place + 5)
            return ImageHeader("jpeg", width, height)
        else:
            place += 2 + max(2, struct.unpack_from(">H", data, place + 2)[0])
    return None


def _webp(data: bytes) -> ImageHeader | None:
    chunk = data[12:16]
    if chunk == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", data, 26)
        return ImageHeader("webp", width & 0x3FFF, height & 0x3FFF)
    if chunk == b"VP8L" and data[20] == 0x2F:
        (bits,) = struct.unpack_from("<I", data, 21)
        return ImageHeader("webp", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    if chunk == b"VP8X" and len(data) >= 30:
        width = int.from_bytes(data[24:27], "little") + 1
        return ImageHeader("webp", width, int.from_bytes(data[27:30], "little") + 1)
    return None


def _bmp(data: bytes) -> ImageHeader | None:
    (header_bytes,) = struct.unpack_from("<I", data, 14)
    if header_bytes == 12:
        return ImageHeader("bmp", *struct.unpack_from("<HH", data, 18))
    if header_bytes < 40:
        return None
    width, height = struct.unpack_from("<ii", data, 18)
    if width < 0:
        return None
    return ImageHeader("bmp", width, abs(height))  # A negative height is a top-down picture.


def _over(field: str, problem: str) -> RequestError:
    return RequestError(f"{field} {problem}", code="media_budget_exceeded", field=field)
