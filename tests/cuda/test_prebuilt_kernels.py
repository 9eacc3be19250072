"""What is compiled for a machine without a compiler, and the command that does it."""

from pathlib import Path

import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from benchmarks.idle_device import IdleDevice
from ninfer.compilation import declared_kernels
from tests.support import prebuilt_kernels
from tests.support.model_cases import CASES
from tests.support.prebuilt_kernels import parse
from tests.support.running_program import running_program


def test_folder_and_target_are_read() -> None:
    assert parse(["kernels"]) == (Path("kernels"), "sm_90")
    assert parse(["kernels", "sm_80"]) == (Path("kernels"), "sm_80")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--help"], 0), ([], 2), (["kernels", "sm_1"], 2), (["kernels", "sm_80", "more"], 2)],
)
def test_help_and_mistakes_compile_nothing(
    arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(arguments)

    written = capsys.readouterr()
    assert ended.value.code == code
    assert "FOLDER" in written.out + written.err


@pytest.mark.parametrize("weights_id", ["bf16", "groupwise-int"])
@pytest.mark.parametrize("case", CASES)
def test_what_golden_models_launch_is_compiled(case: str, weights_id: str) -> None:
    device = IdleDevice()
    with running_program(
        case,
        weights_id=weights_id,
        open_device=lambda: device,
        use_graphs=False,
        max_concurrency=8,
        max_context=256,
    ) as driver:
        lanes = [driver.admit([1] * length) for length in (2, 5, 20, 64, 100, 120, 140, 200)]
        for size in range(1, 9):
            driver.round(*lanes[:size])

    compiled = {kernel.name for kernel in (*declared_kernels(), *prebuilt_kernels.test_variants())}
    assert len(device.kernels) > 20
    assert set(device.kernels) <= compiled
