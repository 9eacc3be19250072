"""From masters through export and converter to an artifact, and back to torch."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from ninfer.convert.conversion import convert
from ninfer.convert.plan import ConvertOptions
from tools.demo_model.companion_phase import Companions
from tools.demo_model.data.encoding import TOKENIZER_FOLDER
from tools.demo_model.dflash import Drafter
from tools.demo_model.export import export, tokenizer_size
from tools.demo_model.geometry import DemoGeometry, small
from tools.demo_model.model import Trunk
from tools.demo_model.mtp import MtpHead
from tools.demo_model.optimizer import Optimizer
from tools.demo_model.storage_formats import TrunkStorage, companion_storage
from tools.demo_model.stored import load
from tools.demo_model.train import named

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def geometry() -> DemoGeometry:
    return small(tokenizer_size(TOKENIZER_FOLDER))


@pytest.fixture(scope="module")
def optimizers(geometry: DemoGeometry) -> tuple[Optimizer, Optimizer]:
    """Masters of random models; no vector is left at its plain initial value."""
    torch.manual_seed(7)
    trunk, companions = Trunk(geometry), Companions(MtpHead(geometry), Drafter(geometry))
    for module in (trunk, companions):
        for parameter in module.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    return Optimizer(named(trunk, "trunk.")), Optimizer(named(companions, ""))


@pytest.fixture(scope="module")
def exported(
    geometry: DemoGeometry,
    optimizers: tuple[Optimizer, Optimizer],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    folder: Path = tmp_path_factory.mktemp("export")
    masters = {**optimizers[0].masters, **optimizers[1].masters}
    export(folder, geometry, masters, TOKENIZER_FOLDER)
    return folder


def artifact(exported: Path, profile: str) -> Path:
    path = exported / f"{profile}.ninfer"
    options = ConvertOptions(
        source=exported / "model",
        output=path,
        model_id="demo",
        profile=profile,
        draft=exported / "draft",
    )
    convert(options)
    return path


def values(path: Path) -> dict[str, torch.Tensor]:
    """All parameters under the masters' names."""
    found = load(path, CPU)
    assert found.mtp is not None
    assert found.draft is not None
    return {
        **named(found.trunk, "trunk."),
        **named(found.mtp, "mtp."),
        **named(found.draft, "draft."),
    }


def test_a_plain_artifact_has_the_exported_values(exported: Path) -> None:
    folder, stored = values(exported), values(artifact(exported, "bf16"))

    assert stored.keys() == folder.keys()
    for name, value in folder.items():
        assert torch.equal(stored[name], value), name


def test_training_behind_the_formats_sees_the_grouped_artifact_bit_for_bit(
    geometry: DemoGeometry, optimizers: tuple[Optimizer, Optimizer], exported: Path
) -> None:
    trunk_storage = TrunkStorage(geometry.head_dim, 2 * geometry.num_key_heads * geometry.delta_dim)

    stored = values(artifact(exported, "groupwise-int"))

    for optimizer, is_trunk in zip(optimizers, (True, False), strict=True):
        for name, master in optimizer.masters.items():
            seen = trunk_storage(name, master) if is_trunk else companion_storage(name, master)
            assert torch.equal(stored[name], seen), name


def test_weights_of_a_folder_are_the_masters_in_bf16(
    optimizers: tuple[Optimizer, Optimizer], exported: Path
) -> None:
    stored = values(exported)

    for optimizer in optimizers:
        for name, master in optimizer.masters.items():
            is_wide = name.endswith(("A_log", "dt_bias"))
            assert torch.equal(stored[name], master if is_wide else master.bfloat16().float())
