"""Damaged files: whatever the bytes are, only `ArtifactError` escapes and views stay inside."""

import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer.artifact.format import ArtifactCode, ArtifactError, TensorDescriptor
from ninfer.artifact.reader import ArtifactReader
from tests.support.artifact_files import PAYLOAD, example, example_root, frame, spell, split
from tests.support.golden import GOLDEN

SEEDS = [
    example(),
    (GOLDEN / "artifact" / "files" / "mixed.ninfer").read_bytes(),
    (GOLDEN / "artifact" / "files" / "unusual.ninfer").read_bytes(),
]
NASTY_LITERALS = [
    *(b"NaN", b"-0", b"1e999", b"true", b"null", b"{}", b"]", b"//", b"[[[[", b"9" * 5000),
    *(b"18446744073709551616", b"18446744073709551615", b'"\\ud800"', b'"a":1,"a":1'),
    *(b"\xff", b"\0", b"\xef\xbb\xbf"),
]
WORDS = ["tensor", "resource", "BF16", "Q4G64_F16S", "NVFP4", "raw-bytes-v1", "\ud800"]
NUMBERS = [0, 1, -1, 256, 528, 2**63, 2**64 - 1, 2**64, 10**4000, -(10**4000)]
PLAIN = (
    st.none()
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from([*WORDS, *NUMBERS])
)
JSON_VALUES = (
    PLAIN
    | st.lists(PLAIN | st.lists(PLAIN, max_size=2), max_size=3)
    | st.dictionaries(st.text(max_size=4), PLAIN, max_size=3)
)
FUZZ = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
LONG_FUZZ = settings(FUZZ, max_examples=10_000)


TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[0-9]+|.', re.DOTALL)


@st.composite
def damaged_bytes(draw: st.DrawFn) -> bytes:
    """A valid file with some bytes of prefix or directory changed, or cut short."""
    content = bytearray(draw(st.sampled_from(SEEDS)))
    reach = 16 + int.from_bytes(content[8:16], "little")
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, reach - 1) | st.integers(0, 15))
        content[at] = draw(st.integers(0, 255) | st.sampled_from(b'"\\,:{}[]0159 '))
    return bytes(content[: draw(st.just(len(content)) | st.integers(0, len(content)))])


def kind_of(token: bytes) -> bytes:
    """Numbers are alike, strings are alike, each sign is its own kind."""
    return b"0" if token.isdigit() else token[:1]


@st.composite
def damaged_texts(draw: st.DrawFn) -> bytes:
    """A file whose JSON has tokens replaced, doubled, removed or swapped for traps."""
    seed = draw(st.sampled_from(SEEDS))
    text, payload = split(seed)
    tokens = TOKEN.findall(text)
    words = [index for index, token in enumerate(tokens) if len(token) > 1]
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.sampled_from(words) | st.integers(0, len(tokens) - 1))
        alike = [token for token in tokens if kind_of(token) == kind_of(tokens[at])]
        new = draw(st.sampled_from([alike, alike, NASTY_LITERALS, [b"", tokens[at] * 2]]))
        tokens[at] = draw(st.sampled_from(new))
    return frame(b"".join(tokens), payload, version=seed[7])


@st.composite
def damaged_roots(draw: st.DrawFn) -> bytes:
    """A file whose JSON is well formed but has members of some objects replaced."""
    root: Any = copy.deepcopy(example_root())
    for _ in range(draw(st.integers(1, 2))):
        node: Any = draw(st.sampled_from([*root["objects"] * 3, root["identity"], root]))
        member = draw(st.sampled_from([*sorted(node) * 3, "x"]))
        near = st.integers(0, 1200) | st.lists(st.integers(1, 300), max_size=3)
        node[member] = draw(near | JSON_VALUES)
        if node is root:  # the next draw needs the objects that this may have replaced
            break
    return frame(spell(root), PAYLOAD)


def opened(content: bytes, path: Path) -> ArtifactReader | ArtifactError:
    """Open a file; any other exception fails the test."""
    path.write_bytes(content)
    try:
        return ArtifactReader.open(path)
    except ArtifactError as error:
        return error


def check(content: bytes, path: Path) -> None:
    """Open, and where that succeeds, look at every byte that the directory promises."""
    result = opened(content, path)
    if isinstance(result, ArtifactError):
        assert result.code in set(ArtifactCode)
        str(result).encode()  # messages never carry text that cannot be printed
        return
    with result as reader:
        end = 0
        for descriptor in reader.objects:
            view = reader.view(descriptor.name)
            start = reader.payload_start + descriptor.offset
            assert start >= end
            end = start + descriptor.nbytes
            assert end <= len(content)
            assert np.array_equal(view, np.frombuffer(content, np.uint8)[start:end])
            if isinstance(descriptor, TensorDescriptor):
                assert descriptor.geometry.payload_bytes == descriptor.nbytes


@FUZZ
@given(content=damaged_bytes())
def test_damaged_bytes_raise_only_artifact_errors(content: bytes, tmp_path: Path) -> None:
    check(content, tmp_path / "fuzz.ninfer")


@FUZZ
@given(content=damaged_texts())
def test_damaged_texts_raise_only_artifact_errors(content: bytes, tmp_path: Path) -> None:
    check(content, tmp_path / "fuzz.ninfer")


@FUZZ
@given(content=damaged_roots())
def test_damaged_directories_raise_only_artifact_errors(content: bytes, tmp_path: Path) -> None:
    check(content, tmp_path / "fuzz.ninfer")


@FUZZ
@given(content=st.binary(max_size=64), text=st.binary(max_size=64))
def test_arbitrary_bytes_raise_only_artifact_errors(
    content: bytes, text: bytes, tmp_path: Path
) -> None:
    check(content, tmp_path / "fuzz.ninfer")
    check(frame(text, PAYLOAD), tmp_path / "fuzz.ninfer")


@pytest.mark.slow
@LONG_FUZZ
@given(content=damaged_bytes() | damaged_texts() | damaged_roots())
def test_many_damaged_files_raise_only_artifact_errors(content: bytes, tmp_path: Path) -> None:
    check(content, tmp_path / "fuzz.ninfer")
