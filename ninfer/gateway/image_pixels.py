"""Images of any kind as 8-bit sRGB pixels.

Orientation is applied, transparency lies on white, colour profiles are converted where they can be;
of an animation the first picture counts. There is no lenient mode: what is cut or damaged is
refused. The header has been checked before (see `image_header`), so that what is decoded here has a
bounded size. Source: the serving contract, section 10; Pillow 11 to 13.
"""

import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ninfer.gateway.image_header import ImageHeader, read_image_header

if TYPE_CHECKING:
    from PIL import Image

MAX_SCANS: Final = 100
"""A JPEG may come in many passes over all of its pixels; cameras and editors write about ten."""

_START_OF_SCAN: Final = b"\xff\xda"
_WIDE_GREY: Final = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")


class UnreadableImage(Exception):
    """The picture cannot be decoded completely."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A decoded picture.

    Attributes:
        width, height: upright.
        pixels: rows of red, green and blue bytes.
        is_animated: there are more pictures than this one.
    """

    width: int
    height: int
    pixels: bytes = field(repr=False)
    is_animated: bool = False

    @property
    def nbytes(self) -> int:
        """Memory it takes."""
        return len(self.pixels)


def decode_image(data: bytes) -> Picture:
    """Decode the first picture of a file whose header has been checked.

    Raises:
        UnreadableImage: the file is cut, damaged, or contradicts its header.
    """
    header = read_image_header(data)
    if header is None or data.count(_START_OF_SCAN) > MAX_SCANS:
        raise UnreadableImage("the header is unusable")
    try:
        return _decoded(data, header)
    except UnreadableImage:
        raise
    except Exception as error:  # The library has no common class for what it trips over.
        raise UnreadableImage(type(error).__name__) from error


def _decoded(data: bytes, header: ImageHeader) -> Picture:
    from PIL import Image, ImageOps

    with Image.open(io.BytesIO(data), formats=(header.kind.upper(),)) as image:
        if image.size != (header.width, header.height):
            raise UnreadableImage("the picture has another size than its header says")
        is_animated = bool(getattr(image, "is_animated", False))
        image.seek(0)
        image.load()
        ImageOps.exif_transpose(image, in_place=True)
        rgb = _on_white(_in_srgb(image))
        return Picture(rgb.width, rgb.height, rgb.tobytes(), is_animated)


def _in_srgb(image: "Image.Image") -> "Image.Image":
    """The picture in RGB or RGBA."""
    has_alpha = image.has_transparency_data
    if image.mode in _WIDE_GREY:
        # The library would cut 16 bits off at 255 instead of scaling them.
        image = image.convert("I").point(lambda value: value * (1 / 256)).convert("L")
    alpha = image.convert("RGBA").getchannel("A") if has_alpha else None
    if image.mode in ("P", "PA", "LA", "RGBA", "1"):
        image = image.convert("L" if image.mode in ("LA", "1") else "RGB")
    rgb = _converted(image, image.info.get("icc_profile"))
    if rgb.mode != "RGB":  # The library would copy it: a large picture takes 256 MB.
        rgb = rgb.convert("RGB")
    if alpha is not None:
        rgb.putalpha(alpha)
    return rgb


def _converted(image: "Image.Image", profile: Any) -> "Image.Image":
    """The picture in sRGB; one whose profile is unusable is taken for sRGB already."""
    from PIL import ImageCms

    if not isinstance(profile, bytes) or image.mode not in ("L", "RGB", "CMYK"):
        return image
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        target = ImageCms.createProfile("sRGB")
        found = ImageCms.profileToProfile(image, source, target, outputMode="RGB")
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
        return image
    return image if found is None else found


def _on_white(image: "Image.Image") -> "Image.Image":
    from PIL import Image

    if image.mode != "RGBA":
        return image
    canvas = Image.new("RGB", image.size, "white")
    canvas.paste(image, mask=image.getchannel("A"))
    return canvas
