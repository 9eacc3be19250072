"""Acceptance point 10: metrics and request log parse, and their sums agree with the replies."""

import json
import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ninfer.config import EngineConfig
from ninfer.gateway.gateway_settings import GatewaySettings
from ninfer.gateway.request_facts import Endpoint
from ninfer.gateway.request_log import RequestLog, redacted
from ninfer.gateway.server import ServePlan, serve
from tests.support.gateway_clients import expect_within, read_until, reset, send_chat, wait_until
from tests.support.gateway_server import RemoteServer, Reply, running_server
from tests.support.scripted_engine import ScriptedEngine

ODD = "<tool_call>\n<function=unknown>\n</function>\n</tool_call>"
CALL = "<tool_call>\n<function=ping>\n</function>\n</tool_call>"
PING = {"type": "function", "function": {"name": "ping"}}
SECRET = "xylophone-prompt"
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(reply: Reply) -> Samples:
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found: Samples = {}
    for family in text_string_to_metric_families(reply.body.decode()):
        for sample in family.samples:
            found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return found


def value(found: Samples, name: str, **labels: str) -> float:
    return found.get((f"ninfer_{name}", tuple(sorted(labels.items()))), 0.0)


def pace(call: str) -> None:
    if call == "decode":
        time.sleep(0.002)


def visit(server: RemoteServer) -> dict[str, list[Reply]]:
    """A mixture of requests, by how they end."""
    off = {"enable_thinking": False}
    ok = [server.chat(SECRET, max_tokens=500, **off) for _ in range(2)]
    ok += [server.chat(SECRET, max_tokens=500, stream=True, **off)]
    length = [server.chat(SECRET, max_tokens=1, **off), server.chat(SECRET, max_tokens=0)]
    calls = [server.chat("call", max_tokens=500, tools=[PING], **off)]
    rejected = [server.chat(SECRET, temperature=9), server.chat(SECRET, model="x")]
    connection = server.connect()
    send_chat(connection, stream=True, max_tokens=3000, ignore_eos=True)
    read_until(connection, b"role")
    reset(connection)
    completion = [server.post("/v1/completions", {"prompt": SECRET, "max_tokens": 2})]
    return {"ok": ok, "length": length, "calls": calls, "rejected": rejected, "text": completion}


def usages(replies: dict[str, list[Reply]]) -> list[dict[str, int]]:
    blocking = [r for group in replies.values() for r in group if r.body.startswith(b"{")]
    return [reply.json["usage"] for reply in blocking if "usage" in reply.json]


def script(prompt: str) -> str:
    answers = {"call": CALL, "odd": ODD}
    found = re.search("user\n(call|odd)", prompt)
    return answers[found.group(1)] if found else f"said {SECRET}"


def test_metrics_agree_with_the_replies() -> None:
    with ScriptedEngine(script, pace=pace) as engine, running_server(engine) as server:
        replies = visit(server)
        wait_until(lambda: server.engine.status().outstanding == 0)
        found = samples(server.get("/metrics"))

    outcomes = {
        outcome: value(found, "requests_total", endpoint="chat_completions", outcome=outcome)
        for outcome in ("ok", "length", "tool_calls", "cancelled", "rejected", "error")
    }
    assert outcomes == {
        "ok": 3,
        "length": 2,
        "tool_calls": 1,
        "cancelled": 1,
        "rejected": 2,
        "error": 0,
    }
    assert value(found, "requests_total", endpoint="completions", outcome="length") == 1
    assert value(found, "rejections_total", code="invalid_value") == 1
    assert value(found, "rejections_total", code="model_not_found") == 1
    assert value(found, "tool_calls_total") == 1
    known = usages(replies)
    streamed = next(u for u in known if u["completion_tokens"] > 10)  # Same as the streamed one.
    assert value(found, "prompt_tokens_count") == 7
    assert value(found, "prompt_tokens_sum") == (
        sum(u["prompt_tokens"] for u in known) + streamed["prompt_tokens"]
    )
    assert value(found, "completion_tokens_sum") == (
        sum(u["completion_tokens"] for u in known) + streamed["completion_tokens"]
    )
    assert value(found, "ttft_seconds_count") == 7  # Six with output, and the one that left.
    assert value(found, "ready") == 1
    assert value(found, "requests_active") == 0


def test_refusals_before_the_application_are_counted_too() -> None:
    with ScriptedEngine(script) as engine, running_server(engine) as server:
        connection = server.connect()
        connection.sendall(
            b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n"
        )
        read_until(connection, b"request_too_large")
        connection.close()
        found = samples(server.get("/metrics"))

    assert value(found, "rejections_total", code="request_too_large") == 1
    assert value(found, "requests_total", endpoint="messages", outcome="rejected") == 1


