"""Keys, hosts, content types, other pages, and who may reach what."""

import socket
from collections.abc import Iterator

import pytest

from ninfer.errors import RequestError
from ninfer.gateway.gateway_settings import GatewaySettings
from ninfer.gateway.security import check_host, check_key
from tests.support.gateway_clients import read_until
from tests.support.gateway_server import RunningServer, running_server
from tests.support.scripted_engine import ScriptedEngine

KEYS = (b"first-key", "ключ".encode())
ORIGIN = "https://page.example"


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine() as scripted:
        yield scripted


@pytest.fixture(scope="module")
def locked(engine: ScriptedEngine) -> Iterator[RunningServer]:
    with running_server(engine, api_keys=KEYS, cors_origins=frozenset({ORIGIN})) as server:
        yield server


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer first-key"},
        {"Authorization": "bEaReR  first-key "},
        {"x-api-key": "first-key"},
        {"Authorization": "Bearer ключ".encode().decode("latin-1")},
        {"Authorization": "Bearer wrong", "x-api-key": "first-key"},
    ],
)
def test_a_key_opens_in_any_spelling(locked: RunningServer, headers: dict[str, str]) -> None:
    assert locked.get("/v1/models", headers).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Basic first-key"},
        {"Authorization": "first-key"},
        {"Authorization": "Bearer "},
        {"x-api-key": ""},
        {"Authorization": "Bearer ключи".encode().decode("latin-1")},
    ],
)
def test_a_wrong_key_is_refused_like_none(locked: RunningServer, headers: dict[str, str]) -> None:
    reply = locked.get("/v1/models", headers)

    assert (reply.status, reply.code) == (401, "invalid_api_key")
    assert reply.headers["www-authenticate"] == "Bearer"
    assert reply.json["error"]["message"] == "no valid API key was given"


def test_anthropic_paths_refuse_in_their_own_shape(locked: RunningServer) -> None:
    reply = locked.post("/v1/messages", {})

    assert reply.status == 401
    assert reply.json["error"]["type"] == "authentication_error"
    assert reply.json["request_id"] == reply.headers["request-id"] == reply.headers["x-request-id"]


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready"])
def test_health_needs_no_key(locked: RunningServer, path: str) -> None:
    assert locked.get(path).status == 200


def test_metrics_need_a_key_unless_they_are_public(
    locked: RunningServer, engine: ScriptedEngine
) -> None:
    with running_server(engine, api_keys=KEYS, is_metrics_public=True) as public:
        assert public.get("/metrics").status == 200
    assert locked.get("/metrics").status == 401


