"""The learning rate and the phases follow the share of the time that is gone."""

import pytest

from tools.demo_model.schedule import Plan, rate


def test_rate_rises_holds_and_falls_to_zero() -> None:
    shares = [0.0, 0.01, 0.02, 0.2, 0.3, 0.65, 1.0]

    rates = [rate(share, 2.0) for share in shares]

    assert rates == pytest.approx([0.01, 1.0, 2.0, 2.0, 2.0, 1.0, 0.0])


def test_first_step_already_learns() -> None:
    assert rate(0.0, 1.0) > 0


def test_phases_fill_the_time_and_the_storage_formats_its_end() -> None:
    plan = Plan(100.0, trunk=0.7, storage=0.25)

    assert plan.trunk_seconds + plan.companion_seconds == pytest.approx(100.0)
    assert plan.trunk_seconds == pytest.approx(70.0)
    assert [plan.is_behind_storage(share) for share in (0, 0.74, 0.75, 1)] == [
        False,
        False,
        True,
        True,
    ]
