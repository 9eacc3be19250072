"""The guard of URLs: which addresses are asked, how, and for how long."""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from ninfer.errors import RequestError
from ninfer.gateway.gateway_settings import GatewaySettings
from ninfer.gateway.media_source import MediaSource
from ninfer.gateway.media_url import UrlFetcher, is_public
from tests.support.png_images import png_bytes

PUBLIC = "93.184.216.34"


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "192.168.0.1",
        "172.16.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1%eth0",
        "fc00::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::1",
        "ff02::1",
        "not an address",
    ],
)
def test_addresses_of_our_own_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", [PUBLIC, "2606:2800:220:1::1", "::ffff:93.184.216.34"])
def test_global_addresses_are_public(address: str) -> None:
    assert is_public(address)


class Web:
    """A pretended internet: names to addresses, and one server behind every address."""

    def __init__(self, names: Mapping[str, Sequence[str]], replies: Sequence[bytes]) -> None:
        self.names = names
        self.replies = list(replies)
        self.connected: list[tuple[str, int]] = []
        self.requests: list[bytes] = []

    def resolve(self, host: str, port: int) -> Sequence[str]:
        if host not in self.names:
            raise socket.gaierror("unknown")
        return self.names[host]

    def connect(self, address: str, port: int, timeout_s: float) -> socket.socket:
        self.connected.append((address, port))
        ours, theirs = socket.socketpair()
        reply = self.replies.pop(0)

        def answer() -> None:
            with theirs:
                self.requests.append(theirs.recv(65536))
                theirs.sendall(reply)

        threading.Thread(target=answer, daemon=True).start()
        return ours

    def fetcher(self, **members: Any) -> UrlFetcher:
        chosen: dict[str, Any] = {"allowed_hosts": frozenset(), "max_bytes": 1000, **members}
        return UrlFetcher(resolve=self.resolve, connect=self.connect, **chosen)


def ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def to(target: str) -> bytes:
    return f"HTTP/1.1 302 Found\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n".encode()


def code_of(action: Callable[[], object]) -> str:
    with pytest.raises(RequestError) as caught:
        action()
    return caught.value.code


def test_fetch_connects_to_the_checked_address_with_the_original_name() -> None:
    web = Web({"img.example": [PUBLIC]}, [ok(b"bytes")])

    data = web.fetcher().fetch("http://img.example/a?b=c", "p")

    assert data == b"bytes"
    assert web.connected == [(PUBLIC, 80)]
    assert web.requests[0].startswith(b"GET /a?b=c HTTP/1.1\r\n")
    assert b"Host: img.example\r\n" in web.requests[0]
    assert b"ookie" not in web.requests[0]


@pytest.mark.parametrize(
    "url",
    [
        "http://inner.example/",
        "http://half.example/",
        "http://127.0.0.1/",
        "http://img.example:8080/",
        "http://img.example:99999/",
        "http://user@img.example/",
        "gopher://img.example/",
        "http:///a",
        "http://img.example/a b",
        "http://[::1/",
    ],
)
def test_forbidden_url_is_never_connected_to(url: str) -> None:
    web = Web(
        {
            "img.example": [PUBLIC],
            "inner.example": ["10.0.0.1"],
            "half.example": [PUBLIC, "127.0.0.1"],
            "127.0.0.1": ["127.0.0.1"],
        },
        [],
    )

    assert code_of(lambda: web.fetcher().fetch(url, "p")) == "media_url_forbidden"
    assert web.connected == []


@pytest.mark.parametrize(
    "target",
    ["http://127.0.0.1/", "http://inner.example/x", "file:///etc/passwd", "//inner.example"],
)
def test_redirect_is_checked_again(target: str) -> None:
    names = {"img.example": [PUBLIC], "inner.example": ["10.0.0.1"], "127.0.0.1": ["127.0.0.1"]}
    web = Web(names, [to(target)])

    code = code_of(lambda: web.fetcher().fetch("http://img.example/", "p"))

    assert code == "media_url_forbidden"
    assert len(web.connected) == 1


