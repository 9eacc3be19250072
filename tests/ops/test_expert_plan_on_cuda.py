"""The plan of experts on a CUDA device, against NumPy's stable sort."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ninfer.tensor import DType
from tests.support.cuda_bench import CudaBench
from tests.support.oracles.moe import expert_plan as oracle_plan

pytestmark = pytest.mark.gpu


def plan_of(bench: CudaBench, choices: npt.NDArray[np.int32], experts: int, columns: int) -> Any:
    """Entries, the counts of unused ones, order, and places."""
    from ninfer.kernels.cuda.expert_plan import make_plan, max_entries, plan_grid

    entries = max_entries(choices.size, experts, columns)
    plan = bench.out((entries, 3), DType.I32)
    order, places = (bench.out(choices.shape, DType.I32) for _ in range(2))
    arguments = (bench.put(choices).address, plan.address, order.address, places.address)
    extents = (choices.size, entries, columns)
    grid = plan_grid(choices.size, experts)
    bench.stream.launch(make_plan(experts), grid, (*arguments, *extents))
    bench.check()
    found = bench.read_tensor(plan)
    used = int(np.count_nonzero(found[:, 2]))
    return found[:used], found[used:, 2], bench.read_tensor(order), bench.read_tensor(places)


def random_choices(rng: Any, count: int, experts: int) -> npt.NDArray[np.int32]:
    """Choices of which some are far more frequent than others."""
    found: npt.NDArray[np.int32] = (experts * rng.random(count) ** rng.integers(1, 5)).astype("i4")
    return found


@pytest.mark.parametrize("experts", [16, 256, 1000])
@pytest.mark.parametrize("columns", [32, 128])
def test_plan_is_a_stable_sort_and_its_entries(experts: int, columns: int) -> None:
    rng = np.random.default_rng(experts + columns)
    counts = [1, 72, 255, 256, 257, 1023, 1024, 1025, 5000, 32768, 40001]
    counts += [int(count) for count in rng.integers(1, 20000, 6)]
    with CudaBench() as bench:
        for count in counts:
            choices = random_choices(rng, count, experts)

            entries, unused, order, places = plan_of(bench, choices, experts, columns)

            expected = oracle_plan(choices, experts, columns)
            np.testing.assert_array_equal(entries, expected[0], err_msg=f"{count} choices")
            np.testing.assert_array_equal(order, expected[1], err_msg=f"{count} choices")
            np.testing.assert_array_equal(order[places], np.arange(count))
            assert not unused.any()


@pytest.mark.parametrize("count", [1024, 32768])
def test_choices_of_one_expert_keep_their_order(count: int) -> None:
    choices = np.full(count, 255, np.int32)

    with CudaBench() as bench:
        entries, unused, order, _ = plan_of(bench, choices, 256, 128)

    np.testing.assert_array_equal(order, np.arange(count))
    np.testing.assert_array_equal(entries[:, 0], 255)
    assert entries[:, 2].sum() == count
    assert not unused.any()