def test_every_key_is_compared_whatever_matches() -> None:
    check_key("Bearer a", None, (b"a", b"b"))
    check_key("Bearer b", None, (b"a", b"b"))

    with pytest.raises(RequestError):
        check_key("Bearer ab", None, (b"a", b"b"))


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:8000", "[::1]", "box.lan:80"]
)
def test_own_names_are_allowed_on_loopback(host: str) -> None:
    check_host(host, GatewaySettings(allowed_hosts=frozenset({"box.lan"})))


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:80", "", "[::2]:80"])
def test_foreign_names_are_refused_on_loopback(host: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_host(host, GatewaySettings())

    assert caught.value.code == "host_not_allowed"


def test_any_name_is_allowed_on_other_addresses() -> None:
    check_host("anything.example", GatewaySettings(host="0.0.0.0"))


def test_preflight_of_an_allowed_origin_gets_permission(locked: RunningServer) -> None:
    reply = locked.request("OPTIONS", "/v1/chat/completions", None, {"Origin": ORIGIN})

    assert reply.status == 204
    assert reply.headers["access-control-allow-origin"] == ORIGIN
    assert "access-control-allow-credentials" not in reply.headers
    assert "POST" in reply.headers["access-control-allow-methods"]


def test_preflight_of_another_origin_gets_none(locked: RunningServer) -> None:
    headers = {"Origin": "https://evil.example"}

    reply = locked.request("OPTIONS", "/v1/chat/completions", None, headers)

    assert "access-control-allow-origin" not in reply.headers


def test_replies_to_an_allowed_origin_expose_our_headers(locked: RunningServer) -> None:
    reply = locked.get("/v1/models", {"x-api-key": "first-key", "Origin": ORIGIN})

    assert reply.headers["access-control-allow-origin"] == ORIGIN
    assert "x-ninfer-ignored" in reply.headers["access-control-expose-headers"]


def test_preflight_without_cors_is_a_wrong_method(scripted_server: RunningServer) -> None:
    reply = scripted_server.request("OPTIONS", "/v1/models", None, {"Origin": ORIGIN})

    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")


def test_body_at_the_limit_passes_and_one_byte_more_does_not(engine: ScriptedEngine) -> None:
    with running_server(engine, max_request_bytes=1 << 20) as server:
        body = b'{"text":"a"}'
        fits = server.post("/v1/tokenize", body + b" " * ((1 << 20) - len(body)))
        connection = server.connect()
        connection.sendall(
            b"POST /v1/tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 1048577\r\n\r\n"
        )
        refused = read_until(connection, b"request_too_large")
        connection.close()

    assert fits.status == 200
    assert refused.startswith(b"HTTP/1.1 413")


def test_chunked_body_over_the_limit_is_refused(engine: ScriptedEngine) -> None:
    with running_server(engine, max_request_bytes=1 << 20) as server:
        connection = server.connect()
        connection.sendall(
            b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n100002\r\n" + b"x" * (1 << 20)
        )
        connection.sendall(b"xxxx")
        refused = read_until(connection, b"request_id")
        connection.close()

    assert refused.startswith(b"HTTP/1.1 413")
    assert b'"type":"request_too_large"' in refused
    assert b"the body is too large; allowed is 1048576 bytes (--max-request-mib)" in refused


def test_garbage_and_huge_headers_get_json(scripted_server: RunningServer) -> None:
    replies = {}
    for name, sent in (
        ("garbage", b"hello\r\n\r\n"),
        ("headers", b"GET / HTTP/1.1\r\nX: " + b"a" * (70 << 10) + b"\r\n\r\n"),
        ("encoding", b"POST / HTTP/1.1\r\nTransfer-Encoding: br\r\n\r\n"),
    ):
        connection = scripted_server.connect()
        connection.sendall(sent)
        replies[name] = _whole(connection)

    assert b"400 Bad Request" in replies["garbage"]
    assert b'"code":"invalid_http"' in replies["garbage"]
    assert b"the request is not valid HTTP: start line is invalid" in replies["garbage"]
    assert b"431" in replies["headers"]
    assert b'"code":"header_too_large"' in replies["headers"]
    assert b"the head of the request is too large; allowed is 65536 bytes" in replies["headers"]
    assert b'"code":"unsupported_transfer_encoding"' in replies["encoding"]
    assert b"the transfer encoding is not supported; allowed is chunked" in replies["encoding"]


@pytest.mark.parametrize(
    "line",
    [b"Authorization  Bearer secret", b"Authorization: Bearer \rsecret", b"x-api-key : secret"],
)
def test_malformed_line_with_a_key_is_not_repeated(
    scripted_server: RunningServer, line: bytes
) -> None:
    connection = scripted_server.connect()
    connection.sendall(b"GET / HTTP/1.1\r\n" + line + b"\r\n\r\n")

    reply = _whole(connection)

    assert b"the request is not valid HTTP: " in reply
    assert b"secret" not in reply


def test_every_reply_forbids_sniffing_and_names_no_software(
    scripted_server: RunningServer,
) -> None:
    for path in ("/health", "/nope", "/v1/models"):
        reply = scripted_server.get(path)
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert "server" not in reply.headers
        assert reply.headers["x-request-id"].startswith("req_")


def test_client_id_is_echoed_beside_ours(scripted_server: RunningServer) -> None:
    good = scripted_server.get("/health", {"x-request-id": "trace-1.a_B"})
    bad = scripted_server.get("/health", {"x-request-id": "no spaces"})

    assert good.headers["x-client-request-id"] == "trace-1.a_B"
    assert good.headers["x-request-id"] != "trace-1.a_B"
    assert "x-client-request-id" not in bad.headers


def _whole(connection: socket.socket) -> bytes:
    data = b""
    while piece := connection.recv(65536):
        data += piece
    connection.close()
    return data


@pytest.mark.parametrize("header", ["mybox:8000", "MyBox", "127.0.1.1:8000", "localhost"])
def test_name_of_loopback_answers_to_itself_and_to_its_address(header: str) -> None:
    check_host(header, GatewaySettings(host="MyBox", address="127.0.1.1"))


def test_name_of_loopback_is_guarded_against_rebinding() -> None:
    with pytest.raises(RequestError, match=r"Host is 'evil\.example'"):
        check_host("evil.example", GatewaySettings(host="mybox", address="127.0.1.1"))
