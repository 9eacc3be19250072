"""Options of ``ninfer serve``, without loading anything."""

import argparse
import io
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ninfer.cli import main as cli
from ninfer.cli import serve as serve_command
from ninfer.cli.console import Console
from ninfer.cli.exit_codes import ExitCode, UsageError
from ninfer.cli.operator_log import operator_log
from ninfer.cli.options import apply_environment, engine_config
from ninfer.cli.serve import gateway_settings
from ninfer.errors import ConfigurationError
from ninfer.gateway.gateway_settings import GatewaySettings
from ninfer.gateway.server import ServePlan
from tests.cli.command_line import run


def parsed(*arguments: str) -> argparse.Namespace:
    return cli.build_parser().parse_args(["serve", "m.ninfer", *arguments])


def settings(*arguments: str) -> tuple[GatewaySettings, str]:
    """Settings of a command line, and what it warned of."""
    options = parsed(*arguments)
    written = io.StringIO()
    return gateway_settings(options, Console(options, stream=written)), written.getvalue()


def resolver(address: str) -> Callable[..., list[tuple[object, ...]]]:
    """A name service that knows one address."""

    def resolved(host: str, port: int, **options: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    return resolved


def test_defaults_are_those_of_the_contract() -> None:
    chosen, warnings = settings()

    assert (chosen.host, chosen.max_request_bytes) == ("127.0.0.1", 64 << 20)
    assert (chosen.pending_timeout_s, chosen.request_timeout_s) == (30.0, None)
    assert (chosen.heartbeat_s, chosen.shutdown_grace_s) == (5.0, 30.0)
    assert (chosen.stall_timeout_s, chosen.stall_client_s) == (60.0, 60.0)
    assert chosen.exits_on_failure
    assert warnings == ""


def test_engine_waits_with_as_many_as_it_is_told() -> None:
    options = parsed("--max-concurrency", "3", "--max-pending", "5")

    config = engine_config(options, max_concurrency=options.max_concurrency, max_pending=5)

    assert (config.max_concurrency, config.max_pending, config.max_context) == (3, 5, 8192)


@pytest.mark.parametrize(("arguments", "nbytes"), [((), 1 << 30), (("--kv-headroom-mib", "0"), 0)])
def test_the_device_keeps_as_much_memory_free_as_it_is_told(
    arguments: tuple[str, ...], nbytes: int
) -> None:
    assert engine_config(parsed(*arguments)).kv_headroom_bytes == nbytes


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "::", "0", "0x0", "000.0.0.0", "0.0", "::ffff:0.0.0.0", "0:0:0:0:0:0:0:0", "::0"],
)
def test_open_address_without_a_key_is_refused(host: str) -> None:
    with pytest.raises(UsageError, match="lets everybody in"):
        settings("--host", host)


def test_name_of_every_address_is_refused_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolver("0.0.0.0"))

    with pytest.raises(UsageError, match=r"--host anywhere \(0\.0\.0\.0\) without a key"):
        settings("--host", "anywhere")


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1", "0x7f000001", "::1", "0::1", "::ffff:127.0.0.1", "localhost"]
)
def test_address_of_this_machine_alone_needs_no_key(host: str) -> None:
    chosen, warnings = settings("--host", host)

    assert (chosen.is_loopback, warnings) == (True, "")


def test_name_that_only_begins_like_loopback_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolver("192.0.2.7"))

    chosen, warnings = settings("--host", "127.example.org")

    assert (chosen.is_loopback, chosen.bound_host) == (False, "192.0.2.7")
    assert "everybody who reaches 127.example.org (192.0.2.7) may use this server" in warnings


@pytest.mark.parametrize("further", [[], ["--no-auth"], ["--api-key", "k"]])
def test_empty_host_is_refused(further: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="host is empty"):
        settings("--host", "", *further)


@pytest.mark.parametrize("arguments", [["--host", "0.0.0.0", "--no-auth"], ["--host", "192.0.2.7"]])
def test_reachable_server_without_a_key_warns(arguments: list[str]) -> None:
    assert "everybody who reaches" in settings(*arguments)[1]


@pytest.mark.parametrize("option", ["--api-key", "--api-key-file"])
def test_key_that_nobody_would_be_asked_for_is_refused(option: str) -> None:
    with pytest.raises(UsageError, match=f"{option} does not go with --no-auth"):
        settings("--no-auth", option, "k")


def test_hosts_of_images_that_are_not_fetched_are_refused() -> None:
    with pytest.raises(UsageError, match="--media-url-allow goes with --media-urls"):
        settings("--media-url-allow", "example.org")


def test_sampling_values_that_greedy_overrides_are_refused() -> None:
    with pytest.raises(UsageError, match="--temperature does nothing beside --greedy"):
        settings("--greedy", "--temperature", "0.5")

    assert settings("--greedy", "--temperature", "0")[0].is_greedy


