"""``ninfer serve``: the model over HTTP."""

import argparse
import logging
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from ninfer.cli.collection import collection_paused
from ninfer.cli.console import Console
from ninfer.cli.exit_codes import ExitCode, UsageError
from ninfer.cli.model_argument import add_model_argument, settle_model
from ninfer.cli.operator_log import operator_log
from ninfer.cli.options import (
    Repeated,
    add_engine_options,
    add_sampling_values,
    engine_config,
    integer,
    refuse_beside_greedy,
    refuse_idle,
)
from ninfer.cli.text_input import read_text, reason_of, text_argument
from ninfer.config import EngineConfig
from ninfer.gateway.gateway_settings import GatewaySettings, Reach, SamplingChoices
from ninfer.gateway.listening_socket import numeric_address
from ninfer.gateway.server import ServeEnd, ServePlan, serve
from ninfer.generation import number_text
from ninfer.runtime import DEFAULT_MAX_NEW_TOKENS, Engine, Progress

_logger = logging.getLogger(__name__)
_MIB: Final = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_model_argument(parser)
    _add_server_options(parser)
    _add_security_options(parser)
    _add_default_options(parser)
    add_engine_options(parser, max_context=8192)


def run(options: argparse.Namespace, console: Console) -> ExitCode:
    """Serve until a signal ends it."""
    settings = gateway_settings(options, console)
    config = engine_config(
        options, max_concurrency=options.max_concurrency, max_pending=options.max_pending
    )
    settle_model(options, console)
    with operator_log(sys.stderr):
        end = serve(
            ServePlan(
                settings=settings,
                config=config,
                load=partial(_loaded, options, config, console),
                arguments=sys.argv[1:],
                announce=_logger.info,
            )
        )
    return ExitCode.DONE if end is ServeEnd.DRAINED else ExitCode.FAILED


def gateway_settings(options: argparse.Namespace, console: Console) -> GatewaySettings:
    """Build the gateway's settings from the options, warning of what is unwise.

    Raises:
        UsageError: a key file cannot be read, everybody could reach a server without a key, or an
            option would do nothing.
        ConfigurationError: a value is out of its range, or the host has no address.
    """
    if options.no_auth:
        refuse_idle(
            options,
            ["api_key", "api_key_file"],
            "does not go with --no-auth, which asks for no key",
        )
    if not options.media_urls:
        refuse_idle(options, ["media_url_allow"], "goes with --media-urls")
    refuse_beside_greedy(options)
    keys = _keys(options, console)
    settings = GatewaySettings(
        host=options.host,
        address=numeric_address(options.host),
        port=options.port,
        http_server=options.http_server,
        api_keys=() if options.no_auth else keys,
        allowed_hosts=frozenset(name.lower() for name in options.allowed_host),
        cors_origins=frozenset(options.cors_origin),
        is_metrics_public=options.metrics_public,
        max_request_bytes=options.max_request_mib * _MIB,
        model_aliases=frozenset(options.model_alias),
        pending_timeout_s=options.pending_timeout_ms / 1e3,
        request_timeout_s=options.request_timeout_s or None,
        heartbeat_s=options.heartbeat_s,
        shutdown_grace_s=options.shutdown_grace_s,
        stall_timeout_s=options.stall_timeout_s,
        stall_client_s=options.stall_client_s,
        default_max_tokens=options.default_max_tokens,
        default_thinking_budget=options.default_thinking_budget,
        default_enable_thinking=False if options.no_thinking else None,
        default_preserve_thinking=True if options.preserve_thinking else None,
        is_strict=options.strict_fields,
        sampling=SamplingChoices(
            temperature=options.temperature,
            top_p=options.top_p,
            top_k=options.top_k,
            min_p=options.min_p,
            presence_penalty=options.presence_penalty,
            frequency_penalty=options.frequency_penalty,
            seed=options.seed,
        ),
        is_greedy=options.greedy,
        exits_on_failure=not options.no_exit_on_failure,
        has_media_urls=options.media_urls,
        media_url_hosts=frozenset(options.media_url_allow),
        media_cache_bytes=options.media_cache_mib * _MIB,
        keeps_billing_header=options.keep_billing_header,
        request_log=options.request_log,
        stats_interval_s=options.stats_s,
    )
    if not settings.api_keys:
        _check_open_door(settings, console, is_meant=options.no_auth)
    return settings


def _check_open_door(settings: GatewaySettings, console: Console, *, is_meant: bool) -> None:
    """Judge an address that is listened on without a key."""
    host, address = settings.host, settings.bound_host
    named = host if host == address else f"{host} ({address})"
    match settings.reach:
        case Reach.THIS_MACHINE:
            return
        case Reach.EVERY_NETWORK if not is_meant:
            raise UsageError(
                f"--host {named} without a key lets everybody in; give --api-key-file, or "
                "--no-auth if that is meant"
            )
        case Reach.EVERY_NETWORK | Reach.ONE_NETWORK:
            console.warn(f"everybody who reaches {named} may use this server")


def _loaded(
    options: argparse.Namespace,
    config: EngineConfig,
    console: Console,
    progress: Progress,
    compiling: Progress,
) -> Engine:
    template = options.chat_template
    with collection_paused():
        return Engine(
            options.model,
            config=config,
            chat_template=None if template is None else read_text(template),
            progress=_both(progress, console.loading),
            compiling=_both(compiling, console.compiling),
        )


