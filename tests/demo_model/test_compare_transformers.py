"""Differences between ninfer and transformers are found, weighed and reported."""

import pytest

pytest.importorskip("torch")

import torch

from tests.support.demo_model import stand_in_demo
from tools.demo_model import compare_transformers
from tools.demo_model.compare_transformers import Difference, differences, main


def test_places_where_another_token_is_likelier_are_found_with_their_gap() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 1.0], [0.0, 1.0, 1.00001]])

    found = differences(7, logits, [1, 2, 1])

    assert [(one.conversation, one.place, one.said, one.preferred) for one in found] == [
        (7, 1, 2, 0),
        (7, 2, 1, 2),
    ]
    assert [one.gap for one in found] == pytest.approx([2.0, 1e-5], abs=1e-6)
    assert [one.is_tie for one in found] == [False, True]


@pytest.mark.parametrize(("gap", "code"), [(1e-6, 0), (0.5, 1)])
def test_only_ties_leave_the_exit_code_0(
    gap: float, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = Difference(3, 5, 10, 11, gap)
    monkeypatch.setattr(compare_transformers, "compare", lambda *_: ([one], 0.25, 40))

    assert main(["some.ninfer", "--count", "8"]) == code

    printed = capsys.readouterr().out
    assert "conversation 3, token 5: ninfer 10, transformers 11" in printed
    assert f"{8 - code} of 8 conversations agree in all of 40 tokens" in printed


@pytest.mark.slow
def test_an_artifact_says_what_transformers_says() -> None:
    pytest.importorskip("transformers")

    found, worst, tokens = compare_transformers.compare(stand_in_demo(), 3, 1, 12)

    assert [one for one in found if not one.is_tie] == []
    assert worst < 1e-3
    assert tokens > 0
