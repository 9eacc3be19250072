"""One table: what each cause of an error becomes in the OpenAI and in the Anthropic family.

The status depends on the cause alone, never on the layer that noticed it. Knows no HTTP library: an
`ErrorReply` is a status, headers and a JSON body. Source: the serving contract, section 3.
"""

import enum
import re
from dataclasses import dataclass
from typing import Any, Final

from ninfer.errors import NinferError, RequestError
from ninfer.generation import shown

LOADING_RETRY_S = 2
DRAINING_RETRY_S = 5
_INVALID = "invalid_request_error"
_SERVER = "server_error"
_INDEX = re.compile(r"\[(\d+)\]")


class Family(enum.Enum):
    """Which protocol's shape an error has."""

    OPENAI = enum.auto()  # everything that is not the other
    ANTHROPIC = enum.auto()  # /v1/messages and below


class Retry(enum.Enum):
    """Where the Retry-After of an error comes from."""

    NEVER = enum.auto()
    ESTIMATED = enum.auto()  # from the newest service times
    LOADING = enum.auto()
    DRAINING = enum.auto()


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """Status and type of one code in both families."""

    openai_status: int
    openai_type: str
    anthropic_status: int
    anthropic_type: str
    retry: Retry = Retry.NEVER


_BAD_REQUEST = ErrorRow(400, _INVALID, 400, _INVALID)
_INTERNAL = ErrorRow(500, _SERVER, 500, "api_error")
_BAD_REQUEST_CODES = (
    "invalid_json",
    "invalid_type",
    "invalid_value",
    "missing_field",
    "invalid_unicode",
    "unsupported_parameter",
    "unsupported_value",
    "unknown_parameter",
    "conflicting_parameters",
    "context_length_exceeded",
    "request_infeasible",
    "invalid_prompt",
    "invalid_tool_history",
    "invalid_token_id",
    "thinking_budget_capacity_insufficient",
    "reasoning_effort_not_supported",
    "invalid_json_schema",
    "invalid_media",
    "media_budget_exceeded",
    "vision_disabled",
    "media_url_forbidden",
    "invalid_http",
)
ERROR_TABLE: Final[dict[str, ErrorRow]] = dict.fromkeys(_BAD_REQUEST_CODES, _BAD_REQUEST) | {
    "media_fetch_failed": ErrorRow(502, _SERVER, 502, "api_error"),
    "media_fetch_timeout": ErrorRow(504, _SERVER, 504, "api_error"),
    "invalid_api_key": ErrorRow(401, "authentication_error", 401, "authentication_error"),
    "host_not_allowed": ErrorRow(403, "permission_error", 403, "permission_error"),
    "not_found": ErrorRow(404, _INVALID, 404, "not_found_error"),
    "unsupported_endpoint": ErrorRow(404, _INVALID, 404, "not_found_error"),
    "model_not_found": ErrorRow(404, _INVALID, 404, "not_found_error"),
    "method_not_allowed": ErrorRow(405, _INVALID, 405, _INVALID),
    "request_incomplete": ErrorRow(408, _INVALID, 408, _INVALID),
    "request_too_large": ErrorRow(413, _INVALID, 413, "request_too_large"),
    "header_too_large": ErrorRow(431, _INVALID, 431, _INVALID),
    "unsupported_media_type": ErrorRow(415, _INVALID, 415, _INVALID),
    "unsupported_transfer_encoding": ErrorRow(501, _INVALID, 501, _INVALID),
    "server_overloaded": ErrorRow(
        429, "rate_limit_error", 529, "overloaded_error", Retry.ESTIMATED
    ),
    "request_queue_timeout": ErrorRow(503, _SERVER, 504, "timeout_error", Retry.ESTIMATED),
    "model_loading": ErrorRow(503, _SERVER, 529, "overloaded_error", Retry.LOADING),
    "server_draining": ErrorRow(503, _SERVER, 529, "overloaded_error", Retry.DRAINING),
    "request_cancelled": ErrorRow(409, _SERVER, 409, "api_error"),
    "request_timeout": ErrorRow(504, _SERVER, 504, "timeout_error"),
    "engine_failed": ErrorRow(503, _SERVER, 500, "api_error"),
    "internal_error": _INTERNAL,
}


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error as a client sees it.

    Attributes:
        code: key of the table.
        message: one line for people.
        field: dotted path with indices, when one field is to blame.
        retry_after_s: the Retry-After header, if there is one.
        is_running: the error hit a request that was already accepted.
    """

    code: str
    message: str
    field: str | None = None
    retry_after_s: int | None = None
    is_running: bool = False

    @property
    def closes_connection(self) -> bool:
        """Whether the client should open a new connection next time."""
        return self.code == "server_draining"

    def status(self, family: Family) -> int:
        """HTTP status."""
        row = ERROR_TABLE[self.code]
        if family is Family.ANTHROPIC:
            return row.anthropic_status
        # A failure that hits a running request is ours; afterwards we are merely unavailable.
        return 500 if self.code == "engine_failed" and self.is_running else row.openai_status

    def body(self, family: Family, request_id: str) -> dict[str, Any]:
        """JSON body, also the body of an error inside a stream."""
        row = ERROR_TABLE[self.code]
        if family is Family.OPENAI:
            error = {"message": self.message, "type": row.openai_type}
            return {"error": {**error, "param": self.field, "code": self.code}}
        error = {"type": row.anthropic_type, "message": _anthropic_message(self)}
        return {"type": "error", "error": error, "request_id": request_id}


def body_too_large(limit_bytes: int) -> str:
    """Message about a body, whoever notices it."""
    return f"the body is too large; allowed is {limit_bytes} bytes (--max-request-mib)"


def error_reply(
    error: NinferError, *, retry_after_s: int, request_id: str, is_running: bool = False
) -> ErrorReply:
    """Look an error up.

    Args:
        error: what ended or refused the request.
        retry_after_s: estimate for codes that want one.
        request_id: all that an internal error says.
        is_running: the request had been accepted by the engine.
    """
    row = ERROR_TABLE.get(error.code)
    if row is None and isinstance(error, RequestError):
        return ErrorReply("invalid_value", str(error), error.field, is_running=is_running)
    if row is None or error.code == "internal_error":
        return ErrorReply("internal_error", request_id, is_running=is_running)
    seconds = {
        Retry.NEVER: None,
        Retry.ESTIMATED: retry_after_s,
        Retry.LOADING: LOADING_RETRY_S,
        Retry.DRAINING: DRAINING_RETRY_S,
    }[row.retry]
    message = "the engine has failed" if error.code == "engine_failed" else str(error)
    field = error.field if isinstance(error, RequestError) else None
    return ErrorReply(error.code, _one_line(message), field, seconds, is_running)


def _one_line(message: str) -> str:
    """Escape control characters and cut what no message of ours needs."""
    if message.isprintable():
        return message[:1000]
    return "".join(char if char.isprintable() else shown(char)[1:-1] for char in message[:1000])


def _anthropic_message(reply: ErrorReply) -> str:
    """Spell the field's path with dots and put it in front."""
    field = reply.field
    if field is None or reply.code == "context_length_exceeded":
        return reply.message
    dotted = _INDEX.sub(r".\1", field)
    if reply.message.startswith(field):
        return f"{dotted}: {reply.message.removeprefix(field).lstrip(' :')}"
    return f"{dotted}: {reply.message}"
