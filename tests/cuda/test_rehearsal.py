"""What a start compiles and loads is all that requests will ever launch."""

import itertools
import random
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

import ninfer.kernels.cuda as table
from ninfer.compilation import declared_kernels
from ninfer.cuda import compile_ahead as module
from ninfer.cuda.compile_ahead import compile_ahead
from ninfer.cuda.module import KernelCache, default_folder
from ninfer.models.package import BF16_WEIGHTS, GROUPWISE_INT
from ninfer.models.qwen_hybrid.activations import activation_bytes
from ninfer.models.qwen_hybrid.text import TextColumns, TextModel
from ninfer.models.qwen_hybrid.weights import kinds_of_layers
from ninfer.ops.context import OpContext
from ninfer.program.prefill import Prefill
from ninfer.program.round_io import PrefillChunk
from ninfer.program.scoring_window import ScoringStaging, ScoringWindow
from ninfer.tensor import DType
from tests.cuda.test_schedule_launches import MODELS, PAGES, TARGETS, Card, declared, make_model

CHUNK = 4096
FEW = (*range(1, 34), 63, 64, 65, 127, 128, 129)
SAMPLE = (*FEW, *random.Random(3).sample(range(140, CHUNK + 1), 20))
EVERY = (*range(1, 140), *random.Random(5).sample(range(140, CHUNK + 1), 60))

Start = tuple[str, str, DType, bool]
STARTS: list[Start] = list(
    itertools.product(MODELS, (GROUPWISE_INT, BF16_WEIGHTS), (DType.BF16, DType.I8), (True, False))
)
"""Model, profile, elements of the cache, and whether there are warpgroups and clusters."""

UNLIKE = [STARTS[0], STARTS[3], STARTS[6], STARTS[9], STARTS[10], STARTS[13]]
"""Some that have every two settings in common at least once."""


def name_of(given: Start) -> str:
    model_id, weights_id, kv_dtype, has_warpgroups = given
    return f"{model_id}-{weights_id}-{kv_dtype.name}-{TARGETS[has_warpgroups]}"


class RehearsingCard(Card):
    """Notes what is launched, rehearsed or not."""

    def upload(self, *_: Any) -> None:
        """Nothing is there."""

    download = clear = synchronize = upload


class Inputs:
    """A round's block that has addresses only."""

    table_mirror = np.zeros((1, PAGES), np.int32)

    def __init__(self, card: Any) -> None:
        self._card = card

    def note_new_tables(self) -> None:
        """Nobody looks."""

    def prefill_inputs(self, count: int) -> Any:
        shapes = ((count,), (count,), (3, count), (count,), (1,), (1,))
        columns = TextColumns(*(self._card.take(shape, DType.I32) for shape in shapes))
        return SimpleNamespace(columns=columns)

    def upload_prefill(self, stream: Any, chunk: PrefillChunk) -> Any:
        return self.prefill_inputs(len(chunk.tokens))


def start(given: Start) -> tuple[Any, OpContext, TextModel, Any]:
    """Card, context, model and workspace of a start."""
    model_id, weights_id, kv_dtype, has_warpgroups = given
    card: Any = RehearsingCard(has_warpgroups=has_warpgroups)
    ctx = OpContext(card, card, table)
    model = make_model(ctx, card, model_id, weights_id, kv_dtype)
    nbytes = activation_bytes(ctx, model.geometry, model.weights, CHUNK)
    return card, ctx, model, card.take((nbytes,), DType.U8)


def check_declared(given: Start, rehearsed: set[str]) -> None:
    """Only what a model declares can be compiled ahead, by its name."""
    model_id, _, _, has_warpgroups = given
    assert rehearsed <= declared(model_id, TARGETS[has_warpgroups])


def check_chunks(given: Start, counts: Iterable[int]) -> set[str]:
    """Compare chunks with what is rehearsed, which is returned."""
    card, ctx, model, workspace = start(given)
    io: Any = Inputs(card)
    prefill = Prefill(ctx, model, card.take((8, 8), DType.I32), io, workspace)
    prefill.enqueue_every(CHUNK)
    rehearsed = set(card.names)

    for count in counts:
        card.names.clear()
        prefill._enqueue(count, range(len(model.weights.layers)))
        assert card.names <= rehearsed, count
    return rehearsed


def check_windows(given: Start, counts: Iterable[int]) -> set[str]:
    """The same of windows that are scored."""
    card, ctx, model, workspace = start(given)
    io: Any = Inputs(card)
    state: Any = SimpleNamespace(clear=card.clear)
    staging = ScoringStaging.take(card, card, CHUNK, model.geometry.vocab_rows)
    window = ScoringWindow(
        *(ctx, model, state, io, workspace, staging),
        addressable=100,
        max_context=CHUNK,
        chunk_tokens=CHUNK,
    )
    window.enqueue_every()
    rehearsed = set(card.names)

    for count in counts:
        card.names.clear()
        window._run_chunk(range(count), 0, count)
        assert card.names <= rehearsed, count
    return rehearsed


@pytest.mark.parametrize("given", UNLIKE, ids=name_of)
def test_no_chunk_launches_what_was_not_rehearsed(given: Start) -> None:
    check_declared(given, check_chunks(given, SAMPLE))


@pytest.mark.slow
@pytest.mark.parametrize("given", STARTS, ids=name_of)
def test_no_chunk_of_any_start_launches_what_was_not_rehearsed(given: Start) -> None:
    check_declared(given, check_chunks(given, EVERY))


def test_no_window_launches_what_was_not_rehearsed() -> None:
    check_declared(STARTS[0], check_windows(STARTS[0], range(1, 66)))


@pytest.mark.slow
@pytest.mark.parametrize("given", STARTS, ids=name_of)
def test_no_window_of_any_start_launches_what_was_not_rehearsed(given: Start) -> None:
    check_declared(given, check_windows(given, EVERY))


@pytest.mark.parametrize("model_id", MODELS)
def test_a_kind_of_layers_is_rehearsed_once(model_id: str) -> None:
    card: Any = RehearsingCard(has_warpgroups=True)
    ctx = OpContext(card, card, table)

    kinds = kinds_of_layers(make_model(ctx, card, model_id).weights)

    assert kinds == (0, 3)  # three of Gated DeltaNet, then one of attention


SMALL = ["count_tokens", "swiglu"]


def test_another_process_fills_the_cache_and_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    told = list[tuple[int, int]]()

    compile_ahead(
        "tiny-dense", [*SMALL, "unheard_of"], "sm_90", lambda *numbers: told.append(numbers)
    )

    cache = KernelCache(default_folder())
    held = [k.name for k in declared_kernels(["tiny-dense"]) if cache.holds(k, "sm_90")]
    assert held == SMALL
    assert told == [(1, 2), (2, 2)]


@pytest.mark.parametrize("program", ["ninfer.no_such_module", "ninfer.version"])
def test_a_process_that_cannot_help_is_no_failure(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PROGRAM", program)

    compile_ahead("tiny-dense", SMALL * 40_000, "sm_90")
