"""Logits of decode rounds, bit for bit: with a graph and without, alone and in any company."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ninfer.config import KvDtype
from tests.support.cuda_bench import cuda_device
from tests.support.model_cases import CASES
from tests.support.program_driver import ProgramDriver
from tests.support.running_program import running_program

pytestmark = pytest.mark.gpu

Words = npt.NDArray[np.uint32]

NUM_ROWS = 8
NUM_ROUNDS = 6
LENGTHS = (2, 9, 30, 64, 65, 100, 128, 190)


@dataclass(frozen=True)
class Kind:
    """What is built: a golden model, how its weights are stored, and its cache."""

    case: str
    weights_id: str
    kv: KvDtype


KINDS = [
    pytest.param(Kind(case, weights_id, kv), id=f"{case}-{weights_id}-{kv.value}")
    for case in CASES
    for weights_id in ("bf16", "groupwise-int")
    for kv in (KvDtype.BF16, KvDtype.INT8_G64)
]


@contextmanager
def process_device() -> Iterator[Any]:
    """The card, which stays open."""
    yield cuda_device()


@contextmanager
def driven(kind: Kind, *, use_graphs: bool) -> Iterator[ProgramDriver]:
    with running_program(
        kind.case,
        weights_id=kind.weights_id,
        open_device=process_device,
        kv_dtype=kind.kv,
        use_graphs=use_graphs,
        max_concurrency=NUM_ROWS,
        max_context=256,
        kv_capacity=NUM_ROWS * 256,
    ) as driver:
        yield driver


def prompt(row: int) -> list[int]:
    return [(17 * row + 5 * place + place * place % 31) % 500 for place in range(LENGTHS[row])]


def logits_of(driver: ProgramDriver, rows: Sequence[int]) -> dict[int, Words]:
    """Bits of the logits of some rounds that these rows make together, by row."""
    lanes = [driver.admit(prompt(row)) for row in rows]
    for _ in range(NUM_ROUNDS):
        driver.round(*lanes)
    found = {
        row: np.stack(lane.logits).view(np.uint32) for row, lane in zip(rows, lanes, strict=True)
    }
    for lane in lanes:
        driver.end(lane)
    return found


def companies() -> list[list[int]]:
    """Eight rows down to one, in another order each time, so that rows change their places."""
    order = np.random.default_rng(5)
    return [[int(row) for row in order.permutation(NUM_ROWS)[:size]] for size in range(8, 0, -1)]


@pytest.mark.parametrize("kind", KINDS)
def test_logits_have_the_same_bits_with_a_graph_and_without_alone_and_in_company(
    kind: Kind,
) -> None:
    found: list[tuple[int, bool, int, Words]] = []
    alone: dict[int, Words] = {}
    for use_graphs in (False, True):
        with driven(kind, use_graphs=use_graphs) as driver:
            if not alone:
                alone = {row: logits_of(driver, [row])[row] for row in range(NUM_ROWS)}
            for rows in ([[row] for row in range(NUM_ROWS)] if use_graphs else []) + companies():
                for row, bits in logits_of(driver, rows).items():
                    found.append((len(rows), use_graphs, row, bits))

    wrong = [
        (size, use_graphs, row)
        for size, use_graphs, row, bits in found
        if not np.array_equal(bits, alone[row])
    ]
    assert wrong == []
    assert all(np.isfinite(bits.view(np.float32)).all() for bits in alone.values())
    # Rows of one prompt would compare equal whatever a kernel mixed up.
    assert len({bits.tobytes() for bits in alone.values()}) == NUM_ROWS
