"""Experts of synthetic models: tokens go to as many of them as independent choices would."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ninfer.host.device import HostDevice
from ninfer.models.package import MoeGeometry
from ninfer.models.qwen_hybrid.binding import BoundModel
from ninfer.models.qwen_hybrid.inventory import ObjectGroup, inventory
from ninfer.models.qwen_hybrid.synthetic import synthetic_model
from ninfer.program.synthetic_weights import SyntheticWeights
from tests.support.text_bench import TextBench

NUM_LAYERS = 8
COUNTS = (2, 4, 8, 16, 32, 64, 128)

MEAN_ERROR = 0.1
"""Relative, of the number of experts in the mean of all layers: some are a little more likely."""

LAYER_ERROR = 0.25
"""Of one layer, where two tokens choose eight experts or six."""

LARGEST_LOAD = 6
"""Times the tokens that an expert has in the mean; independent ones seldom reach 3."""


def expected(num_experts: int, chosen: int, num_tokens: int) -> float:
    """Experts that independent tokens choose together, if all are as likely."""
    return num_experts * (1 - (1 - chosen / num_experts) ** num_tokens)


def shortened(model_id: str, weights_id: str, mlp: MoeGeometry | None = None) -> BoundModel:
    """The first layers of a synthetic model, with other experts if wanted."""
    bound = synthetic_model(model_id, weights_id)
    geometry = replace(
        bound.geometry,
        layers=(bound.geometry.layers * NUM_LAYERS)[:NUM_LAYERS],
        mlp=mlp or bound.geometry.mlp,
    )
    objects = inventory(bound.package, geometry, weights_id, bound.addressable_tokens)
    texts = tuple(stored for stored in objects if stored.group is ObjectGroup.TEXT)
    return replace(bound, geometry=geometry, objects={ObjectGroup.TEXT: texts})


def layer_choices(bench: TextBench, tokens: Any, num_layers: int, chosen: int) -> Any:
    """Experts [T, k] of the last of so many layers, from its router's logits."""
    bench.reset()
    router = bench.prefill(tokens.tolist(), model=bench.truncated(num_layers)).router
    return np.argsort(-router, axis=-1, kind="stable")[:, :chosen]


def host_model() -> BoundModel:
    return shortened("tiny-moe", "groupwise-int", MoeGeometry(64, 4, 32, 32))


def card_model() -> BoundModel:
    return shortened("qwen3.6-35b-a3b", "groupwise-int")


def open_card() -> Any:
    from tests.support.cuda_bench import open_cuda_device

    return open_cuda_device()


@pytest.mark.parametrize(
    ("make_model", "open_device"),
    [
        pytest.param(host_model, HostDevice, id="host"),
        pytest.param(card_model, open_card, id="cuda", marks=pytest.mark.gpu),
    ],
)
def test_tokens_spread_over_the_experts_as_independent_ones(
    make_model: Callable[[], BoundModel], open_device: Callable[[], Any]
) -> None:
    bound = make_model()
    mlp = bound.geometry.mlp
    assert isinstance(mlp, MoeGeometry)
    tokens = np.random.default_rng(3).integers(0, bound.addressable_tokens, max(COUNTS))

    with TextBench(bound, SyntheticWeights(0), open_device=open_device) as bench:
        ranked = np.stack(
            [layer_choices(bench, tokens, n + 1, mlp.experts_per_token) for n in range(NUM_LAYERS)]
        )

    found = np.array([[len(np.unique(layer[:count])) for count in COUNTS] for layer in ranked])
    wanted = [expected(mlp.num_experts, mlp.experts_per_token, count) for count in COUNTS]
    usual = len(tokens) * mlp.experts_per_token / mlp.num_experts
    loads = [np.bincount(layer.reshape(-1), minlength=mlp.num_experts) for layer in ranked]
    np.testing.assert_allclose(found.mean(0), wanted, rtol=MEAN_ERROR)
    np.testing.assert_allclose(found, np.broadcast_to(wanted, found.shape), rtol=LAYER_ERROR)
    assert np.max(loads) <= LARGEST_LOAD * usual