def test_folder_for_a_log_is_not_taken_for_a_model(tmp_path: Path) -> None:
    outcome = run("serve", "--port", "0", "--request-log", tmp_path)

    assert (outcome.code, outcome.out) == (2, "")
    assert f"error: {tmp_path}: Is a directory\n" in outcome.err


def test_key_file_has_a_key_a_line(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes("# mine\nfirst\n\n  ключ \n".encode())

    chosen, _ = settings("--api-key-file", str(file), "--host", "0.0.0.0")

    assert chosen.api_keys == (b"first", "ключ".encode())


def test_key_file_without_a_key_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# nothing\n")

    with pytest.raises(UsageError, match="holds no key"):
        settings("--api-key-file", str(file))


def test_key_comes_from_the_environment_without_a_warning() -> None:
    parser = cli.build_parser()
    action = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    apply_environment(action.choices["serve"], {"NINFER_API_KEY": "k"})
    options = parser.parse_args(["serve", "m"])
    written = io.StringIO()

    chosen = gateway_settings(options, Console(options, stream=written))

    assert chosen.api_keys == (b"k",)
    assert written.getvalue() == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--port", "65536"],
        ["--max-request-mib", "0"],
        ["--max-request-mib", "1025"],
        ["--media-cache-mib", "-1"],
        ["--heartbeat-s", "0"],
        ["--default-thinking-budget", "-1"],
    ],
)
def test_values_out_of_range_are_refused(arguments: list[str]) -> None:
    with pytest.raises(ConfigurationError):
        settings(*arguments)


def test_refused_value_is_shown_with_its_digits() -> None:
    with pytest.raises(ConfigurationError, match=r"port is 100000000; allowed is 0\.\.65535"):
        settings("--port", "100000000")


def test_every_option_of_every_command_has_a_help_text() -> None:
    parser = cli.build_parser()
    commands = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))

    silent = [
        (name, action.option_strings)
        for name, command in commands.choices.items()
        for action in command._actions
        if not action.help
    ]

    assert silent == []


@pytest.mark.parametrize("server", ["waitress", "werkzeug"])
def test_port_clash_names_the_address_before_the_model_is_opened(server: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        outcome = run("serve", "does-not-exist.ninfer", "--port", port, "--http-server", server)

    assert outcome.code == ExitCode.FAILED
    assert outcome.err == f"error: http://127.0.0.1:{port}: Address already in use\n"


def test_address_of_another_machine_is_named() -> None:
    outcome = run("serve", "does-not-exist.ninfer", "--host", "192.0.2.1", "--port", 0)

    assert outcome.code == ExitCode.FAILED
    assert "error: http://192.0.2.1:0: Cannot assign requested address\n" in outcome.err


@pytest.mark.parametrize("host", ["a..b", "x" * 70])
def test_host_without_an_address_is_a_wrong_option(host: str) -> None:
    outcome = run("serve", "does-not-exist.ninfer", "--host", host, "--port", 0)

    assert outcome.code == ExitCode.USAGE
    assert f"error: host is '{host[:64]}': " in outcome.err


def test_missing_model_ends_with_2() -> None:
    assert cli.main(["serve", "does-not-exist.ninfer", "--port", "0"]) is ExitCode.USAGE


def test_operator_lines_are_one_line_each_and_escaped() -> None:
    written = io.StringIO()

    with operator_log(written):
        logging.getLogger("ninfer.gateway.x").warning("a %s", "b\nforged\x1b[0m")
    logging.getLogger("ninfer.gateway.x").warning("after")

    line = written.getvalue()
    assert line.count("\n") == 1
    assert line.endswith(" WARNING a b\\nforged\\x1b[0m\n")


@pytest.mark.parametrize(
    ("name", "line"),
    [("progress", "loading: 3 B of 4 B (75%)"), ("compiling", "compiling: 3 of 4 kernels (75%)")],
)
def test_how_far_a_start_is_goes_to_the_server_and_to_the_terminal(
    name: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = parsed()
    clock, written = iter(range(0, 1000, 60)), io.StringIO()
    console = Console(options, stream=written, clock=lambda: float(next(clock)))
    plans, told = list[ServePlan](), list[tuple[int, int]]()

    def load(model: str, **given: Any) -> None:
        given[name](2, 4)
        given[name](3, 4)

    monkeypatch.setattr(serve_command, "serve", plans.append)
    monkeypatch.setattr(serve_command, "Engine", load)
    serve_command.run(options, console)
    plans[0].load(*[lambda *numbers: told.append(numbers)] * 2)

    assert told == [(2, 4), (3, 4)]
    assert written.getvalue().startswith(line)
