"""What sessions count and log, and the ids of calls."""

import logging

import pytest

from ninfer.frontend.tool_calls import CallIds
from tests.support.call_corpus import TOOLS
from tests.support.frontends import (
    ids_of,
    open_session,
    run_groups,
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<tool_call>\n<function=nope>\n</function>\n</tool_call>", "undeclared"),
        ("<tool_call>\nno", "malformed"),
        ("<tool_call>\n<function=ping>\n</function>", "repaired"),
        ("<tool_call>\n<function=write_file>\n<parameter=body>\nx", "incomplete"),
        (
            "<tool_call>\n<function=ping>\n<parameter=a>\n1\n</parameter>\n<parameter=a>\n2\n"
            "</parameter>\n</function>\n</tool_call>",
            "duplicates",
        ),
    ],
)
def test_what_the_call_parser_met_is_counted_and_logged_without_its_text(
    text: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    session = open_session(tools=TOOLS)

    with caplog.at_level(logging.WARNING):
        run_groups(session, [ids_of(text + "<|im_end|>")])

    assert getattr(session.diagnostics, reason) == 1
    assert [record.getMessage() for record in caplog.records] == [f"tool call markup: {reason}"]


def test_a_preview_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    session = open_session(tools=TOOLS)

    with caplog.at_level(logging.WARNING):
        session.preview(ids_of("<tool_call>no"), is_forced=False, is_budget_end=True)

    assert not caplog.records


def test_call_ids_have_the_protocols_form_and_never_repeat() -> None:
    ids = [CallIds(nonce).of(index) for nonce in (b"a", b"b") for index in range(50)]

    assert len(set(ids)) == 100
    assert all(call_id.startswith("call_") and len(call_id) == 29 for call_id in ids)
    assert CallIds(b"a", "toolu_").of(0).startswith("toolu_")