def test_three_redirects_are_followed_and_a_fourth_is_not() -> None:
    hops = [to("/1"), to("/2"), to("http://img.example/3")]
    followed = Web({"img.example": [PUBLIC]}, [*hops, ok(b"x")])
    endless = Web({"img.example": [PUBLIC]}, [*hops, to("/4")])

    assert followed.fetcher().fetch("http://img.example/", "p") == b"x"
    assert code_of(lambda: endless.fetcher().fetch("http://img.example/", "p")) == (
        "media_fetch_failed"
    )


def test_body_beyond_the_limit_is_not_read_on() -> None:
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n"
    honest = Web({"img.example": [PUBLIC]}, [ok(b"x" * 1001)])
    endless = Web({"img.example": [PUBLIC]}, [b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 5000])
    short = Web({"img.example": [PUBLIC]}, [reply + b"xyz"])

    fetch = "http://img.example/"
    assert code_of(lambda: honest.fetcher().fetch(fetch, "p")) == "media_budget_exceeded"
    assert code_of(lambda: endless.fetcher().fetch(fetch, "p")) == "media_budget_exceeded"
    assert short.fetcher().fetch(fetch, "p") == b"x"


@pytest.mark.parametrize("reply", [b"HTTP/1.1 404 No\r\n\r\nsecret", b"garbage", b""])
def test_failed_fetch_does_not_echo_the_body(reply: bytes) -> None:
    web = Web({"img.example": [PUBLIC]}, [reply])

    with pytest.raises(RequestError) as caught:
        web.fetcher().fetch("http://img.example/", "p")

    assert caught.value.code == "media_fetch_failed"
    assert "secret" not in str(caught.value)


def test_unknown_name_fails_and_only_listed_hosts_are_asked() -> None:
    web = Web({"img.example": [PUBLIC]}, [])

    assert code_of(lambda: web.fetcher().fetch("http://nowhere.example/", "p")) == (
        "media_fetch_failed"
    )
    listed = web.fetcher(allowed_hosts=frozenset({"other.example"}))
    assert code_of(lambda: listed.fetch("http://img.example/", "p")) == "media_url_forbidden"


@contextmanager
def trickling() -> Iterator[Callable[[str, int, float], socket.socket]]:
    """A server that sends one byte of its header now and then."""
    stop = threading.Event()
    threads: list[threading.Thread] = []

    def connect(address: str, port: int, timeout_s: float) -> socket.socket:
        ours, theirs = socket.socketpair()

        def answer() -> None:
            with theirs:
                while not stop.wait(0.02):
                    try:
                        theirs.send(b"H")
                    except OSError:
                        return

        threads.append(threading.Thread(target=answer))
        threads[-1].start()
        return ours

    yield connect
    stop.set()
    for thread in threads:
        thread.join()


def test_trickling_server_is_cut_off() -> None:
    with trickling() as connect:
        fetcher = UrlFetcher(frozenset(), 1000, lambda host, port: [PUBLIC], connect)
        started = time.monotonic()

        code = code_of(lambda: fetcher.fetch("http://img.example/", "p", 0.2))

    assert code == "media_fetch_timeout"
    assert time.monotonic() - started < 15


def test_slow_resolver_is_not_waited_for() -> None:
    may_go = threading.Event()

    def resolve(host: str, port: int) -> Sequence[str]:
        may_go.wait(120)
        return [PUBLIC]

    fetcher = UrlFetcher(frozenset(), 1000, resolve, lambda *unused: socket.socket())
    started = time.monotonic()

    code = code_of(lambda: fetcher.fetch("http://img.example/", "p", 0.2))
    elapsed_s = time.monotonic() - started
    may_go.set()

    assert code == "media_fetch_timeout"
    assert elapsed_s < 15


def test_fetched_bytes_are_checked_like_all_others() -> None:
    web = Web({"img.example": [PUBLIC]}, [ok(png_bytes(2, 2)), ok(b"<html>")])
    source = MediaSource(GatewaySettings(has_media_urls=True), web.fetcher())

    image = source.from_url("http://img.example/a.png", "p")

    assert (image.header.width, image.header.height) == (2, 2)
    assert code_of(lambda: source.from_url("http://img.example/b", "p")) == "invalid_media"
