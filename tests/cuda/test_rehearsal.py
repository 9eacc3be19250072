"""What a start compiles and loads is all that requests will ever launch."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

import ninfer.kernels.cuda as table
from ninfer.compilation import declared_kernels
from ninfer.cuda import compile_ahead as module
from ninfer.cuda.compile_ahead import compile_ahead
from ninfer.cuda.module import KernelCache, default_folder
from ninfer.models.qwen_hybrid.activations import activation_bytes
from ninfer.models.qwen_hybrid.text import TextColumns
from ninfer.models.qwen_hybrid.weights import kinds_of_layers
from ninfer.ops.context import OpContext
from ninfer.program.prefill import Prefill
from ninfer.tensor import DType
from tests.cuda.test_schedule_launches import MODELS, Card, make_model

CHUNK = 4096


class RehearsingCard(Card):
    """Notes what is launched, rehearsed or not."""

    def rehearse(self, sequence: Any, ahead: Any = None) -> None:
        sequence()


@pytest.mark.parametrize("model_id", MODELS)
def test_no_chunk_launches_what_was_not_rehearsed(model_id: str) -> None:
    card: Any = RehearsingCard(has_warpgroups=True)
    ctx = OpContext(card, card, table)
    model = make_model(ctx, card, model_id)

    def inputs(count: int) -> Any:
        shapes = ((count,), (count,), (3, count), (count,), (1,), (1,))
        return SimpleNamespace(
            columns=TextColumns(*(card.take(shape, DType.I32) for shape in shapes))
        )

    io: Any = SimpleNamespace(prefill_inputs=inputs)
    workspace = card.take((activation_bytes(ctx, model.geometry, model.weights, CHUNK),), DType.U8)
    prefill = Prefill(ctx, model, card.take((8, 8), DType.I32), io, workspace)
    prefill.prepare(CHUNK, use_graphs=False)
    rehearsed = set(card.names)

    for count in (*range(1, 140), *random.Random(3).sample(range(140, CHUNK + 1), 60)):
        card.names.clear()
        prefill._enqueue(count, range(len(model.weights.layers)))
        assert card.names <= rehearsed, count


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
