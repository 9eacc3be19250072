"""Who may call: keys, the Host header, content types and other pages' origins.

Pure functions over header values. Source: the serving contract, section 12.
"""

import hmac
from collections.abc import Sequence
from typing import Final

from ninfer.errors import RequestError
from ninfer.gateway.gateway_settings import LOOPBACK_HOSTS, GatewaySettings
from ninfer.generation import shown

EXPOSED_HEADERS: Final = "x-request-id, retry-after, x-ninfer-ignored"
_ALLOWED_HEADERS: Final = (
    "authorization, content-type, x-api-key, x-request-id, x-session-id, x-ninfer-cache, "
    "anthropic-version, anthropic-beta, anthropic-dangerous-direct-browser-access"
)
_PREFLIGHT_SECONDS: Final = "600"


def check_host(host_header: str | None, settings: GatewaySettings) -> None:
    """Refuse a Host that a loopback listener cannot have (DNS rebinding).

    Raises:
        RequestError: ``host_not_allowed``.
    """
    if not settings.is_loopback:
        return
    name = _host_name(host_header or "")
    own = {settings.host.lower(), settings.bound_host}
    if name not in LOOPBACK_HOSTS | settings.allowed_hosts | own:
        raise RequestError(
            f"Host is {shown(name)}; a server on {settings.host} answers to localhost, 127.0.0.1, "
            "[::1] and the names of --allowed-host",
            code="host_not_allowed",
        )


def check_key(authorization: str | None, api_key_header: str | None, keys: Sequence[bytes]) -> None:
    """Refuse a request without one of the keys; without keys everybody may call.

    Args:
        authorization: its header value, as a WSGI server decodes it (latin-1).
        api_key_header: the same of ``x-api-key``.
        keys: accepted keys.

    Raises:
        RequestError: ``invalid_api_key``; the same for a wrong key as for none.
    """
    if not keys:
        return
    offered = [_wire_bytes(api_key_header)] if api_key_header is not None else []
    scheme, _, credentials = (authorization or "").partition(" ")
    if scheme.lower() == "bearer":
        offered.append(_wire_bytes(credentials.strip()))
    is_known = False
    for candidate in offered:
        for key in keys:  # All of them, so that the time says nothing about which one matched.
            is_known |= hmac.compare_digest(candidate, key)
    if not is_known:
        raise RequestError("no valid API key was given", code="invalid_api_key")


def check_json_type(content_type: str | None, content_encoding: str | None) -> None:
    """Refuse a body that is not plain JSON.

    A form can be posted from any page without asking first; JSON cannot.

    Raises:
        RequestError: ``unsupported_media_type``.
    """
    kind = (content_type or "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError(
            f"Content-Type is {shown(kind)}; it must be application/json",
            code="unsupported_media_type",
        )
    encoding = (content_encoding or "identity").strip().lower()
    if encoding != "identity":
        raise RequestError(
            f"Content-Encoding is {shown(encoding)}; bodies must not be compressed",
            code="unsupported_media_type",
        )


def cors_headers(origin: str | None, settings: GatewaySettings) -> dict[str, str]:
    """Headers that let a page of this origin read the reply; none when it may not."""
    if origin is None or not settings.cors_origins:
        return {}
    if "*" in settings.cors_origins:
        allowed, vary = "*", {}
    elif origin in settings.cors_origins:
        allowed, vary = origin, {"Vary": "Origin"}
    else:
        return {"Vary": "Origin"}
    exposed = {"Access-Control-Expose-Headers": EXPOSED_HEADERS}
    return {"Access-Control-Allow-Origin": allowed, **exposed, **vary}


def preflight_headers(origin: str | None, settings: GatewaySettings) -> dict[str, str]:
    """Headers of the answer to a preflight; an origin that may not call gets no permission."""
    headers = cors_headers(origin, settings)
    if "Access-Control-Allow-Origin" not in headers:
        return headers
    return {
        **headers,
        "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
        "Access-Control-Allow-Headers": _ALLOWED_HEADERS,
        "Access-Control-Max-Age": _PREFLIGHT_SECONDS,
    }


def _host_name(host: str) -> str:
    """Name without the port, without the brackets of an address, in lower case."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def _wire_bytes(header: str) -> bytes:
    return header.encode("latin-1", "replace")
