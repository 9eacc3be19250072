"""A token choice by a cluster on the CPU: small clusters, distributions that are hard to cut."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.kernels.cuda.choice_cluster import make_choose
from ninfer.kernels.cuda.choice_room import ROOM, Room
from ninfer.ops.sampling import mask_words
from tests.ops.test_sampling_cuts import far_rows
from tests.support.cluster_threads import launch
from tests.support.mixer_simulator import lay_out
from tests.support.oracles.sampling import Settings
from tests.support.sampling_oracle import oracle
from tests.support.sampling_rows import Row

SMALL = Room(blocks=2, threads=64, ids=512)
FOUR = Room(blocks=4, threads=64, ids=512)


def choose(
    rows: list[Row], addressable: int, room: Room = SMALL, is_watched: bool = False
) -> list[int]:
    """Tokens of rows by the kernel of one shape."""
    width = len(rows[0].logits)
    bits = np.ones((len(rows), mask_words(width) * 32), bool)
    bits[:, :width] = [row.permit() for row in rows]

    def of_rows(name: str, dtype: Any = np.float32) -> Any:
        return np.array([getattr(row.settings, name) for row in rows], dtype)

    octets, at, views = lay_out(
        {
            "logits": np.array([row.logits for row in rows]),
            "temperatures": of_rows("temperature"),
            "top_ps": of_rows("top_p"),
            "min_ps": of_rows("min_p"),
            "presences": of_rows("presence"),
            "frequencies": of_rows("frequency"),
            "top_ks": of_rows("top_k", np.int32),
            "seeds": np.array([(row.seed & 0xFFFFFFFF, row.seed >> 32) for row in rows], np.uint32),
            "positions": np.array([row.position for row in rows], np.int32),
            "counts": np.array([row.count() for row in rows]),
            "slots": np.arange(len(rows), dtype=np.int32),
            "mask": np.packbits(bits, axis=1, bitorder="little").view(np.uint32),
            "tokens": np.full(len(rows), -7, np.int32),
        }
    )
    tokens = at.pop("tokens")
    extents = (width, mask_words(width), addressable)
    args: list[Any] = [np.uint64(address) for address in (*at.values(), 0)]
    args += [*(np.int32(extent) for extent in extents), np.uint64(tokens)]
    launch(octets, make_choose(room), (room.blocks, len(rows), 1), args, is_watched)
    return [int(token) for token in views["tokens"]]


def row_of(logits: Any, seed: int = 1, **settings: Any) -> Row:
    rng = np.random.default_rng(seed)
    width = len(logits)
    return Row(
        np.asarray(logits, np.float32),
        Settings(**settings),
        seed=int(rng.integers(0, 2**63)),
        position=int(rng.integers(0, 2**31)),
        counts=rng.integers(0, 3, width).astype(np.int32),
        permitted=rng.random(width) < 0.9,
    )


def normal(width: int, scale: float, seed: int = 0) -> Any:
    return (np.random.default_rng(seed).standard_normal(width) * scale).astype(np.float32)


CASES: list[tuple[Any, dict[str, Any]]] = [
    (normal(700, 3.0), {"temperature": 0.0, "presence": 0.5}),
    (normal(700, 3.0), {}),
    (normal(700, 3.0), {"top_k": 10, "top_p": 0.8, "presence": 1.5}),
    (normal(700, 3.0), {"top_k": 1}),
    (normal(700, 3.0), {"top_k": 200}),
    (normal(700, 3.0), {"top_k": 2000}),
    (normal(700, 3.0), {"top_k": 300, "top_p": 0.9, "frequency": 0.3}),
    (normal(700, 3.0), {"top_p": 0.9, "temperature": 1.5, "min_p": 0.01}),
    (normal(700, 0.01), {"top_p": 0.5}),
    (normal(700, 0.01), {"top_k": 350, "top_p": 0.5}),
    (np.zeros(700), {"top_p": 0.5003}),
    (np.zeros(700), {"top_k": 333, "top_p": 0.7003}),
    (np.arange(700) % 2, {"top_p": 0.9}),
    (np.arange(700) % 2, {"top_k": 500}),
    (np.arange(700) == 77, {"top_p": 0.3, "temperature": 1e30}),
    (np.arange(700) * 30.0, {"top_k": 400}),
    (np.where(np.arange(700) == 3, 90.0, normal(700, 1.0)), {"top_p": 0.3}),
]
SLOW = (4, 6, 8, 9, 11, 13, 14, 16)
"""Cases that take several tallies."""


@pytest.mark.parametrize(
    "case",
    [pytest.param(i, marks=pytest.mark.slow if i in SLOW else ()) for i in range(len(CASES))],
)
def test_a_cluster_chooses_what_a_full_sort_does(case: int) -> None:
    logits, settings = CASES[case]
    row = row_of(logits, case, **settings)
    expected, is_clear = oracle(row, 690)

    got = choose([row], 690)

    assert is_clear
    assert got == [expected]


@pytest.mark.parametrize(
    "settings",
    [Settings(top_k=300), pytest.param(Settings(top_p=0.9975), marks=pytest.mark.slow)],
    ids=str,
)
def test_a_cut_far_below_the_best_one_is_found(settings: Settings) -> None:
    rows = far_rows(settings, 700)
    answers = [oracle(row, 700) for row in rows]
    kept = next(i for i, (token, ok) in enumerate(answers) if ok and token != 7)
    cut = next(i for i, (token, ok) in enumerate(answers) if ok and token == 7)

    got = choose([rows[kept], rows[cut]], 700)

    assert got == [answers[kept][0], 7]


def test_tables_that_are_no_multiple_of_four_are_read_word_by_word() -> None:
    row = row_of(normal(333, 2.0), 1, top_p=0.8, presence=0.5)
    expected, is_clear = oracle(row, 331)

    got = choose([row], 331, FOUR)

    assert is_clear
    assert got == [expected]


def test_rows_without_candidates_take_the_lowest_permitted_id() -> None:
    permitted = np.isin(np.arange(100), (41, 77))
    logits = np.full(100, -np.inf, np.float32)
    settings = Settings(top_k=3)

    got = choose(
        [
            Row(logits, settings, permitted=permitted),
            Row(logits, settings, permitted=np.zeros(100, bool)),
        ],
        100,
    )

    assert got == [41, -1]


@pytest.mark.parametrize(
    "settings", [{"top_k": 3}, pytest.param({"top_p": 0.4}, marks=pytest.mark.slow)], ids=str
)
def test_threads_of_a_cluster_are_ordered(settings: dict[str, Any]) -> None:
    row = row_of(normal(60, 1.0), 1, **settings)  # most threads have no value

    got = choose([row], 60, is_watched=True)

    assert got == [oracle(row, 60)[0]]


@pytest.mark.slow
@pytest.mark.parametrize("case", range(len(CASES)))
def test_threads_of_a_cluster_are_ordered_wherever_a_cut_falls(case: int) -> None:
    logits, settings = CASES[case]
    row = row_of(logits, case, **settings)

    got = choose([row], 690, is_watched=True)

    assert got == [oracle(row, 690)[0]]


def test_values_that_are_not_numbers_are_never_chosen() -> None:
    logits = np.full(40, np.nan, np.float32)
    logits[5], logits[7], logits[9] = -np.inf, -50.0, -80.0

    got = choose([Row(logits, Settings(top_p=0.9)), Row(logits, Settings(temperature=0.0))], 40)

    assert got == [7, 7]


def test_shared_memory_of_a_block_is_what_the_device_has() -> None:
    assert ROOM.nbytes + 2048 <= 227 << 10
    assert ROOM.blocks * ROOM.ids >= 1 << 18
