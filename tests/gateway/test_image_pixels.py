"""Images of every kind become upright sRGB on white, or are refused."""

import io
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageCms

from ninfer.gateway.image_pixels import MAX_SCANS, Picture, UnreadableImage, decode_image
from tests.support.png_images import png_bytes
from tests.support.quick_examples import QUICK

KINDS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")


def saved(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def pixel(picture: Picture, x: int = 0, y: int = 0) -> tuple[int, ...]:
    at = (y * picture.width + x) * 3
    return tuple(picture.pixels[at : at + 3])


def noise(size: int = 32) -> Image.Image:
    return Image.frombytes("RGB", (size, size), random.Random(1).randbytes(size * size * 3))


def test_a_file_of_our_own_making_is_black() -> None:
    picture = decode_image(png_bytes(3, 2))

    assert (picture.width, picture.height, picture.pixels) == (3, 2, bytes(18))
    assert not picture.is_animated


@pytest.mark.parametrize("kind", ["PNG", "BMP", "WEBP"])
def test_lossless_kinds_keep_every_pixel(kind: str) -> None:
    options = {"lossless": True} if kind == "WEBP" else {}

    assert decode_image(saved(noise(), kind, **options)).pixels == noise().tobytes()


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (Image.new("L", (2, 2), 77), (77, 77, 77)),
        (Image.new("1", (2, 2), 1), (255, 255, 255)),
        (Image.new("RGBA", (2, 2), (255, 0, 0, 0)), (255, 255, 255)),
        (Image.new("RGBA", (2, 2), (255, 0, 0, 128)), (255, 127, 127)),
        (Image.new("LA", (2, 2), (0, 128)), (127, 127, 127)),
        (Image.new("I;16", (2, 2), 0x8000), (128, 128, 128)),
        (Image.new("RGB", (2, 2), (1, 2, 3)).quantize(4), (1, 2, 3)),
    ],
)
def test_every_mode_becomes_rgb_on_white(
    image: Image.Image, expected: tuple[int, int, int]
) -> None:
    found = pixel(decode_image(saved(image)))

    assert all(abs(a - b) <= 1 for a, b in zip(found, expected, strict=True))


def test_a_transparent_colour_of_a_palette_is_white() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putdata([0, 1])

    picture = decode_image(saved(image, transparency=0))

    assert (pixel(picture), pixel(picture, 1)) == ((255, 255, 255), (40, 50, 60))


def test_cmyk_is_converted() -> None:
    image = Image.new("CMYK", (8, 8), (0, 255, 255, 0))

    red, green, blue = pixel(decode_image(saved(image, "JPEG", quality=95)))

    assert red > 200
    assert max(green, blue) < 60


def test_orientation_is_applied() -> None:
    image = Image.new("RGB", (4, 2), "black")
    image.putpixel((0, 0), (255, 0, 0))
    exif = Image.Exif()
    exif[0x0112] = 6  # To be turned right by a quarter.

    picture = decode_image(saved(image, exif=exif))

    assert (picture.width, picture.height) == (2, 4)
    assert pixel(picture, 1, 0) == (255, 0, 0)


def test_a_colour_profile_is_converted_and_a_broken_one_is_ignored() -> None:
    image = Image.new("RGB", (2, 2), (100, 150, 200))
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    swapped = srgb.replace(b"rXYZ", b"tXYZ").replace(b"bXYZ", b"rXYZ").replace(b"tXYZ", b"bXYZ")

    found = [
        pixel(decode_image(saved(image, icc_profile=profile)))
        for profile in (srgb, swapped, b"no profile")
    ]

    expected = [(100, 150, 200), (200, 150, 100), (100, 150, 200)]
    assert all(
        abs(x - y) <= 2
        for a, b in zip(found, expected, strict=True)
        for x, y in zip(a, b, strict=True)
    )


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_the_first_picture_of_an_animation_counts(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("white", "black")]

    picture = decode_image(saved(frames[0], kind, save_all=True, append_images=frames[1:]))

    assert picture.is_animated
    assert min(pixel(picture)) > 250


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_a_cut_file_is_refused(kind: str, share: float) -> None:
    data = saved(noise(64), kind)

    with pytest.raises(UnreadableImage):
        decode_image(data[: int(len(data) * share)])


@QUICK
@given(st.sampled_from(KINDS), st.data())
def test_damaged_files_are_read_or_refused(kind: str, data: st.DataObject) -> None:
    damaged = bytearray(saved(noise(8), kind))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        # What the header asks for is limited before anything is decoded.
        picture = decode_image(bytes(damaged)) if len(damaged) < 1 << 16 else None
    except UnreadableImage:
        return
    assert picture is None or len(picture.pixels) == picture.width * picture.height * 3


def test_a_jpeg_with_endless_passes_is_refused() -> None:
    data = saved(noise(), "JPEG", progressive=True)
    assert decode_image(data).width == 32
    scan = data.index(b"\xff\xda")

    with pytest.raises(UnreadableImage):
        decode_image(data[:scan] + data[scan:-2] * MAX_SCANS + data[-2:])


@pytest.mark.parametrize("data", [b"", b"GIF89a\1\0\1\0", b"BM" + bytes(60), png_bytes(2, 2)[:33]])
def test_what_is_no_picture_is_refused(data: bytes) -> None:
    with pytest.raises(UnreadableImage):
        decode_image(data)
