"""The trunk in torch computes what an independent implementation does."""

import pytest

pytest.importorskip("torch")

import torch

from tests.demo_model.torch_models import golden_models
from tests.support.golden import load
from tools.demo_model.gated_delta import (
    CHUNK,
    RESET,
    agrees,
    chunked_delta_rule,
    recurrent_delta_rule,
)
from tools.demo_model.geometry import small
from tools.demo_model.model import Trunk


@pytest.mark.parametrize("case", ["tiny-dense", "real-head-dense"])
def test_logits_are_the_golden_ones(case: str) -> None:
    trunk, _, _ = golden_models(case)
    golden = load(case)
    for index in (1, 2, 3):
        tokens = torch.from_numpy(golden[f"prompt_ids.{index}"].copy())
        count = len(tokens)
        padded = torch.nn.functional.pad(tokens, (0, -count % CHUNK))[None]

        hidden, _ = trunk(padded, torch.arange(padded.shape[1])[None])

        logits = trunk.logits(hidden[0, :count])
        wanted = torch.from_numpy(golden[f"logits.{index}"].copy())
        assert (logits - wanted).abs().max() < 1e-4 * wanted.abs().max()


def test_chunked_rule_has_the_values_and_gradients_of_the_recurrence() -> None:
    torch.manual_seed(0)
    tokens, dim = 2 * CHUNK, 16
    q, k = (
        torch.nn.functional.normalize(torch.randn(1, tokens, 2, dim).double(), dim=-1)
        for _ in range(2)
    )
    # Equal keys written with full strength are the hard case of the chunked form.
    k[:, 10:40] = k[:, 10:11]
    v = torch.randn(1, tokens, 4, 8).double()
    g = -torch.rand(1, tokens, 4).double()
    g[:, 33] = RESET
    beta = torch.rand(1, tokens, 4).double()
    beta[:, 10:40] = 0.999
    inputs = [x.requires_grad_() for x in (q, k, v, g, beta)]
    weight = torch.randn_like(v)

    wanted = recurrent_delta_rule(*inputs)
    found = chunked_delta_rule(*inputs)

    assert torch.allclose(found, wanted, atol=1e-12)
    for one, other in zip(
        torch.autograd.grad(found, inputs, weight),
        torch.autograd.grad(wanted, inputs, weight),
        strict=True,
    ):
        assert torch.allclose(one, other, atol=1e-10)


def test_a_wrong_rule_is_not_accepted() -> None:
    def forgets_decay(*inputs: torch.Tensor) -> torch.Tensor:
        q, k, v, g, beta = inputs
        return chunked_delta_rule(q, k, v, 0.9 * g, beta)

    cpu = torch.device("cpu")

    assert agrees(chunked_delta_rule, cpu, torch.float32)[0]
    assert not agrees(forgets_decay, cpu, torch.float32)[0]


def test_documents_of_a_row_do_not_see_each_other() -> None:
    torch.manual_seed(1)
    trunk = Trunk(small(60)).requires_grad_(False)
    tokens = torch.randint(0, 60, (1, 2 * CHUNK))
    first = 50
    positions = torch.cat((torch.arange(first), torch.arange(2 * CHUNK - first)))[None]
    other = tokens.clone()
    other[:, :first] = torch.randint(0, 60, (1, first))

    one, _ = trunk(tokens, positions)
    two, _ = trunk(other, positions)

    # Decays are sums over a chunk, so a neighbour changes how they are rounded.
    assert torch.allclose(one[:, first:], two[:, first:], atol=1e-4)
    assert not torch.allclose(one[:, :first], two[:, :first], atol=1e-2)
