"""The command that compiles kernels for a machine without a compiler."""

from pathlib import Path

import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from tests.support.prebuilt_kernels import parse


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
