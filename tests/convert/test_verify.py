"""Verification finds any difference between an artifact and its source."""

import shutil
from pathlib import Path

import pytest

from ninfer.artifact.format import ArtifactError
from ninfer.artifact.reader import ArtifactReader
from ninfer.convert.plan import ConvertOptions
from ninfer.convert.verify import verify
from tests.support.golden import GOLDEN
from tests.support.tiny_model import artifact_path


def _options(profile: str = "groupwise-int") -> ConvertOptions:
    return ConvertOptions(
        source=GOLDEN / "tiny-moe" / "checkpoint",
        output=Path("unused.ninfer"),
        profile=profile,
        draft=GOLDEN / "tiny-moe" / "dflash",
    )


def test_faithful_artifact_is_compared_whole() -> None:
    path = artifact_path("tiny-moe")

    compared = verify(_options(), path)

    with ArtifactReader.open(path) as reader:
        values = sum(span.nbytes for found in reader.objects for span in found.value_spans)
    assert compared == values


@pytest.mark.parametrize(
    "name",
    [
        "frontend/tokenizer.json",
        "text/token_embedding",
        "text/layers/0/gdn/convolution",
        "text/layers/2/moe/routed_down",
        "text/draft_head_token_ids",
        "dflash/final_norm",
    ],
)
def test_one_changed_byte_is_found(tmp_path: Path, name: str) -> None:
    path = tmp_path / "changed.ninfer"
    shutil.copy(artifact_path("tiny-moe"), path)
    with ArtifactReader.open(path) as reader:
        found = reader.find(name)
        assert found is not None
        position = reader.payload_start + found.offset + found.nbytes - 1
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)

    with pytest.raises(ArtifactError) as caught:
        verify(_options(), path)

    assert caught.value.object == name


def test_artifact_of_another_profile_is_refused() -> None:
    with pytest.raises(ArtifactError, match="tiny-moe bf16"):
        verify(_options("groupwise-int"), artifact_path("tiny-moe", "bf16"))


def test_artifact_without_the_companion_is_refused() -> None:
    with pytest.raises(ArtifactError) as caught:
        verify(_options(), artifact_path("tiny-moe", has_draft=False))

    assert caught.value.object == "model/draft_config.json"