def test_settings_that_leave_the_choice_are_reported_as_what_was_chosen(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    with (
        ScriptedEngine(script, max_context=64) as engine,
        RequestLog(str(file)) as log,
        running_server(engine, observers=(log,)) as server,
    ):
        reply = server.chat("hi", max_tokens=500)
        found = samples(server.get("/metrics"))
        model = server.get("/v1/models").json["data"][0]

    started = json.loads(file.read_text().splitlines()[0])
    room = 64 - reply.json["usage"]["prompt_tokens"]
    assert (started["event"], started["max_tokens"]) == ("request_start", room)
    (labels,) = (dict(labels) for name, labels in found if name == "ninfer_build_info")
    assert (labels["device"], labels["kv_dtype"]) == ("host", "f32")
    assert model["kv_dtype"] == "f32"


def test_series_of_closed_sets_are_there_from_the_start() -> None:
    with ScriptedEngine(script) as engine, running_server(engine) as server:
        found = server.get("/metrics").body.decode()

    assert 'ninfer_requests_total{endpoint="messages",outcome="error"} 0.0' in found
    assert 'ninfer_prefix_lookup_total{path="shared"} 0.0' in found
    assert 'ninfer_tool_call_fallback_total{reason="malformed"} 0.0' in found


def test_markup_that_stays_text_is_counted_by_reason() -> None:
    with ScriptedEngine(script) as engine, running_server(engine) as server:
        reply = server.chat("odd", max_tokens=500, tools=[PING], enable_thinking=False)
        found = samples(server.get("/metrics"))

    assert reply.json["choices"][0]["message"]["content"] == ODD
    assert value(found, "tool_call_fallback_total", reason="undeclared") == 1
    assert value(found, "tool_call_fallback_total", reason="malformed") == 0


def test_refusals_before_the_route_are_counted_too() -> None:
    body = b'{"messages":[{"role":"user","content":"hi"}]}'
    with ScriptedEngine(script) as engine, running_server(engine, api_keys=(b"k",)) as server:
        refused = [
            server.post("/v1/chat/completions", body),
            server.post("/v1/messages", body, {"x-api-key": "k", "Content-Type": "text/plain"}),
            server.post("/v1/chat/completions", body, {"x-api-key": "k", "Host": "evil"}),
        ]
        found = samples(server.get("/metrics", {"x-api-key": "k"}))

    assert [reply.status for reply in refused] == [401, 415, 403]
    assert value(found, "rejections_total", code="invalid_api_key") == 1
    assert value(found, "rejections_total", code="unsupported_media_type") == 1
    assert value(found, "rejections_total", code="host_not_allowed") == 1
    assert value(found, "requests_total", endpoint="messages", outcome="rejected") == 1


def test_scrape_of_an_unloaded_server_says_unready() -> None:
    with running_server(None, is_metrics_public=True) as server:
        found = samples(server.get("/metrics"))

    assert value(found, "ready") == 0


def test_scrape_is_quick() -> None:
    with ScriptedEngine() as engine, running_server(engine) as server:
        assert server.get("/metrics").status == 200

        def scrape() -> float:
            started = time.monotonic()
            for _ in range(10):
                server.get("/metrics")
            return (time.monotonic() - started) / 10

        expect_within(0.05, scrape)


def test_request_log_agrees_with_the_replies(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    lines: list[str] = []
    replies: dict[str, list[Reply]] = {}

    def client() -> None:
        wait_until(lambda: any(line.startswith("ready") for line in lines))
        replies.update(visit(RemoteServer(int(lines[0].rpartition(":")[2]))))
        wait_until(lambda: '"throughput"' in path.read_text(), what="statistics are logged")
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=client)
    thread.start()
    serve(
        ServePlan(
            GatewaySettings(port=0, request_log=str(path), stats_interval_s=0.05),
            EngineConfig(device="host", max_concurrency=2),
            lambda *_: ScriptedEngine(script, pace=pace),
            arguments=["serve", "--api-key", "hush", "m.ninfer"],
            announce=lines.append,
        )
    )
    thread.join()

    events = [json.loads(line) for line in path.read_text().splitlines()]
    check_log(events, replies)
    assert "hush" not in path.read_text()
    assert SECRET not in path.read_text()


def check_log(events: list[dict[str, Any]], replies: dict[str, list[Reply]]) -> None:
    names = [event["event"] for event in events]
    assert (names[0], names[-1]) == ("server_start", "server_stop")
    assert names.count("throughput") >= 1
    assert {event["schema"] for event in events} == {1}
    starts = [e["request_id"] for e in events if e["event"] == "request_start"]
    ends = [e for e in events if e["event"] in ("request_done", "request_error")]
    assert sorted(starts) == sorted(end["request_id"] for end in ends)
    assert len(set(starts)) == len(starts) == 8
    assert names.count("request_rejected") == 2
    by_id = {end["request_id"]: end for end in ends}
    for group in replies.values():
        for reply in group:
            if reply.body.startswith(b"{") and "usage" in reply.json:
                end = by_id[reply.headers["x-request-id"]]
                usage = reply.json["usage"]
                assert end["prompt_tokens"] == usage["prompt_tokens"]
                assert end["completion_tokens"] == usage["completion_tokens"]
                assert end["seed"] == reply.json["ninfer"]["seed"]
                assert end["cached_tokens"] + end["computed_tokens"] == usage["prompt_tokens"]
                assert (end["reuse_path"], end["protocol"]) == ("root", "openai")
                assert (end["draft_tokens"], end["draft_tokens_accepted"]) == (0, 0)
    assert [end["outcome"] for end in ends].count("cancelled") == 1


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["serve", "--api-key", "k", "m"], ["serve", "--api-key", "***", "m"]),
        (["--api-key=k"], ["--api-key=***"]),
        (["--api-key-file", "f"], ["--api-key-file", "f"]),
        (["--api-key"], ["--api-key"]),
    ],
)
def test_keys_are_redacted(arguments: list[str], shown: list[str]) -> None:
    assert redacted(arguments) == shown


def test_full_disk_stops_the_log_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with RequestLog("/dev/full") as log:
        log.note_rejected(Endpoint.CHAT, "req_1", "invalid_json")
        log.note_rejected(Endpoint.CHAT, "req_2", "invalid_json")

    assert [record.levelname for record in caplog.records] == ["WARNING"]
