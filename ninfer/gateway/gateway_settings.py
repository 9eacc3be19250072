"""Frozen settings of the HTTP gateway, as ``ninfer serve`` and tests build them.

Ranges are checked here, so that every caller refuses the same values in the same words. Reading
options and ``NINFER_*`` variables is the command line's business. Source: the serving contract,
sections 1, 10 to 13.
"""

import enum
import ipaddress
from dataclasses import dataclass

from ninfer.errors import ConfigurationError
from ninfer.generation import number_text
from ninfer.runtime import DEFAULT_MAX_NEW_TOKENS

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
HEADER_LIMIT_BYTES = 64 << 10
EXTRA_THREADS = 8
"""Threads beyond the generation slots: health, metrics, models, counting and refusals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingChoices:
    """Sampling values somebody named; None leaves one to whoever comes next.

    Ranges are those of `SamplingParams`, and are checked when one is made of them.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None


class Reach(enum.Enum):
    """Who can connect to an address."""

    THIS_MACHINE = enum.auto()  # a loopback address
    ONE_NETWORK = enum.auto()  # whoever reaches this one address
    EVERY_NETWORK = enum.auto()  # whoever reaches any address of this machine


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Everything about the server that is not about the engine.

    Attributes:
        host, port: where to listen; port 0 takes a free one.
        address: the numeric address that ``host`` means, `numeric_address`, so that what is judged
            is what is bound; empty while ``host`` is numeric itself or was not looked up.
        http_server: ``waitress``, or ``werkzeug`` for debugging.
        api_keys: accepted keys as bytes; empty switches authentication off.
        allowed_hosts: names the Host header may have on a loopback listener, beyond its own.
        cors_origins: origins of other pages that may call; ``*`` is any.
        is_metrics_public: ``/metrics`` needs no key.
        max_request_bytes: longest request body.
        model_aliases: further names of the model.
        pending_timeout_s: longest time from a complete body to admission.
        request_timeout_s: longest life of a request; None is unlimited.
        heartbeat_s: quiet time after which a stream gets a comment line.
        shutdown_grace_s: time active requests have after the first signal.
        stall_timeout_s: age of a model unit that makes the server unready.
        stall_client_s: time without progress after which a client that does not read is dropped.
        default_max_tokens: output budget of a request that names none.
        default_thinking_budget: None is unlimited.
        default_enable_thinking, default_preserve_thinking: None is the template's own default.
        is_strict: unknown fields are refused instead of ignored.
        sampling: the process's own sampling values, for requests that name none.
        is_greedy: every request takes the likeliest token, whatever it asks for.
        exits_on_failure: the process ends after the engine failed.
        has_media_urls: media may be fetched over http(s).
        media_url_hosts: hosts media may come from; empty is any public one.
        media_cache_bytes: decoded images that are kept.
        keeps_billing_header: see the serving contract, section 8.
        request_log: path of the request log.
        stats_interval_s: seconds between ``throughput`` lines of the log.
    """

    host: str = "127.0.0.1"
    address: str = ""
    port: int = 8000
    http_server: str = "waitress"
    api_keys: tuple[bytes, ...] = ()
    allowed_hosts: frozenset[str] = frozenset()
    cors_origins: frozenset[str] = frozenset()
    is_metrics_public: bool = False
    max_request_bytes: int = 64 << 20
    model_aliases: frozenset[str] = frozenset()
    pending_timeout_s: float = 30.0
    request_timeout_s: float | None = None
    heartbeat_s: float = 5.0
    shutdown_grace_s: float = 30.0
    stall_timeout_s: float = 60.0
    stall_client_s: float = 60.0
    default_max_tokens: int = DEFAULT_MAX_NEW_TOKENS
    default_thinking_budget: int | None = None
    default_enable_thinking: bool | None = None
    default_preserve_thinking: bool | None = None
    is_strict: bool = False
    sampling: SamplingChoices = SamplingChoices()
    is_greedy: bool = False
    exits_on_failure: bool = False
    has_media_urls: bool = False
    media_url_hosts: frozenset[str] = frozenset()
    media_cache_bytes: int = 256 << 20
    keeps_billing_header: bool = False
    request_log: str | None = None
    stats_interval_s: float = 10.0

    def __post_init__(self) -> None:
        _in_range("port", self.port, 0, 65535)
        _in_range("max_request_mib", self.max_request_bytes / (1 << 20), 1, 1024)
        _in_range("media_cache_mib", self.media_cache_bytes / (1 << 20), 0, 1 << 20)
        _in_range("default_max_tokens", self.default_max_tokens, 0, (1 << 31) - 1)
        for name in ("pending_timeout_s", "heartbeat_s", "stall_timeout_s", "stall_client_s"):
            _in_range(name, getattr(self, name), 0.001, 1e9)
        _in_range("shutdown_grace_s", self.shutdown_grace_s, 0, 1e9)
        _in_range("stats_s", self.stats_interval_s, 0.01, 1e9)
        if self.request_timeout_s is not None:
            _in_range("request_timeout_s", self.request_timeout_s, 0.001, 1e9)
        if self.default_thinking_budget is not None:
            budget = self.default_thinking_budget
            _in_range("default_thinking_budget", budget, 0, (1 << 31) - 1)
        if self.http_server not in ("waitress", "werkzeug"):
            raise ConfigurationError(
                f"http_server is {self.http_server[:64]!r}; allowed is waitress or werkzeug",
                field="http_server",
            )

    @property
    def bound_host(self) -> str:
        """What the listening socket is bound to."""
        return self.address or self.host

    @property
    def reach(self) -> Reach:
        """Who can connect; a name that was not looked up is taken for an address of one network."""
        if self.bound_host in LOOPBACK_HOSTS:
            return Reach.THIS_MACHINE
        try:
            address = ipaddress.ip_address(self.bound_host)
        except ValueError:
            return Reach.ONE_NETWORK
        if isinstance(address, ipaddress.IPv6Address):
            # Before Python 3.13 ::ffff:127.0.0.1 is neither loopback nor unspecified by itself.
            address = address.ipv4_mapped or address
        if address.is_unspecified:
            return Reach.EVERY_NETWORK
        return Reach.THIS_MACHINE if address.is_loopback else Reach.ONE_NETWORK

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return self.reach is Reach.THIS_MACHINE


def _in_range(name: str, value: float, low: float, high: float) -> None:
    if isinstance(value, bool) or not low <= value <= high:
        raise ConfigurationError(
            f"{name} is {number_text(value)}; allowed is {number_text(low)}..{number_text(high)}",
            field=name,
        )
