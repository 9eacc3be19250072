"""The images of a request: data URLs, base64 blocks, and URLs under the guard.

Everything is fetched, checked and decoded before the engine is asked, within the deadline of the
queue; what the pixels mean is none of this module's business. Source: the serving contract, section
10.
"""

import base64
import binascii
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ninfer.errors import QueueTimeout, RequestError, UnsupportedFeature
from ninfer.gateway.gateway_settings import GatewaySettings
from ninfer.gateway.image_header import MAX_IMAGE_BYTES, ImageHeader, checked_image
from ninfer.gateway.image_pixels import UnreadableImage, decode_image
from ninfer.gateway.json_fields import Fields
from ninfer.gateway.media_preparation import MediaPreparation
from ninfer.gateway.media_url import UrlFetcher
from ninfer.generation import shown

MAX_IMAGES: Final = 64
_SLICE: Final = 1 << 18
_DATA_URL: Final = re.compile(r"data:([^,;]*)((?:;[^,;]*)*),", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CheckedImage:
    """One image that can be shown to a model."""

    header: ImageHeader
    is_animated: bool


class MediaSource:
    """Acquires images for one server; safe to share between threads.

    Args:
        settings: whether and from where URLs may be fetched, and how much is kept.
        fetcher: replaces the real network.
        clock: what deadlines are readings of.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        fetcher: UrlFetcher | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._fetcher = fetcher or UrlFetcher(settings.media_url_hosts, MAX_IMAGE_BYTES)
        self._clock = clock
        self._preparation = MediaPreparation(decode_image, settings.media_cache_bytes)

    def chat_images(
        self, messages: Sequence[Mapping[str, Any]], deadline: float = math.inf
    ) -> tuple[CheckedImage, ...]:
        """Images of chat messages, in order; the messages have passed their own checks.

        Raises:
            RequestError: one is invalid, forbidden, out of reach, or there are too many.
            QueueTimeout: the deadline passed.
        """
        parts = [
            (part, f"messages[{index}].content[{place}]")
            for index, message in enumerate(messages)
            if isinstance(message.get("content"), list)
            for place, part in enumerate(message["content"])
            if isinstance(part, dict) and part.get("type") in ("image_url", "image", "video_url")
        ]
        check_image_count(len(parts), "messages")
        return tuple(self._chat_image(part, path, deadline) for part, path in parts)

    def from_url(self, url: str, path: str, deadline: float = math.inf) -> CheckedImage:
        """An image behind a data URL or an http(s) URL.

        Raises:
            RequestError: it is invalid, forbidden or out of reach.
            QueueTimeout: the deadline passed.
        """
        if url[:5].lower() == "data:":
            return self.from_base64(_data_of(url, path), path, deadline)
        if url[:5].lower() == "file:" or not self._settings.has_media_urls:
            raise RequestError(
                f"{path} is {shown(url)}; this server takes "
                + ("http(s) and data URLs" if self._settings.has_media_urls else "data URLs only"),
                code="media_url_forbidden",
                field=path,
            )
        return self._checked(self._fetcher.fetch(url, path, self._left_s(deadline)), path, deadline)

    def from_base64(self, text: str, path: str, deadline: float = math.inf) -> CheckedImage:
        """An image spelled in base64.

        Raises:
            RequestError: it is no base64, or no image within the limits.
            QueueTimeout: the deadline passed.
        """
        if len(text) // 4 * 3 > MAX_IMAGE_BYTES + 3:
            raise RequestError(
                f"{path} has more than {MAX_IMAGE_BYTES} bytes",
                code="media_budget_exceeded",
                field=path,
            )
        try:
            data = decode_base64(text)
        except (binascii.Error, ValueError) as error:
            raise RequestError(f"{path} is no base64", code="invalid_media", field=path) from error
        return self._checked(data, path, deadline)

    def _checked(self, data: bytes, path: str, deadline: float) -> CheckedImage:
        header = checked_image(data, path)
        try:
            picture = self._preparation.prepared(data, self._left_s(deadline))
        except UnreadableImage as error:
            raise RequestError(
                f"{path} is cut or damaged: its {header.kind} data cannot be decoded",
                code="invalid_media",
                field=path,
            ) from error
        except TimeoutError as error:
            raise _overdue() from error
        return CheckedImage(header, picture.is_animated)

    def _left_s(self, deadline: float) -> float:
        left_s = deadline - self._clock()
        if left_s <= 0:
            raise _overdue()
        # Nothing waits longer than any deadline that a server can be given.
        return min(left_s, self._settings.pending_timeout_s)

    def _chat_image(self, part: Mapping[str, Any], path: str, deadline: float) -> CheckedImage:
        fields = Fields(part, path)
        if part["type"] == "video_url":
            raise UnsupportedFeature(f"{path} is a video; videos are not supported yet", field=path)
        name = "image_url" if fields.has("image_url") else "image"
        value = fields.raw(name)
        if value is None:
            raise fields.missing("image_url")
        if isinstance(value, str):
            return self.from_url(value, fields.path(name), deadline)
        inner = fields.nested(name)
        url = None if inner is None else inner.text("url")
        if inner is None or url is None:
            raise RequestError(
                f"{fields.path(name)}.url is missing",
                code="missing_field",
                field=f"{fields.path(name)}.url",
            )
        if inner.choice("detail", ("auto", "low", "high")) not in (None, "auto"):
            raise RequestError(
                f"{inner.path('detail')} is not supported; only auto is",
                code="unsupported_value",
                field=inner.path("detail"),
            )
        return self.from_url(url, inner.path("url"), deadline)


def decode_base64(text: str) -> bytes:
    """Decode strictly, in slices: other threads stand still while one is decoded.

    Raises:
        ValueError: it is no base64.
    """
    if len(text) % 4 or text.endswith("==="):
        raise ValueError("the padding does not make up a group of four")
    whole = range(0, len(text), _SLICE)
    pieces = [base64.b64decode(text[at : at + _SLICE], validate=True) for at in whole]
    if any(len(piece) < _SLICE // 4 * 3 for piece in pieces[:-1]):
        raise ValueError("the padding is not at the end")
    return b"".join(pieces)


def check_image_count(count: int, path: str) -> None:
    """Refuse more images than one request may have.

    Raises:
        RequestError: ``media_budget_exceeded``.
    """
    if count > MAX_IMAGES:
        raise RequestError(
            f"{path} has {count} images; allowed is {MAX_IMAGES}",
            code="media_budget_exceeded",
            field=path,
        )


def _overdue() -> QueueTimeout:
    return QueueTimeout("preparing the images took too long")


def _data_of(url: str, path: str) -> str:
    match = _DATA_URL.match(url)
    if match is None or ";base64" not in match.group(2).lower():
        raise RequestError(f"{path} is no base64 data URL", code="invalid_media", field=path)
    return url[match.end() :]
