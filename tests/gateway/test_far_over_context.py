"""A text far over the context is refused from its length, wherever it comes in."""

from collections.abc import Iterable, Iterator

import pytest

from ninfer.frontend.tokenizer import Tokenizer
from tests.support.gateway_server import RunningServer, running_server
from tests.support.scripted_engine import ScriptedEngine

FAR_OVER = "word " * 20_000
MESSAGES = [{"role": "user", "content": FAR_OVER}]
BODIES = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": FAR_OVER},
    "/v1/messages": {"model": "m", "max_tokens": 4, "messages": MESSAGES},
}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with ScriptedEngine(max_context=64) as engine, running_server(engine) as running:
        yield running


@pytest.mark.parametrize("path", BODIES)
def test_text_far_over_the_context_is_refused_without_being_encoded(
    server: RunningServer, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(self: Tokenizer, text: str, spans: Iterable[tuple[int, int, int]]) -> list[int]:
        raise AssertionError("encoded")

    monkeypatch.setattr(Tokenizer, "encode_spans", encode)

    reply = server.post(path, BODIES[path])

    message = reply.json["error"]["message"]
    assert (reply.status, reply.json["error"]["type"]) == (400, "invalid_request_error")
    assert message.startswith("prompt is too long: ")
    assert " tokens > 64 maximum" in message


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("words", [100, 20_000])
def test_refusal_has_the_same_members_however_it_was_found(
    server: RunningServer, path: str, words: int
) -> None:
    text = "word " * words
    asked = {"messages": [{"role": "user", "content": text}], "prompt": text}
    member = "prompt" if path == "/v1/completions" else "messages"

    reply = server.post(path, {member: asked[member]})

    assert reply.code == "context_length_exceeded"
    assert reply.json["error"]["param"] == "messages"


def test_counting_goes_on_beyond_the_context(server: RunningServer) -> None:
    counted = server.post("/v1/messages/count_tokens", {"model": "m", "messages": MESSAGES})
    listed = server.post("/v1/tokenize", {"messages": MESSAGES})

    assert counted.json["input_tokens"] == listed.json["count"] > 20_000
