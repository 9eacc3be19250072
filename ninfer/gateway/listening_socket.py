"""The socket a server listens on, whichever server it is.

Opening it is the first thing that can fail, and it says which address it was about. Knows neither
server nor engine. Source: the serving contract, section 1.2.
"""

import socket

from ninfer.errors import ConfigurationError


def listening_socket(host: str, port: int, backlog: int) -> socket.socket:
    """Bind an address and listen on it; ``localhost`` is the IPv4 one.

    Args:
        host: name or address of this machine.
        port: 0 takes a free one.
        backlog: connections the system may keep until they are taken.

    Raises:
        ConfigurationError: the host has no address.
        OSError: the address cannot be listened on; ``filename`` is its URL.
    """
    family, kind, protocol, address = _resolved(host, port)
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(backlog)
    except OSError as error:
        listening.close()
        raise OSError(error.errno, error.strerror, address_url(host, port)) from error
    return listening


def numeric_address(host: str) -> str:
    """The address that a host stands for here, whatever its spelling: ``0`` is ``0.0.0.0``.

    Raises:
        ConfigurationError: the host has no address.
    """
    _, _, _, address = _resolved(host, 0)
    scope = address[3] if len(address) > 3 else 0
    return f"{address[0]}%{scope}" if scope else str(address[0])


def address_url(host: str, port: int) -> str:
    """Spell an address as a browser takes it."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _resolved(
    host: str, port: int
) -> tuple[socket.AddressFamily, socket.SocketKind, int, tuple[object, ...]]:
    if not host:
        raise ConfigurationError("host is empty; 127.0.0.1 is this machine alone", field="host")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        found = socket.getaddrinfo(
            host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (socket.gaierror, UnicodeError) as error:
        # A label that is empty or too long never reaches the resolver.
        reason = error.strerror if isinstance(error, OSError) else "it is no host name"
        raise ConfigurationError(f"host is {host[:64]!r}: {reason}", field="host") from error
    family, kind, protocol, _, address = found[0]
    return family, kind, protocol, address
