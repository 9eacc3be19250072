"""``ninfer bench`` on synthetic models: what it says, and what it refuses."""

import pytest

from ninfer.cli.exit_codes import ExitCode
from tests.cli.command_line import run

TINY = ("bench", "--synthetic", "tiny-moe", "--device", "host", "--repeat", "1", "--warmup", "0")


def test_cells_are_printed_beside_their_ceilings() -> None:
    ended = run(
        *(*TINY, "--prompt-lens", "8", "--context", "90", "--gen-len", "8"),
        *("--concurrency", "1,2", "--matmul-tflops", "0.5", "--format", "json"),
    )

    assert ended.code == ExitCode.DONE
    document = ended.document
    assert (document["model"], document["weights"]) == ("tiny-moe", "groupwise-int")
    assert document["machine"]["copy_gb_s"] > 0
    assert set(document["start_s"]) >= {"weights", "arenas", "frontend"}
    cells = document["cells"]
    assert [cell["is_imagined"] for cell in cells] == [False, False, True, True]
    assert [cell["concurrency"] for cell in cells] == [1, 2, 1, 2]
    for cell in cells:
        assert 0 < cell["decode_fraction"] < 1
        assert cell["decode_per_s"] == pytest.approx(
            cell["decode_fraction"] * cell["decode_ceiling_per_s"]
        )
        assert (cell["prefill_per_s"] is None) is cell["is_imagined"]
        assert (cell["prefill_fraction"] is None) is cell["is_imagined"]
        assert min(cell["round_us"], cell["device_us"]) > 0
        assert cell["host_us"] >= 0


def test_the_account_and_a_mark_of_imagined_prompts_are_printed() -> None:
    ended = run(*TINY, "--prompt-lens", "8", "--context", "90", "--gen-len", "4")

    assert ended.code == ExitCode.DONE
    assert "device total" in ended.err
    assert "90*" in ended.out
    assert "random cache" in ended.out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("bench", "file.ninfer", "--synthetic", "tiny-moe"), ExitCode.USAGE),
        (("bench", "file.ninfer", "--context", "64"), ExitCode.USAGE),
        ((*TINY, "--context", "0"), ExitCode.USAGE),
        ((*TINY, "--prompt-lens", ""), ExitCode.USAGE),
        ((*TINY, "--prompt-lens", "8,x"), ExitCode.USAGE),
        ((*TINY, "--concurrency", ","), ExitCode.USAGE),
        ((*TINY, "--context", "8000"), ExitCode.USAGE),
        (("bench", "--synthetic", "no-such-model", "--device", "host"), ExitCode.USAGE),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments: tuple[str, ...], code: ExitCode) -> None:
    assert run(*arguments).code == code


@pytest.mark.parametrize(
    ("option", "value"), [("--seed", "7"), ("--seed", "0"), ("--profile", "bf16")]
)
def test_options_of_random_weights_beside_an_artifact_are_refused(option: str, value: str) -> None:
    ended = run("bench", "file.ninfer", option, value)

    assert ended.code == ExitCode.USAGE
    assert ended.err == f"error: {option} goes with --synthetic: an artifact has its weights\n"


def test_variables_of_random_weights_do_nothing_beside_an_artifact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NINFER_SEED", "7")
    monkeypatch.setenv("NINFER_PROFILE", "bf16")

    assert "file.ninfer" in run("bench", "file.ninfer").err


def test_a_model_that_does_not_fit_names_the_missing_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ninfer.host.device.HostDevice.free_bytes", lambda device: 1 << 20)

    ended = run(*TINY, "--prompt-lens", "8")

    assert ended.code == ExitCode.DEVICE
    assert "missing" in ended.err
