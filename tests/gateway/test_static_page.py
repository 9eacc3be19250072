"""The chat page comes from the package, under its policy, and nothing else does."""

import pytest

from tests.support.gateway_server import RunningServer


def test_page_has_a_strict_policy(scripted_server: RunningServer) -> None:
    reply = scripted_server.get("/")

    assert reply.status == 200
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    policy = reply.headers["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


@pytest.mark.parametrize(
    ("name", "kind"), [("chat.js", "text/javascript"), ("style.css", "text/css")]
)
def test_files_have_their_types(scripted_server: RunningServer, name: str, kind: str) -> None:
    reply = scripted_server.get(f"/web/{name}")

    assert reply.status == 200
    assert reply.headers["content-type"].startswith(kind)


@pytest.mark.parametrize(
    "path",
    ["/web/", "/web/__init__.py", "/web/..%2fsetup.cfg", "/web/nothing.js", "/web/a/chat.js"],
)
def test_other_names_do_not_exist(scripted_server: RunningServer, path: str) -> None:
    assert scripted_server.get(path).status == 404
