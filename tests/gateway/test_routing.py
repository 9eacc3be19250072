"""Paths, methods, models, health and the page."""

import pytest

from tests.support.gateway_server import RunningServer


@pytest.mark.parametrize("path", ["/nope", "/v1/models/", "/v1/chat/completions/", "/web/../x"])
def test_unknown_path_is_404_and_never_redirected(
    scripted_server: RunningServer, path: str
) -> None:
    reply = scripted_server.get(path)

    assert (reply.status, reply.code) == (404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("DELETE", "/v1/models", "GET, HEAD"),
        ("POST", "/health", "GET, HEAD"),
        ("PUT", "/v1/tokenize", "POST"),
    ],
)
def test_wrong_method_names_the_right_ones(
    scripted_server: RunningServer, method: str, path: str, allowed: str
) -> None:
    reply = scripted_server.request(method, path)

    assert (reply.status, reply.code) == (405, "method_not_allowed")
    assert reply.headers["allow"] == allowed


def test_responses_api_points_at_chat(scripted_server: RunningServer) -> None:
    for path in ("/v1/responses", "/v1/responses/r1/cancel"):
        reply = scripted_server.post(path, {})
        assert (reply.status, reply.code) == (404, "unsupported_endpoint")
        assert "/v1/chat/completions" in reply.json["error"]["message"]


def test_models_are_the_one_model(scripted_server: RunningServer) -> None:
    listed = scripted_server.get("/v1/models").json["data"]
    single = scripted_server.get("/v1/models/tiny-dense").json

    assert listed == [single]
    assert single["max_model_len"] == 4096
    assert single["capabilities"]["vision"] is False
    assert single["sampling_defaults"]["non_thinking"]["presence_penalty"] == 1.5


def test_unknown_model_is_404(scripted_server: RunningServer) -> None:
    reply = scripted_server.get("/v1/models/org/other")

    assert (reply.status, reply.code) == (404, "model_not_found")


def test_ready_health_says_how_busy_it_is(scripted_server: RunningServer) -> None:
    assert scripted_server.get("/health").json == {"status": "ok"}
    assert scripted_server.get("/health/ready").json == {
        "status": "ready",
        "model": "tiny-dense",
        "active": 0,
        "waiting": 0,
        "last_progress_ms": 0,
    }
    live = scripted_server.get("/health/live").json
    assert live.keys() == {"status", "uptime_s"}


def test_ignored_fields_are_listed(scripted_server: RunningServer) -> None:
    reply = scripted_server.chat(user="me", store=False, made_up=1, metadata={"a": "b"})

    assert reply.status == 200
    names = set(reply.headers["x-ninfer-ignored"].split(", "))
    assert names == {"user", "store", "made_up", "metadata"}