def _both(first: Progress, second: Progress) -> Progress:
    def report(done: int, total: int) -> None:
        first(done, total)
        second(done, total)

    return report


def _keys(options: argparse.Namespace, console: Console) -> tuple[bytes, ...]:
    keys: list[bytes] = []
    if options.api_key_file is not None:
        try:
            lines = Path(options.api_key_file).read_bytes().splitlines()
        except OSError as error:
            reason = reason_of(error)
            raise UsageError(f"cannot read {options.api_key_file}: {reason}") from error
        keys += [line.strip() for line in lines if line.strip() and not line.startswith(b"#")]
        if not keys:
            raise UsageError(f"{options.api_key_file} holds no key")
    if options.api_key is not None:
        if any(argument.partition("=")[0] == "--api-key" for argument in sys.argv):
            console.warn(
                "--api-key shows in the process list; use --api-key-file or NINFER_API_KEY"
            )
        if not options.api_key:
            raise UsageError("the API key is empty")
        keys.append(options.api_key.encode("utf-8", "surrogateescape"))
    return tuple(keys)


def _add_server_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument("--host", default="127.0.0.1", help="address (default: 127.0.0.1)")
    group.add_argument(
        "--port", type=integer, default=8000, metavar="N", help="0 takes a free one (default: 8000)"
    )
    group.add_argument(
        "--http-server",
        choices=["waitress", "werkzeug"],
        default="waitress",
        help="werkzeug is for debugging only (default: waitress)",
    )
    for name, default, help_text in (
        ("max-concurrency", 1, "requests that run at a time, 1..8"),
        ("max-pending", 16, "requests that may wait; one more is refused"),
        ("pending-timeout-ms", 30000, "longest wait until a request runs, its media included"),
    ):
        _add_number(group, name, integer, default, "N", help_text)
    for name, default_s, help_text in (
        ("request-timeout-s", 0.0, "longest life of a request; 0 is unlimited"),
        ("heartbeat-s", 5.0, "quiet time after which a stream sends a comment"),
        ("shutdown-grace-s", 30.0, "time that running requests have after the first signal"),
        ("stall-timeout-s", 60.0, "time of one model step after which the server is unready"),
        ("stall-client-s", 60.0, "time after which a client that does not read is dropped"),
    ):
        _add_number(group, name, float, default_s, "S", help_text)
    group.add_argument(
        "--no-exit-on-failure", action="store_true", help="keep answering after the engine failed"
    )
    _add_number(group, "max-request-mib", integer, 64, "N", "longest request body, 1..1024 MiB")
    _add_number(
        group, "media-cache-mib", integer, 256, "N", "decoded images that are kept; 0 keeps none"
    )
    group.add_argument("--request-log", metavar="FILE", help="JSON lines, no prompts")
    _add_number(group, "stats-s", float, 10.0, "S", "time between throughput lines of the log")


def _add_security_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("security")
    group.add_argument("--api-key-file", metavar="FILE", help="one key a line, # comments")
    group.add_argument("--api-key", metavar="KEY", help="visible in the process list")
    group.add_argument("--no-auth", action="store_true", help="let everybody in")
    for name, metavar, help_text in (
        ("allowed-host", "NAME", "further name of this machine in Host headers; repeatable"),
        ("cors-origin", "URL", "page that may call from a browser, * is any; repeatable"),
        ("media-url-allow", "HOST", "fetch images from this host only; repeatable"),
    ):
        group.add_argument(
            f"--{name}",
            action=Repeated,
            type=text_argument,
            default=[],
            metavar=metavar,
            help=help_text,
        )
    group.add_argument("--metrics-public", action="store_true", help="/metrics without a key")
    group.add_argument("--media-urls", action="store_true", help="fetch images over http(s)")


def _add_default_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("defaults of requests")
    group.add_argument(
        "--model-alias",
        action=Repeated,
        type=text_argument,
        default=[],
        metavar="NAME",
        help="further name of the model; repeatable",
    )
    group.add_argument(
        "--default-max-tokens",
        type=integer,
        default=DEFAULT_MAX_NEW_TOKENS,
        metavar="N",
        help=f"output tokens (default: {DEFAULT_MAX_NEW_TOKENS}, or what the context leaves)",
    )
    group.add_argument(
        "--default-thinking-budget",
        type=integer,
        default=None,
        metavar="N",
        help="tokens the thinking may take (default: no limit)",
    )
    group.add_argument("--no-thinking", action="store_true", help="think only when asked to")
    group.add_argument(
        "--preserve-thinking", action="store_true", help="keep thinking of earlier turns"
    )
    group.add_argument("--strict-fields", action="store_true", help="refuse unknown fields")
    group.add_argument(
        "--keep-billing-header",
        action="store_true",
        help="keep a first system line that changes with each request",
    )
    add_sampling_values(group)
    group.add_argument("--greedy", action="store_true", help="always take the likeliest token")


def _add_number(
    group: argparse._ArgumentGroup,
    name: str,
    kind: Callable[[str], float],
    default: float,
    metavar: str,
    help_text: str,
) -> None:
    group.add_argument(
        f"--{name}",
        type=kind,
        default=default,
        metavar=metavar,
        help=f"{help_text} (default: {number_text(default)})",
    )
