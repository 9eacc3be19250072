"""Fetching media from a URL that a client chose, without being turned against our own network.

A name is resolved once and every address must be public; the connection goes to the address that
was checked, with the original Host and server name. Redirects are followed by hand, each checked
again. Environment proxies, netrc and cookies play no part. Source: the serving contract, section
10.
"""

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, urljoin, urlsplit

from ninfer.errors import RequestError
from ninfer.gateway.bounded_threads import BoundedThreads
from ninfer.generation import shown

MAX_REDIRECTS: Final = 3
CONNECT_S: Final = 3.0
TOTAL_S: Final = 10.0
_PORTS: Final = {"http": 80, "https": 443}
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_PIECE_BYTES: Final = 65536
_RESOLVERS: Final = BoundedThreads("resolver", 8)

Resolve = Callable[[str, int], Sequence[str]]
Connect = Callable[[str, int, float], socket.socket]


def resolve_name(host: str, port: int) -> Sequence[str]:
    """Addresses of a name.

    Raises:
        OSError: there are none.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


def connect_to(address: str, port: int, timeout_s: float) -> socket.socket:
    """Open a connection to an address, not to a name."""
    return socket.create_connection((address, port), timeout_s)


@dataclass(frozen=True, slots=True)
class UrlFetcher:
    """Fetches bytes under the guard.

    Attributes:
        allowed_hosts: names that may be fetched from; empty is every public one.
        max_bytes: reading stops there, whatever the reply declares.
        resolve, connect, clock: the outside world.
    """

    allowed_hosts: frozenset[str]
    max_bytes: int
    resolve: Resolve = resolve_name
    connect: Connect = connect_to
    clock: Callable[[], float] = field(default=time.monotonic)

    def fetch(self, url: str, path: str, total_s: float = TOTAL_S) -> bytes:
        """Fetch one URL.

        Args:
            url: as the client wrote it.
            path: dotted path of the field, for messages.
            total_s: longest time for everything.

        Raises:
            RequestError: ``media_url_forbidden``, ``media_fetch_failed``, ``media_fetch_timeout``
                or ``media_budget_exceeded``.
        """
        deadline = self.clock() + min(total_s, TOTAL_S)
        parts = self._checked(urlsplit_safely(url, path), path)
        for _ in range(MAX_REDIRECTS + 1):
            target, data = self._visit(parts, path, deadline)
            if target is None:
                return data
            following = self._checked(urlsplit_safely(urljoin(parts.geturl(), target), path), path)
            if parts.scheme == "https" and following.scheme != "https":
                raise _forbidden(path, "redirects from https to http")
            parts = following
        raise _failed(path, f"redirects more than {MAX_REDIRECTS} times")

    def _checked(self, parts: SplitResult, path: str) -> SplitResult:
        """Refuse what may not be asked for, before any name is resolved."""
        if parts.scheme not in _PORTS:
            raise _forbidden(path, f"has the scheme {shown(parts.scheme)}; allowed is http, https")
        if parts.username is not None or parts.password is not None:
            raise _forbidden(path, "holds credentials")
        if not parts.hostname:
            raise _forbidden(path, "names no host")
        if _port(parts, path) not in _PORTS.values():
            raise _forbidden(path, "names a port other than 80 and 443")
        if self.allowed_hosts and parts.hostname not in self.allowed_hosts:
            raise _forbidden(path, f"names the host {shown(parts.hostname)}, which is not allowed")
        return parts

    def _visit(self, parts: SplitResult, path: str, deadline: float) -> tuple[str | None, bytes]:
        """Ask one server; the target of a redirect, or the bytes."""
        try:
            with (
                self._open(parts, path, deadline) as connection,
                _cut_off(connection, self._left_s(path, deadline)),
            ):
                return self._ask(connection, parts, path, deadline)
        except TimeoutError as error:
            raise _late(path) from error
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            self._left_s(path, deadline)  # Cut off by the deadline, it was late.
            raise _failed(path, "could not be fetched") from error

    def _open(self, parts: SplitResult, path: str, deadline: float) -> socket.socket:
        host, port = parts.hostname or "", _port(parts, path)
        addresses = self._addresses(host, port, self._left_s(path, deadline))
        for address in addresses:
            if not is_public(address):
                raise _forbidden(path, f"names the host {shown(host)}, which is not public")
        if not addresses:
            raise _failed(path, "names a host without an address")
        timeout_s = min(CONNECT_S, self._left_s(path, deadline))
        connection = self.connect(addresses[0], port, timeout_s)
        if parts.scheme == "http":
            return connection
        try:
            return ssl.create_default_context().wrap_socket(connection, server_hostname=host)
        except BaseException:
            connection.close()
            raise

    def _addresses(self, host: str, port: int, limit_s: float) -> Sequence[str]:
        """Resolve a name; the system's resolver has its own, much longer idea of patience."""
        return _RESOLVERS.start(lambda: self.resolve(host, port), limit_s).result(limit_s)

    def _ask(
        self, connection: socket.socket, parts: SplitResult, path: str, deadline: float
    ) -> tuple[str | None, bytes]:
        connection.settimeout(self._left_s(path, deadline))
        client = http.client.HTTPConnection(parts.hostname or "")
        client.sock = connection
        target = parts.path or "/"
        if parts.query:
            target += f"?{parts.query}"
        headers = {"Host": parts.netloc, "Accept": "image/*", "Connection": "close"}
        client.request("GET", target, headers={**headers, "User-Agent": "ninfer"})
        with closing(client.getresponse()) as reply:
            location = reply.getheader("Location")
            if reply.status in _REDIRECTS and location is not None:
                return location, b""
            if reply.status != 200:
                raise _failed(path, f"was answered with status {reply.status}")
            return None, self._read(reply, connection, path, deadline)

    def _read(
        self,
        reply: http.client.HTTPResponse,
        connection: socket.socket,
        path: str,
        deadline: float,
    ) -> bytes:
        pieces: list[bytes] = []
        num_bytes = 0
        while True:
            connection.settimeout(self._left_s(path, deadline))
            piece = reply.read1(_PIECE_BYTES)
            if not piece:
                return b"".join(pieces)
            pieces.append(piece)
            num_bytes += len(piece)
            if num_bytes > self.max_bytes:
                raise RequestError(
                    f"{path} has more than {self.max_bytes} bytes",
                    code="media_budget_exceeded",
                    field=path,
                )

    def _left_s(self, path: str, deadline: float) -> float:
        left_s = deadline - self.clock()
        if left_s <= 0:
            raise _late(path)
        return left_s


