"""Acceptance point 1, first half: the table of errors, written down again from the contract."""

import pytest

from ninfer.errors import (
    CapacityError,
    ContextLengthExceeded,
    EngineClosed,
    EngineFailed,
    EngineOverloaded,
    InvariantError,
    NinferError,
    QueueTimeout,
    RequestCancelled,
    RequestError,
    RequestTimeout,
    ShapeError,
)
from ninfer.gateway.error_responses import ERROR_TABLE, Family, error_reply

INVALID, SERVER = "invalid_request_error", "server_error"
BAD = (400, INVALID, 400, INVALID, None)
EXPECTED: dict[str, tuple[int, str, int, str, int | None]] = {
    **dict.fromkeys(
        (
            "invalid_json",
            "invalid_type",
            "invalid_value",
            "missing_field",
            "invalid_unicode",
            "unsupported_parameter",
            "unsupported_value",
            "conflicting_parameters",
            "context_length_exceeded",
            "request_infeasible",
            "invalid_prompt",
            "thinking_budget_capacity_insufficient",
            "reasoning_effort_not_supported",
            "invalid_json_schema",
            "invalid_media",
            "media_budget_exceeded",
            "vision_disabled",
            "media_url_forbidden",
        ),
        BAD,
    ),
    "media_fetch_failed": (502, SERVER, 502, "api_error", None),
    "media_fetch_timeout": (504, SERVER, 504, "api_error", None),
    "invalid_api_key": (401, "authentication_error", 401, "authentication_error", None),
    "host_not_allowed": (403, "permission_error", 403, "permission_error", None),
    "not_found": (404, INVALID, 404, "not_found_error", None),
    "model_not_found": (404, INVALID, 404, "not_found_error", None),
    "method_not_allowed": (405, INVALID, 405, INVALID, None),
    "request_too_large": (413, INVALID, 413, "request_too_large", None),
    "unsupported_media_type": (415, INVALID, 415, INVALID, None),
    "server_overloaded": (429, "rate_limit_error", 529, "overloaded_error", 9),
    "request_queue_timeout": (503, SERVER, 504, "timeout_error", 9),
    "model_loading": (503, SERVER, 529, "overloaded_error", 2),
    "server_draining": (503, SERVER, 529, "overloaded_error", 5),
    "request_cancelled": (409, SERVER, 409, "api_error", None),
    "request_timeout": (504, SERVER, 504, "timeout_error", None),
    "engine_failed": (503, SERVER, 500, "api_error", None),
    "internal_error": (500, SERVER, 500, "api_error", None),
}


def reply_to(error: NinferError, *, is_running: bool = False) -> tuple[object, ...]:
    reply = error_reply(error, retry_after_s=9, request_id="req_1", is_running=is_running)
    openai = reply.body(Family.OPENAI, "req_1")["error"]
    anthropic = reply.body(Family.ANTHROPIC, "req_1")["error"]
    return (
        reply.status(Family.OPENAI),
        openai["type"],
        reply.status(Family.ANTHROPIC),
        anthropic["type"],
        reply.retry_after_s,
    )


@pytest.mark.parametrize("code", EXPECTED)
def test_code_has_its_row_whichever_class_carries_it(code: str) -> None:
    assert reply_to(RequestError("m", code=code)) == EXPECTED[code]
    assert reply_to(CapacityError("m", code=code)) == EXPECTED[code]


def test_table_has_no_row_that_nobody_knows() -> None:
    extra = set(ERROR_TABLE) - set(EXPECTED)

    assert extra == {
        "unknown_parameter",
        "invalid_tool_history",
        "invalid_token_id",
        "invalid_http",
        "request_incomplete",
        "unsupported_endpoint",
        "header_too_large",
        "unsupported_transfer_encoding",
    }


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EngineOverloaded("m"), "server_overloaded"),
        (EngineClosed("m"), "server_draining"),
        (EngineClosed("m", code="model_loading"), "model_loading"),
        (EngineFailed("m"), "engine_failed"),
        (QueueTimeout("m"), "request_queue_timeout"),
        (RequestTimeout("m"), "request_timeout"),
        (RequestCancelled("m"), "request_cancelled"),
    ],
)
def test_class_has_the_row_of_its_code(error: NinferError, code: str) -> None:
    assert reply_to(error) == EXPECTED[code]


def test_failure_of_the_engine_is_ours_for_a_running_request() -> None:
    assert reply_to(EngineFailed("m"), is_running=True)[0] == 500
    assert reply_to(ShapeError("m"), is_running=True)[0] == 500
    assert reply_to(EngineFailed("m"))[0] == 503


def test_unknown_code_of_a_request_is_still_the_clients_fault() -> None:
    assert reply_to(RequestError("m", code="something_new"))[:2] == (400, INVALID)


def test_internal_error_says_only_the_request_id() -> None:
    bug = InvariantError("row 7 of /secret", code="internal_error")

    reply = error_reply(bug, retry_after_s=1, request_id="req_1")

    assert reply.message == "req_1"


def test_failed_engine_does_not_tell_why() -> None:
    reply = error_reply(EngineFailed("cause in /home"), retry_after_s=1, request_id="req_1")

    assert reply.message == "the engine has failed"


@pytest.mark.parametrize(
    ("message", "field", "expected"),
    [
        (
            "messages[2].content[0].text has a lone surrogate",
            "messages[2].content[0].text",
            "messages.2.content.0.text: has a lone surrogate",
        ),
        ("the body is bad", "$", "$: the body is bad"),
        ("no field", None, "no field"),
    ],
)
def test_anthropic_messages_start_with_the_path(
    message: str, field: str | None, expected: str
) -> None:
    reply = error_reply(RequestError(message, field=field), retry_after_s=1, request_id="r")

    assert reply.body(Family.ANTHROPIC, "r")["error"]["message"] == expected


def test_prompt_that_is_too_long_keeps_the_words_clients_look_for() -> None:
    error = ContextLengthExceeded("prompt is too long: 9 tokens > 5 maximum", field="messages")

    reply = error_reply(error, retry_after_s=1, request_id="r")

    message = reply.body(Family.ANTHROPIC, "r")["error"]["message"]
    assert message.startswith("prompt is too long: 9 tokens > 5 maximum")


def test_control_characters_are_escaped_in_messages() -> None:
    reply = error_reply(RequestError("a\nb\x1b[0m"), retry_after_s=1, request_id="r")

    assert reply.message == "a\\nb\\x1b[0m"
