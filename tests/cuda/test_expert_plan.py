"""The plan of experts on the CPU, against NumPy's stable sort."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.kernels.cuda.expert_plan import make_plan, max_entries, plan_grid
from tests.support import warpgroup_simulator as simulator
from tests.support.mixer_simulator import lay_out
from tests.support.oracles.moe import expert_plan as oracle_plan

Choices = npt.NDArray[np.int32]


def plan_of(choices: Choices, num_experts: int, columns: int) -> tuple[Choices, Choices, Choices]:
    """Entries, order and places of a simulated launch."""
    entries = max_entries(choices.size, num_experts, columns)
    octets, at, views = lay_out(
        {
            "experts": choices,
            "plan": np.full((entries, 3), -1, np.int32),
            "order": np.full(choices.size, -1, np.int32),
            "places": np.full(choices.size, -1, np.int32),
        }
    )
    arguments: list[Any] = [np.uint64(at[name]) for name in ("experts", "plan", "order", "places")]
    arguments += [np.int32(extent) for extent in (choices.size, entries, columns)]
    grid = plan_grid(choices.size, num_experts)
    kernel = make_plan(num_experts)
    simulator.launch(octets, kernel, grid, arguments, keeps_back=True)
    plan, order, places = (views[name].view(np.int32) for name in ("plan", "order", "places"))
    return plan, order.reshape(-1), places.reshape(-1)


@pytest.mark.parametrize(
    ("num_experts", "num_choices", "columns", "blocks"),
    [
        (8, 70, 4, 1),
        pytest.param(8, 1000, 128, 1, marks=pytest.mark.slow),
        pytest.param(300, 1000, 32, 2, marks=pytest.mark.slow),
        pytest.param(600, 300, 32, 2, marks=pytest.mark.slow),
    ],
)
def test_every_choice_stands_in_its_own_order_in_entries_of_its_expert(
    num_experts: int, num_choices: int, columns: int, blocks: int
) -> None:
    rng = np.random.default_rng(num_choices)
    choices = np.minimum(
        rng.integers(0, num_experts, num_choices), num_experts - 1 - num_choices % 3
    )
    choices = choices.astype(np.int32)

    plan, order, places = plan_of(choices, num_experts, columns)

    assert plan_grid(num_choices, num_experts) == (blocks, 1, 1)
    entries, expected = oracle_plan(choices, num_experts, columns)
    np.testing.assert_array_equal(order, expected)
    np.testing.assert_array_equal(order[places], np.arange(num_choices))
    plan = plan.reshape(-1, 3)
    np.testing.assert_array_equal(plan[: len(entries)], entries)
    assert not plan[len(entries) :, 2].any()
