"""Whatever happens in whatever order: one end for each request, and every ledger balances."""

import pytest

from tests.support.engine_simulation import Simulation

SEQUENCES_BY_DEFAULT = 400
SEQUENCES_IN_FULL = 20_000


@pytest.fixture(autouse=True)
def quiet_logs(caplog: pytest.LogCaptureFixture) -> None:
    """Injected faults are logged with their trace; thousands of them would fill the memory."""
    caplog.set_level("CRITICAL", logger="ninfer.engine")


def run_sequences(first: int, count: int) -> None:
    for seed in range(first, first + count):
        try:
            Simulation(seed).run()
        except Exception as error:
            raise AssertionError(f"sequence {seed} breaks an invariant: {error!r}") from error


def test_random_lives_of_an_engine_keep_every_invariant() -> None:
    run_sequences(0, SEQUENCES_BY_DEFAULT)


@pytest.mark.slow
def test_twenty_thousand_random_lives_keep_every_invariant() -> None:
    run_sequences(1_000_000, SEQUENCES_IN_FULL)
