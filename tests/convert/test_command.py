"""Exit codes and streams of the converter's own door."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ninfer.artifact.reader import ArtifactReader
from ninfer.convert import command
from ninfer.convert.plan import ConvertOptions
from ninfer.convert.progress import ConversionProgress
from ninfer.convert.report import ConversionReport
from ninfer.termination import ending_signal
from tests.support.checkpoint_files import copy_checkpoint
from tests.support.golden import GOLDEN
from tests.support.tiny_model import artifact_path
from tools.convert.__main__ import main

SOURCE = str(GOLDEN / "tiny-dense" / "checkpoint")
REPOSITORY = Path(__file__).resolve().parent.parent.parent


def test_conversion_ends_with_0_and_a_clean_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "m.ninfer"
    draft = str(GOLDEN / "tiny-dense" / "dflash2")

    code = main([SOURCE, str(output), "--profile", "bf16", "--draft", draft, "--verify"])

    captured = capsys.readouterr()
    assert code == 0
    assert captured.out == ""
    assert "tiny-dense bf16, 140 tensors and 6 resources" in captured.err
    assert "against the source" in captured.err
    assert output.read_bytes() == artifact_path("tiny-dense", "bf16").read_bytes()


def test_dry_run_prints_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main([SOURCE, str(tmp_path / "m.ninfer"), "--dry-run"])

    plan = json.loads(capsys.readouterr().out)
    assert code == 0
    assert plan["num_tensors"] == 112
    assert plan["is_dry_run"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        [SOURCE],
        [SOURCE, "m.ninfer", "--profile", "nvfp4"],
        [SOURCE, "m.ninfer", "--model-id", "qwen9"],
        [SOURCE, "m.ninfer", "--workers", "0"],
        [SOURCE, "m.ninfer", "--prof", "bf16"],
        [SOURCE, "m.ninfer", "--ranking", "absent.bin"],
        [SOURCE, "absent/m.ninfer"],
    ],
)
def test_wrong_usage_ends_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(arguments) == 2
    assert list(tmp_path.iterdir()) == []


def test_existing_artifact_needs_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "m.ninfer"
    output.write_bytes(b"old")

    assert main([SOURCE, str(output)]) == 2
    assert "--force" in capsys.readouterr().err
    assert main([SOURCE, str(output), "--force"]) == 0


def test_damaged_checkpoint_ends_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copy_checkpoint("tiny-dense", tmp_path / "checkpoint")
    (folder / "model.safetensors").unlink()

    assert main([str(folder), str(tmp_path / "m.ninfer")]) == 3
    assert "error: " in capsys.readouterr().err


def test_full_disk_ends_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(options: ConvertOptions, progress: ConversionProgress) -> ConversionReport:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(command, "convert", full)

    assert main([SOURCE, str(tmp_path / "m.ninfer")]) == 1


def test_failure_of_the_closing_off_after_a_signal_is_left_to_the_door(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(options: ConvertOptions, progress: ConversionProgress) -> ConversionReport:
        try:
            raise KeyboardInterrupt
        finally:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(command, "convert", interrupted)

    with pytest.raises(OSError, match="Input/output error") as info:
        main([SOURCE, str(tmp_path / "m.ninfer")])
    assert ending_signal(info.value) is signal.SIGINT


def test_strict_resources_have_nothing_to_say_about_test_models(tmp_path: Path) -> None:
    assert main([SOURCE, str(tmp_path / "m.ninfer"), "--strict-resources", "--no-progress"]) == 0


def test_progress_goes_nowhere_near_standard_output(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tools.convert", SOURCE, str(tmp_path / "m.ninfer")],
        cwd=REPOSITORY,
        capture_output=True,
        check=False,
        timeout=300,
    )

    assert ended.returncode == 0
    assert ended.stdout == b""
    assert b"\x1b" not in ended.stderr
    assert b"\r" not in ended.stderr


def _hear_signals() -> None:
    """Hear what a shell's background or ``nohup`` would ignore."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


_SLOW_CONVERSION = """
import sys, time
from ninfer.convert import conversion
from tools.convert import __main__ as door

encode = conversion.encode_block

def slow(block):
    sys.stdout.write("running\\n")
    sys.stdout.flush()
    time.sleep(0.05)
    return encode(block)

conversion.encode_block = slow
door.entry()
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGHUP, 129), (signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_terminated_process_leaves_nothing(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    arguments = [SOURCE, str(tmp_path / "m.ninfer"), "--workers", "1"]
    with subprocess.Popen(
        [sys.executable, "-c", _SLOW_CONVERSION, *arguments],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        preexec_fn=_hear_signals,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"running\n"
        process.send_signal(number)
        process.communicate(timeout=300)

    assert process.returncode == code
    assert list(tmp_path.iterdir()) == []


_TERMINATED_IN = """
import os, signal, sys
from tools.convert import __main__ as door

name = sys.argv.pop()
call = getattr(os, name)

def signalled(*arguments, **keywords):
    result = call(*arguments, **keywords)
    if any("ninfer" in str(argument) for argument in arguments) or name in ("fsync", "ftruncate"):
        signal.raise_signal(signal.SIGTERM)
    return result

setattr(os, name, signalled)
door.entry()
"""


@pytest.mark.parametrize(
    ("call", "code", "left"),
    [
        ("open", {143}, []),
        ("ftruncate", {143}, []),
        ("fsync", {143, 0}, ["m.conversion.json", "m.ninfer"]),
        ("replace", {143, 0}, ["m.conversion.json", "m.ninfer"]),
    ],
)
def test_process_that_is_terminated_at_a_critical_step_leaves_all_or_nothing(
    tmp_path: Path, call: str, code: set[int], left: list[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _TERMINATED_IN, SOURCE, str(tmp_path / "m.ninfer"), call],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert done.returncode in code
    assert sorted(path.name for path in tmp_path.iterdir()) == left


def test_artifact_of_the_command_can_be_opened(tmp_path: Path) -> None:
    main([SOURCE, str(tmp_path / "m.ninfer")])

    with ArtifactReader.open(tmp_path / "m.ninfer") as reader:
        assert (reader.version, reader.model_id) == (2, "tiny-dense")


@pytest.mark.parametrize(
    "shard",
    ["m" * 300, "m" * 100_000, "é" * 150, "a\0b", "\ud800", "\x1b[31m"],
    ids=["long", "very long", "long in UTF-8", "zero", "surrogate", "escape"],
)
def test_shard_name_that_no_file_can_have_ends_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shard: str
) -> None:
    folder = copy_checkpoint("tiny-dense", tmp_path / "checkpoint")
    index = {"weight_map": {"model.norm.weight": f"{shard}.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    assert main([str(folder), str(tmp_path / "m.ninfer")]) == 3
    captured = capsys.readouterr().err
    assert "a shard is a plain *.safetensors file" in captured
    assert "\x1b" not in captured
    assert len(captured) < 1000


@pytest.mark.parametrize("value", ["1" + "0" * 400, "1" + "0" * 5000, "1e308"])
def test_hostile_number_in_the_config_ends_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    folder = copy_checkpoint("tiny-dense", tmp_path / "checkpoint")
    config = json.loads((folder / "config.json").read_bytes())
    config["text_config"]["rms_norm_eps"] = "VALUE"
    (folder / "config.json").write_text(json.dumps(config).replace('"VALUE"', value))

    assert main([str(folder), str(tmp_path / "m.ninfer")]) == 3
    assert "config" in capsys.readouterr().err
