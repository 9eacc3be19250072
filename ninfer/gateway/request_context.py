"""Facts of one HTTP request that everything behind the route needs.

Built once by the application before a route runs: plain values, and the two questions that only the
server can answer, whether the client is still there and what its images show. Source: the serving
contract, section 2.
"""

import math
import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ninfer.gateway.error_responses import Family
from ninfer.gateway.gateway_settings import GatewaySettings
from ninfer.gateway.media_source import CheckedImage, MediaSource
from ninfer.gateway.request_facts import Endpoint

MAX_IGNORED_NAMES = 32
"""Fields without effect that a reply lists; of further ones it gives the number."""

_INDEX = re.compile(r"\[\d+\]")
_CLIENT_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(slots=True)
class RequestContext:
    """One HTTP request.

    Attributes:
        family: whose error shape and headers the reply has.
        request_id: ours.
        client_request_id: the client's own, if it sent a legal one.
        received_at: clock reading at which the body was complete.
        is_client_gone: asks the server whether the socket is still open.
        ignored: paths of fields that were accepted without effect, for ``x-ninfer-ignored``.
        is_accepted: the engine accepted the generation request.
        endpoint: which one a generation request came in at.
        media: where its images come from.
        prepare_until: clock reading until which they have to be there.
    """

    family: Family
    request_id: str
    client_request_id: str | None
    received_at: float
    is_client_gone: Callable[[], bool]
    ignored: list[str] = field(default_factory=list)
    is_accepted: bool = False
    endpoint: Endpoint | None = None
    media: MediaSource = field(default_factory=lambda: MediaSource(GatewaySettings()))
    prepare_until: float = math.inf

    def note_images(self, images: Iterable[CheckedImage]) -> None:
        """List what of the images has no effect: pictures of an animation after the first."""
        if any(image.is_animated for image in images):
            self.ignored.append("animation")

    def headers(self) -> dict[str, str]:
        """Headers that every reply to this request carries."""
        found = {"x-request-id": self.request_id}
        if self.family is Family.ANTHROPIC:
            found["request-id"] = self.request_id
        if self.client_request_id is not None:
            found["x-client-request-id"] = self.client_request_id
        if self.ignored:
            found["x-ninfer-ignored"] = _ignored_header(self.ignored)
        return found


def new_request_id() -> str:
    """A fresh id in our spelling."""
    return f"req_{secrets.token_hex(12)}"


def legal_client_id(value: str | None) -> str | None:
    """The client's own id, if it has the allowed characters only."""
    return value if value is not None and _CLIENT_ID.fullmatch(value) else None


def family_of(path: str) -> Family:
    """Protocol family of a path."""
    is_messages = path == "/v1/messages" or path.startswith("/v1/messages/")
    return Family.ANTHROPIC if is_messages else Family.OPENAI


def _ignored_header(paths: Iterable[str]) -> str:
    """Paths without their indices, each once; a header has no room for endless ones."""
    names = list(dict.fromkeys(_header_safe(_INDEX.sub("[]", path)) for path in paths))
    surplus = len(names) - MAX_IGNORED_NAMES
    more = [f"+{surplus}"] if surplus > 0 else []
    return ", ".join(names[:MAX_IGNORED_NAMES] + more)


def _header_safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.\[\]-]", "?", name[:64])
