"""Images in requests: headers, limits, base64 and data URLs."""

import base64
import io
import re
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from ninfer.gateway import media_source
from ninfer.gateway.image_header import ImageHeader, read_image_header
from tests.support.gateway_server import RunningServer, running_server
from tests.support.png_images import png_bytes
from tests.support.quick_examples import QUICK
from tests.support.scripted_engine import ScriptedEngine


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, height) + bytes(300)


def data_url(data: bytes, mime: str = "image/png") -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


HEADERS = {
    "png": (png(3, 5), ImageHeader("png", 3, 5)),
    "gif": (b"GIF89a" + struct.pack("<HH", 3, 5), ImageHeader("gif", 3, 5)),
    "bmp": (b"BM" + bytes(12) + struct.pack("<Iii", 40, 3, -5), ImageHeader("bmp", 3, 5)),
    "jpeg": (
        b"\xff\xd8\xff\xe0\0\x04ab\xff\xff\xc2\0\x11\x08" + struct.pack(">HH", 5, 3) + bytes(8),
        ImageHeader("jpeg", 3, 5),
    ),
    "webp_lossy": (
        b"RIFF\0\0\0\0WEBPVP8 \0\0\0\0abc\x9d\x01\x2a" + struct.pack("<HH", 3, 5),
        ImageHeader("webp", 3, 5),
    ),
    "webp_lossless": (
        b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0\x2f" + struct.pack("<I", 2 | 4 << 14),
        ImageHeader("webp", 3, 5),
    ),
    "webp_extended": (
        b"RIFF\0\0\0\0WEBPVP8X\0\0\0\0\0\0\0\0\2\0\0\4\0\0",
        ImageHeader("webp", 3, 5),
    ),
}


@pytest.mark.parametrize("name", HEADERS)
def test_header_is_read_from_magic_bytes(name: str) -> None:
    data, expected = HEADERS[name]

    assert read_image_header(data) == expected


@QUICK
@given(st.text("AZaz09+/=", max_size=24))
@example("00000000=")
@example("0000=")
@example("0000====")
@example("00000===")
@example("00==0000")
def test_base64_in_slices_is_base64(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(media_source, "_SLICE", 8)
        assert outcome_of(media_source.decode_base64, text) == outcome_of(whole_base64, text)


def whole_base64(text: str) -> bytes:
    """Decode what RFC 4648 calls base64; the library's decoder lets more padding pass."""
    if not re.fullmatch(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}(?:==|[A-Za-z0-9+/]=))?", text):
        raise ValueError
    return base64.b64decode(text, validate=True)


def outcome_of(decode: Callable[[str], bytes], text: str) -> bytes | None:
    try:
        return decode(text)
    except ValueError:
        return None


@pytest.mark.parametrize("name", HEADERS)
def test_cut_header_is_no_image(name: str) -> None:
    data, expected = HEADERS[name]

    found = {read_image_header(data[:length]) for length in range(len(data))}

    assert found <= {None, expected}
    assert read_image_header(data[:8]) is None


@QUICK
@given(st.sampled_from([data[:12] for data, _ in HEADERS.values()]), st.binary(max_size=60))
def test_any_bytes_behind_a_magic_are_read_or_refused(magic: bytes, rest: bytes) -> None:
    found = read_image_header(magic + rest)

    assert found is None or found.width >= 0


def ask(server: RunningServer, url: object) -> dict[str, Any]:
    part = {"type": "image_url", "image_url": url}
    body = {"messages": [{"role": "user", "content": [part]}], "max_tokens": 1}
    reply = server.post("/v1/chat/completions", body)
    assert reply.status == 400
    error: dict[str, Any] = reply.json["error"]
    return error


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ({"url": data_url(png_bytes(1, 1))}, "vision_disabled"),
        (data_url(png_bytes(27, 257)), "vision_disabled"),
        (data_url(png_bytes(2, 31)), "vision_disabled"),
        (data_url(png_bytes(31, 2)), "vision_disabled"),
        (data_url(png_bytes(1, 200)), "vision_disabled"),
        (data_url(png_bytes(64, 64)[:-40]), "invalid_media"),
        (data_url(png(1, 1)), "invalid_media"),
        (data_url(png(1, 201)), "invalid_media"),
        (data_url(png(1, 4000)), "invalid_media"),
        (data_url(png(50000, 50000)), "media_budget_exceeded"),
        (data_url(png(16384, 8000)), "media_budget_exceeded"),
        (data_url(png(0, 5)), "media_budget_exceeded"),
        (data_url(b"<svg/>", "image/svg+xml"), "invalid_media"),
        (data_url(b"\xff\xd8wrong"), "invalid_media"),
        ("data:image/png;base64,@@@", "invalid_media"),
        ("data:image/png,abc", "invalid_media"),
        ("file:///etc/passwd", "media_url_forbidden"),
        ("ftp://example.com/a.png", "media_url_forbidden"),
        ("https://example.com/a.png", "media_url_forbidden"),
        ({"url": data_url(png_bytes(1, 1)), "detail": "low"}, "unsupported_value"),
        ({"url": data_url(png_bytes(1, 1)), "detail": "auto"}, "vision_disabled"),
        ({}, "missing_field"),
        (5, "invalid_type"),
    ],
)
def test_image_is_checked_before_the_engine_says_that_it_cannot_see(
    scripted_server: RunningServer, url: object, code: str
) -> None:
    error = ask(scripted_server, url)

    assert error["code"] == code
    assert error["param"].startswith("messages[0].content[0]")


def test_more_than_64_images_are_refused(scripted_server: RunningServer) -> None:
    part = {"type": "image_url", "image_url": data_url(png_bytes(1, 1))}
    body = {"messages": [{"role": "user", "content": [part] * 65}]}

    assert scripted_server.post("/v1/chat/completions", body).code == "media_budget_exceeded"


def test_pictures_behind_the_first_of_an_animation_are_listed(
    scripted_server: RunningServer,
) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("white", "black")]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    part = {"type": "image_url", "image_url": data_url(file.getvalue(), "image/gif")}
    body = {"messages": [{"role": "user", "content": [part]}]}

    reply = scripted_server.post("/v1/chat/completions", body)

    assert reply.code == "vision_disabled"
    assert reply.headers["x-ninfer-ignored"] == "animation"


def test_images_count_against_the_queue_deadline() -> None:
    part = {"type": "image_url", "image_url": data_url(png_bytes(2000, 2000))}
    body = {"messages": [{"role": "user", "content": [part] * 3}]}
    with ScriptedEngine() as engine, running_server(engine, pending_timeout_s=0.001) as server:
        reply = server.post("/v1/chat/completions", body)

    assert (reply.status, reply.code) == (503, "request_queue_timeout")
