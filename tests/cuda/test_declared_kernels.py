"""Every kernel of every registered model, compiled: what it costs and what it is called."""

import json
from pathlib import Path

import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.cli.exit_codes import ExitCode
from ninfer.cli.main import main
from ninfer.compilation import compile_kernels, declared_kernels, kernel_shapes
from ninfer.cuda.device import SCRATCH_BYTES
from ninfer.cuda.kernel_source import Kernel, source_digest
from ninfer.cuda.module import BLOCK_SHARED, TARGETS, prebuilt
from ninfer.errors import ConfigurationError
from ninfer.kernels.cuda.choice_kernels import MAX_ROWS
from ninfer.kernels.cuda.choice_passes import ROW_BYTES, SLICES
from ninfer.kernels.cuda.choice_values import NUM_BINS
from ninfer.kernels.cuda.norm import make_rms_norm
from ninfer.models.registry import model_ids


def test_every_registered_model_declares_kernels_of_distinct_names_and_sources() -> None:
    kernels = declared_kernels()

    names = [kernel.name for kernel in kernels]
    assert len(set(names)) == len(names) > 15
    assert len({source_digest(kernel) for kernel in kernels}) == len(names)
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_") for name in names)


@pytest.mark.parametrize("model_id", model_ids())
def test_every_registered_model_has_shapes(model_id: str) -> None:
    shapes = kernel_shapes(model_id)

    assert shapes.hidden % 64 == 0
    assert (shapes.intermediate == 0) == (shapes.num_experts > 0)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="no-such-model"):
        compile_kernels(["no-such-model"])
    with pytest.raises(ConfigurationError, match="sm_30"):
        compile_kernels(["tiny-dense"], ["sm_30"])


@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_every_block_fits_where_blocks_have_most_shared_memory(target: str) -> None:
    kernels = declared_kernels(None, target)

    assert all(one.dynamic_shared_bytes <= BLOCK_SHARED[target] for one in kernels)


@pytest.mark.parametrize("target", TARGETS)
def test_products_and_mixers_fit_every_target(target: str) -> None:
    families = ("few_", "linear_", "prefill_", "delta_", "choice_", "attention_split_256_int8")

    kernels = [one for one in declared_kernels(None, target) if one.name.startswith(families)]

    assert len(kernels) > 40
    assert all(one.dynamic_shared_bytes <= BLOCK_SHARED[target] for one in kernels)


def only_norm(models: object, target: str) -> tuple[Kernel, ...]:
    return (make_rms_norm(True),)


def test_command_reports_and_leaves_a_folder_to_run_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ninfer.compilation.declared_kernels", only_norm)
    arguments = ["compile", "--model-id", "tiny-dense", "--output", str(tmp_path / "kernels")]

    code = main([*arguments, "--report", str(tmp_path / "report.json")])

    (report,) = json.loads((tmp_path / "report.json").read_text())["kernels"]
    assert code is ExitCode.DONE
    assert report["kernel"] == "rms_norm"
    assert report["target"] == "sm_90"
    assert report["spilled_bytes"] == report["local_bytes"] == 0
    assert report["complaints"] == []
    assert "rms_norm" in capsys.readouterr().out
    cubin = prebuilt(tmp_path / "kernels").compiled(make_rms_norm(True), "sm_90").cubin
    assert cubin.startswith(b"\x7fELF")


def test_command_fails_for_a_kernel_over_its_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    norm = make_rms_norm(True)
    greedy = Kernel("greedy", norm.function, norm.params, norm.threads, max_registers=1)
    monkeypatch.setattr("ninfer.compilation.declared_kernels", lambda models, target: (greedy,))

    code = main(["compile", "--all", "--output", str(tmp_path)])

    assert code is ExitCode.FAILED
    assert "declared 1" in capsys.readouterr().err


@pytest.mark.slow
def test_no_declared_kernel_spills_or_exceeds_its_budget() -> None:
    reports = compile_kernels(None)

    assert [text for report in reports for text in report.complaints] == []


def test_scratch_of_a_stream_holds_every_row_of_a_choice() -> None:
    assert MAX_ROWS * ROW_BYTES <= SCRATCH_BYTES
    assert NUM_BINS % 256 == 0
    assert NUM_BINS % SLICES == 0
