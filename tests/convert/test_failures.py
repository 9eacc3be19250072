"""Wrong tensors, resources and outputs: a clear error, and nothing left behind."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ninfer.artifact.writer import ArtifactWriter
from ninfer.convert import conversion
from ninfer.convert.assembly import Block, EncodedBlock, encode_block
from ninfer.convert.conversion import convert
from ninfer.convert.plan import ConvertOptions
from ninfer.convert.progress import SilentProgress
from ninfer.errors import ConfigurationError
from tests.support.checkpoint_files import (
    Tensors,
    Words,
    copy_checkpoint,
    golden_tensors,
    read_tensors,
    write_tensors,
)
from tests.support.failing_conversion import failing_conversion
from tests.support.golden import GOLDEN

LAYER = "model.language_model.layers.0."


def _edited(tmp_path: Path, edit: Callable[[Tensors], object], case: str = "tiny-dense") -> Path:
    tensors = golden_tensors(case)
    edit(tensors)
    return copy_checkpoint(case, tmp_path / "checkpoint", tensors)


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    name = f"{LAYER}linear_attn.A_log"
    folder = _edited(tmp_path, lambda tensors: tensors.pop(name))

    assert f"1 of 123 tensors are missing: {name}" in failing_conversion(folder, tmp_path)


def test_extra_tensor_is_named(tmp_path: Path) -> None:
    extra = Words("BF16", np.zeros((2, 2), np.uint16))
    folder = _edited(tmp_path, lambda tensors: tensors.update({"lm_head.weight": extra}))

    assert "1 tensors are not part of the model: lm_head.weight" in failing_conversion(
        folder, tmp_path
    )


def test_wrong_shape_is_refused_with_both(tmp_path: Path) -> None:
    name = f"{LAYER}mlp.up_proj.weight"
    wrong = Words("BF16", np.zeros((160, 63), np.uint16))
    folder = _edited(tmp_path, lambda tensors: tensors.update({name: wrong}))

    message = failing_conversion(folder, tmp_path)

    assert f"{name} has the shape [160, 63]; the config makes it [160, 64]" in message


def test_wrong_type_is_refused(tmp_path: Path) -> None:
    name = f"{LAYER}mlp.up_proj.weight"
    wrong = Words("F16", np.zeros((160, 64), np.float16))
    folder = _edited(tmp_path, lambda tensors: tensors.update({name: wrong}))

    assert f"{name} is F16; allowed is BF16 or F32" in failing_conversion(folder, tmp_path)


@pytest.mark.parametrize("profile", ["bf16", "groupwise-int"])
@pytest.mark.parametrize("word", [0x7F80, 0xFF80, 0x7FC1])
def test_value_that_is_not_finite_is_located(tmp_path: Path, profile: str, word: int) -> None:
    name = f"{LAYER}mlp.up_proj.weight"

    def poison(tensors: Tensors) -> None:
        array = tensors[name].array.copy()
        array[17, 42] = word
        tensors[name] = Words("BF16", array)

    message = failing_conversion(_edited(tmp_path, poison), tmp_path, profile=profile)

    assert f"{name} holds a value that is not finite at [17, 42]" in message


def test_f32_value_that_is_not_finite_is_located(tmp_path: Path) -> None:
    name = f"{LAYER}linear_attn.A_log"
    values = np.array([0, 1, np.nan, 2], np.float32)
    folder = _edited(tmp_path, lambda tensors: tensors.update({name: Words("F32", values)}))

    assert f"{name} holds a value that is not finite at [2]" in failing_conversion(folder, tmp_path)


def test_value_beyond_a_binary16_scale_names_the_object(tmp_path: Path) -> None:
    name = f"{LAYER}mlp.up_proj.weight"

    def enlarge(tensors: Tensors) -> None:
        tensors[name] = Words("F32", np.full((160, 64), 1e30, np.float32))

    message = failing_conversion(_edited(tmp_path, enlarge), tmp_path)

    assert "text/layers/0/mlp/gate_up from row 0 on does not fit Q4G64_F16S" in message


def test_f32_value_beyond_bf16_is_refused(tmp_path: Path) -> None:
    name = f"{LAYER}mlp.up_proj.weight"
    largest = np.full((160, 64), np.finfo(np.float32).max, np.float32)
    folder = _edited(tmp_path, lambda tensors: tensors.update({name: Words("F32", largest)}))

    message = failing_conversion(folder, tmp_path, profile="bf16")

    assert f"{name} holds a value that is too large for bf16" in message


def test_damaged_draft_is_refused(tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    shutil.copytree(GOLDEN / "tiny-dense" / "dflash2", draft)
    tensors = read_tensors(draft / "model.safetensors")
    del tensors["fc.weight"]
    write_tensors(draft / "model.safetensors", tensors)

    message = failing_conversion(GOLDEN / "tiny-dense" / "checkpoint", tmp_path, draft=draft)

    assert "1 of 51 tensors are missing: fc.weight" in message


def test_draft_of_another_model_is_refused(tmp_path: Path) -> None:
    draft = GOLDEN / "real-head-dense" / "dflash2"

    message = failing_conversion(GOLDEN / "tiny-dense" / "checkpoint", tmp_path, draft=draft)

    assert "config field hidden_size is 128; allowed is 64" in message


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"]
)
def test_missing_resource_is_named(tmp_path: Path, name: str) -> None:
    folder = copy_checkpoint("tiny-dense", tmp_path / "checkpoint")
    (folder / name).unlink()

    assert f"{name} is missing" in failing_conversion(folder, tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("tokenizer.json", b"{", "valid JSON"),
        ("tokenizer.json", b"{}", "no model.vocab"),
        ("tokenizer.json", b'{"model": {"vocab": {"a": 544}}}', "addresses 545 ids"),
        ("tokenizer.json", b'{"model": {"vocab": {"a": -1}}}', "not a token id"),
        ("tokenizer_config.json", b'{"added_tokens_decoder": {"x": {}}}', "malformed"),
        ("generation_config.json", b"[]", "not a JSON object"),
        ("chat_template.jinja", b"\xff", "not UTF-8"),
        ("chat_template.jinja", b"", "is empty"),
        ("config.json", b"nothing", "valid JSON"),
    ],
)
def test_unusable_resource_is_refused(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    folder = copy_checkpoint("tiny-dense", tmp_path / "checkpoint")
    (folder / name).write_bytes(content)

    message = failing_conversion(folder, tmp_path)

    assert name in message
    assert reason in message


def test_source_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    assert "is not a folder with a checkpoint" in failing_conversion(tmp_path / "absent", tmp_path)


def test_identity_of_the_other_family_is_refused(tmp_path: Path) -> None:
    message = failing_conversion(
        GOLDEN / "tiny-dense" / "checkpoint", tmp_path, model_id="tiny-moe"
    )

    assert "the config is dense; tiny-moe is moe" in message


def test_fixed_identity_of_another_size_is_refused(tmp_path: Path) -> None:
    message = failing_conversion(
        GOLDEN / "tiny-dense" / "checkpoint", tmp_path, model_id="qwen3.6-27b"
    )

    assert "hidden is 64; qwen3.6-27b has 5120" in message


def _options(tmp_path: Path, *, is_forced: bool = False) -> ConvertOptions:
    return ConvertOptions(
        source=GOLDEN / "tiny-dense" / "checkpoint",
        output=tmp_path / "m.ninfer",
        is_forced=is_forced,
    )


def test_existing_output_is_kept_without_force(tmp_path: Path) -> None:
    (tmp_path / "m.ninfer").write_bytes(b"old")

    with pytest.raises(ConfigurationError, match="exists; --force replaces it"):
        convert(_options(tmp_path))

    assert [path.name for path in tmp_path.iterdir()] == ["m.ninfer"]
    assert (tmp_path / "m.ninfer").read_bytes() == b"old"


def test_existing_output_is_replaced_with_force(tmp_path: Path) -> None:
    (tmp_path / "m.ninfer").write_bytes(b"old")

    report = convert(_options(tmp_path, is_forced=True))

    assert (tmp_path / "m.ninfer").stat().st_size == report.file_bytes


@pytest.mark.parametrize("name", ["absent/m.ninfer", "."])
def test_output_that_cannot_be_placed_is_refused(tmp_path: Path, name: str) -> None:
    options = ConvertOptions(
        source=GOLDEN / "tiny-dense" / "checkpoint", output=tmp_path / name, is_forced=True
    )

    with pytest.raises(ConfigurationError):
        convert(options)


@pytest.mark.parametrize(
    "options", [{"profile": "nvfp4"}, {"model_id": "qwen4"}, {"num_workers": 0}]
)
def test_illegal_option_is_refused(tmp_path: Path, options: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="allowed is"):
        ConvertOptions(source=tmp_path, output=tmp_path / "m.ninfer", **options)  # type: ignore[arg-type] # the point


def test_full_disk_is_seen_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))

    with pytest.raises(OSError, match="bytes are needed, 1000 are free") as caught:
        convert(_options(tmp_path))

    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


def test_disk_that_fills_up_leaves_the_old_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.ninfer").write_bytes(b"old")
    written = 0
    write = ArtifactWriter.write

    def filling(writer: ArtifactWriter, name: str, offset: int, data: bytes) -> None:
        nonlocal written
        written += 1
        if written > 50:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(writer, name, offset, data)

    monkeypatch.setattr(ArtifactWriter, "write", filling)

    with pytest.raises(OSError, match="No space left"):
        convert(_options(tmp_path, is_forced=True))

    assert [path.name for path in tmp_path.iterdir()] == ["m.ninfer"]
    assert (tmp_path / "m.ninfer").read_bytes() == b"old"


class _Interrupting(SilentProgress):
    """Presses Ctrl-C after some output."""

    def __init__(self) -> None:
        self.num_advances = 0
        self.is_closed = False

    def advance(self, nbytes: int) -> None:
        self.num_advances += 1
        if self.num_advances == 60:
            raise KeyboardInterrupt

    def close(self) -> None:
        self.is_closed = True


def test_interrupted_conversion_leaves_nothing(tmp_path: Path) -> None:
    progress = _Interrupting()

    with pytest.raises(KeyboardInterrupt):
        convert(_options(tmp_path), progress)

    assert progress.is_closed
    assert list(tmp_path.iterdir()) == []


def test_shard_that_shrinks_while_it_is_read_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy_checkpoint("tiny-dense", tmp_path / "checkpoint")

    def shrinking(block: Block) -> EncodedBlock:
        (folder / "model.safetensors").write_bytes(b"")
        return encode_block(block)

    monkeypatch.setattr(conversion, "encode_block", shrinking)

    assert "became shorter while it was read" in failing_conversion(folder, tmp_path)