@contextmanager
def _cut_off(connection: socket.socket, after_s: float) -> Iterator[None]:
    """Shut a connection at a deadline, however slowly its bytes trickle in."""

    def shut() -> None:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(after_s, shut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def is_public(address: str) -> bool:
    """Whether an address is globally routable, also when it hides in an IPv6 one."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address):
        inner = parsed.ipv4_mapped or parsed.sixtofour
        if inner is not None and not inner.is_global:
            return False
        if parsed.ipv4_mapped is not None:
            return True
        if parsed.teredo is not None or parsed in _NAT64:
            return False
    return parsed.is_global and not parsed.is_multicast and not parsed.is_reserved


_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


def urlsplit_safely(url: str, path: str) -> SplitResult:
    """Take a URL apart.

    Raises:
        RequestError: ``media_url_forbidden``.
    """
    if not url.isprintable() or any(char.isspace() for char in url):
        raise _forbidden(path, "holds white space or control characters")
    try:
        return urlsplit(url)
    except ValueError as error:
        raise _forbidden(path, "is no URL") from error


def _port(parts: SplitResult, path: str) -> int:
    try:
        return parts.port or _PORTS[parts.scheme]
    except ValueError as error:
        raise _forbidden(path, "names a port other than 80 and 443") from error


def _forbidden(path: str, problem: str) -> RequestError:
    return RequestError(f"{path} {problem}", code="media_url_forbidden", field=path)


def _failed(path: str, problem: str) -> RequestError:
    return RequestError(f"{path} {problem}", code="media_fetch_failed", field=path)


def _late(path: str) -> RequestError:
    return RequestError(f"{path} took too long", code="media_fetch_timeout", field=path)
