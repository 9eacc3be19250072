"""Every kernel of every registered model, compiled: what it costs and what it is called."""

import json
from pathlib import Path
from typing import NoReturn

import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.cli.exit_codes import ExitCode
from ninfer.cli.main import main
from ninfer.compilation import (
    compile_kernels,
    declared_kernels,
    kernel_shapes,
    kernels_of_geometry,
    kind_of,
    one_geometry,
)
from ninfer.cuda.device import SCRATCH_BYTES
from ninfer.cuda.kernel_source import Kernel, source_digest
from ninfer.cuda.module import BLOCK_SHARED, TARGETS, Figures, prebuilt
from ninfer.errors import ConfigurationError
from ninfer.kernels.cuda.choice_kernels import MAX_ROWS
from ninfer.kernels.cuda.choice_passes import ROW_BYTES, SLICES
from ninfer.kernels.cuda.choice_values import NUM_BINS
from ninfer.kernels.cuda.norm import make_rms_norm
from ninfer.models.registry import lookup, model_ids


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


def test_kernels_of_a_registered_geometry_are_those_of_its_model() -> None:
    geometry = lookup("tiny-moe").expected_geometry

    found = kernels_of_geometry(geometry, "sm_80")

    names = {kernel.name for kernel in found}
    assert names == {kernel.name for kernel in declared_kernels(["tiny-moe"], "sm_80")}


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="no-such-model"):
        compile_kernels(["no-such-model"])
    with pytest.raises(ConfigurationError, match="sm_30"):
        compile_kernels(["tiny-dense"], ["sm_30"])


@pytest.mark.parametrize("target", TARGETS)
def test_every_block_fits_its_target(target: str) -> None:
    kernels = declared_kernels(None, target)

    assert len(kernels) > 100
    assert all(one.dynamic_shared_bytes <= BLOCK_SHARED[target] for one in kernels)


def test_a_target_without_warpgroups_declares_what_its_launches_choose() -> None:
    names = {one.name for one in declared_kernels(None, "sm_89")}

    assert {"attention_page_split_256", "attention_page_prefill_256_bf16_4"} <= names
    assert {"expert_gate_bf16_16_2_listed_0", "expert_down_bf16_4_1_by_2"} <= names
    assert not any(name.startswith(("expert_wide", "attention_prefill_wide")) for name in names)
    assert "delta_columns_16_48_128_128_f32" in names


def test_a_target_whose_prefill_goes_by_chunks_declares_no_columns() -> None:
    names = {one.name for one in declared_kernels(["qwen3.6-27b"])}

    assert "delta_chunks_16_48_128_128_f32" in names
    assert "delta_prefill_16_48_128_128" in names  # folds before the first chunk
    assert not any(name.startswith("delta_columns") for name in names)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("expert_gate_q4_16_2_found_1", "expert_gate_q4_found"),
        ("prefill_w8_64x32_2_3", "prefill_w8"),
        ("kv_append_int8_256_64_1e07_11_11_10", "kv_append_int8_1e07"),
        ("rms_norm", "rms_norm"),
    ],
)
def test_a_kind_is_a_name_without_extents(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_one_geometry_of_every_kind_is_the_one_with_most_shared_memory() -> None:
    made = [
        Kernel(name, make_rms_norm(True, False).function, (), 32, 32, nbytes)
        for name, nbytes in (("gate_q4_1_found", 8), ("gate_q4_2_found", 9), ("gate_q5_2_found", 7))
    ]

    found = one_geometry([(kernel, target) for target in ("sm_80", "sm_89") for kernel in made])

    assert [(kernel.name, target) for kernel, target in found] == [
        ("gate_q4_2_found", "sm_80"),
        ("gate_q5_2_found", "sm_80"),
        ("gate_q4_2_found", "sm_89"),
        ("gate_q5_2_found", "sm_89"),
    ]


def test_the_tuned_target_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    function = make_rms_norm(True, False).function
    made = tuple(Kernel(f"norm_{n}", function, (), 32, 32, n) for n in range(3))
    monkeypatch.setattr("ninfer.compilation.declared_kernels", lambda models, target: made)
    monkeypatch.setattr(
        "ninfer.compilation.compile_together",
        lambda cache, jobs, *_: [Figures(32, 0, 0, 0) for _ in jobs],
    )

    reports = compile_kernels(None, ["sm_80", "sm_90"], only_one_geometry=True)

    assert [(one.kernel, one.target) for one in reports] == [
        ("norm_0", "sm_90"),
        ("norm_1", "sm_90"),
        ("norm_2", "sm_90"),
        ("norm_2", "sm_80"),
    ]


def only_norm(models: object, target: str) -> tuple[Kernel, ...]:
    return (make_rms_norm(True, False),)


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
    cubin = prebuilt(tmp_path / "kernels").compiled(make_rms_norm(True, False), "sm_90").cubin
    assert cubin.startswith(b"\x7fELF")


def test_command_refuses_a_report_that_cannot_be_written_before_it_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_kernels(models: object, target: str) -> NoReturn:
        raise AssertionError("it compiles")

    monkeypatch.setattr("ninfer.compilation.declared_kernels", no_kernels)
    report = tmp_path / "missing" / "report.json"

    code = main(["compile", "--model-id", "tiny-dense", "--report", str(report)])

    assert code is not ExitCode.DONE
    assert str(report) in capsys.readouterr().err


def test_command_fails_for_a_kernel_over_its_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    norm = make_rms_norm(True, False)
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
