import socket
from typing import NoReturn

import pytest

from ninfer.errors import ConfigurationError
from ninfer.gateway.listening_socket import address_url, listening_socket, numeric_address


def test_socket_that_was_asked_for_a_free_port_listens() -> None:
    with listening_socket("127.0.0.1", 0, 1) as listening:
        client = socket.create_connection(listening.getsockname(), timeout=5)
        client.close()


def test_taken_address_is_named_as_a_url() -> None:
    with listening_socket("127.0.0.1", 0, 1) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(OSError, match="Address already in use") as refusal:
            listening_socket("127.0.0.1", port, 1)

    assert refusal.value.filename == f"http://127.0.0.1:{port}"


def test_host_that_nobody_knows_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*arguments: object, **options: object) -> NoReturn:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)

    with pytest.raises(ConfigurationError, match="host is 'nowhere': Name or service not known"):
        listening_socket("nowhere", 8000, 1)


@pytest.mark.parametrize(
    ("host", "address"),
    [("0", "0.0.0.0"), ("0x7f.1", "127.0.0.1"), ("::0", "::"), ("fe80::1%1", "fe80::1%1")],
)
def test_address_is_that_which_is_bound(host: str, address: str) -> None:
    assert numeric_address(host) == address


def test_empty_host_is_not_looked_up() -> None:
    with pytest.raises(ConfigurationError, match="host is empty"):
        listening_socket("", 0, 1)


def test_address_of_the_newer_protocol_stands_in_brackets() -> None:
    assert address_url("::1", 8000) == "http://[::1]:8000"
