"""Facts of one HTTP request that everything behind the route needs.

Plain values; built once by the application before a route runs. Source: the serving contract,
section 2.
"""

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from ninfer.gateway.error_responses import Family
from ninfer.gateway.request_facts import Endpoint

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
        ignored: fields that were accepted without effect, for ``x-ninfer-ignored``.
        is_accepted: the engine accepted the generation request.
        endpoint: which one a generation request came in at.
    """

    family: Family
    request_id: str
    client_request_id: str | None
    received_at: float
    is_client_gone: Callable[[], bool]
    ignored: list[str] = field(default_factory=list)
    is_accepted: bool = False
    endpoint: Endpoint | None = None

    def headers(self) -> dict[str, str]:
        """Headers that every reply to this request carries."""
        found = {"x-request-id": self.request_id}
        if self.family is Family.ANTHROPIC:
            found["request-id"] = self.request_id
        if self.client_request_id is not None:
            found["x-client-request-id"] = self.client_request_id
        if self.ignored:
            found["x-ninfer-ignored"] = ", ".join(_header_safe(name) for name in self.ignored)
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


def _header_safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.\[\]-]", "?", name[:64])
