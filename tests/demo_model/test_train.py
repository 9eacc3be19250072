"""The whole run on a small geometry: data processes, both phases, checkpoint, export, parts."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("torch")

import torch

from tools.demo_model import parts, train
from tools.demo_model.checkpoint import load
from tools.demo_model.data.encoding import TOKENIZER_FOLDER
from tools.demo_model.optimizer import Optimizer
from tools.demo_model.stored import load as load_models

CPU = torch.device("cpu")


def counting(seed: int, start: int, count: int) -> Iterator[tuple[list[int], list[int]]]:
    """A source whose answers count on from the question's last token."""
    for index in range(start, start + count):
        first = Random(f"{seed} {index}").randrange(100, 140)
        yield list(range(first, first + 14)), [0] * 4 + [1] * 10


def options(folder: Path, minutes: float) -> list[str]:
    flags = ["--small", "--no-compile", "--workers", "1", "--shard", "200"]
    sizes = ["--rows", "2", "--companion-rows", "2", "--length", "128", "--anchors", "4"]
    limits = ["--capacity", "40", "--start-rows", "8", "--minutes", str(minutes)]
    places = ["--output", str(folder / "run"), "--parts", str(folder / "parts")]
    return [*flags, *sizes, *limits, *places, "--source", f"{__name__}:counting"]


@pytest.mark.slow
def test_a_run_ends_with_an_export_and_a_second_one_goes_on_from_its_checkpoint(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train.main(options(tmp_path, 0.1)) == 0

    assert (tmp_path / "run" / "DONE").read_text().startswith("DONE tokens")
    first = load(tmp_path / "run", CPU)
    assert first is not None
    exported = load_models(tmp_path / "run" / "export", CPU)
    assert exported.mtp is not None
    assert exported.draft is not None
    name, master = next(iter(first["trunk"]["masters"].items()))
    stored = dict(exported.trunk.named_parameters())[name.removeprefix("trunk.")]
    assert torch.equal(stored, master.bfloat16().float())
    files = sorted((tmp_path / "parts").iterdir())
    parts.join(files, tmp_path / "joined")
    assert (tmp_path / "joined" / "model" / "tokenizer.json").read_bytes() == (
        TOKENIZER_FOLDER / "tokenizer.json"
    ).read_bytes()
    capfd.readouterr()

    assert train.main(options(tmp_path, 0.12)) == 0

    assert f"goes on from step {first['clocks'][0]['steps']} + " in capfd.readouterr().out
    second = load(tmp_path / "run", CPU)
    assert second is not None
    for clock, before in zip(second["clocks"], first["clocks"], strict=True):
        assert clock["steps"] > before["steps"]


def test_an_optimizer_restored_from_its_state_makes_the_same_step() -> None:
    def build() -> tuple[dict[str, torch.Tensor], Optimizer]:
        torch.manual_seed(2)
        parameters = {
            "matrix": torch.randn(6, 4, requires_grad=True),
            "embed_tokens": torch.randn(5, 4, requires_grad=True),
            "vector": torch.randn(4, requires_grad=True),
        }
        return parameters, Optimizer(parameters)

    def step(parameters: dict[str, torch.Tensor], optimizer: Optimizer, seed: int) -> None:
        torch.manual_seed(seed)
        for parameter in parameters.values():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step(0.01)
        optimizer.publish()

    one, two = build(), build()
    for seed in range(3):
        step(*one, seed)
    two[1].restore(one[1].state())
    two[1].publish()
    for seed in (7, 8):
        step(*one, seed)
        step(*two, seed)

    for name, parameter in one[0].items():
        assert torch.equal(parameter, two[0][name]), name


def test_a_loss_is_brought_down_by_the_optimizer() -> None:
    torch.manual_seed(0)
    parameters = {
        "matrix": torch.zeros(8, 8, requires_grad=True),
        "vector": torch.zeros(8, requires_grad=True),
    }
    wanted = {name: torch.randn_like(parameter) for name, parameter in parameters.items()}
    optimizer = Optimizer(parameters, decay=0.0)

    def losses() -> dict[str, torch.Tensor]:
        return {name: (p - wanted[name]).square().mean() for name, p in parameters.items()}

    first = losses()
    for index in range(200):
        torch.stack(list(losses().values())).sum().backward()
        optimizer.step(0.1 * (1 - index / 200))
        optimizer.publish()

    last = losses()
    assert all(last[name] < 0.05 * first[name] for name in parameters)
