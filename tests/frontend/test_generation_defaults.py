"""The publisher's values of ``generation_config.json``."""

import json
from typing import Any

import pytest

from ninfer.errors import CheckpointError
from ninfer.frontend.generation_defaults import read_generation_defaults
from ninfer.generation import SamplingParams


@pytest.mark.parametrize(
    ("config", "sampling", "end_ids"),
    [
        ({}, SamplingParams(), set()),
        ({"eos_token_id": 3}, SamplingParams(), {3}),
        ({"eos_token_id": [3, 4], "top_k": 20}, SamplingParams(top_k=20), {3, 4}),
        ({"temperature": 0.6, "top_p": 1}, SamplingParams(temperature=0.6), set()),
        ({"temperature": 0.6, "do_sample": False}, SamplingParams(temperature=0.0), set()),
        ({"top_p": None}, SamplingParams(), set()),
    ],
)
def test_values_are_read(config: Any, sampling: SamplingParams, end_ids: set[int]) -> None:
    defaults = read_generation_defaults(json.dumps(config).encode())

    assert defaults.sampling == sampling
    assert defaults.end_ids == end_ids


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b'{"temperature": "hot"}', b'{"top_k": true}', b'{"eos_token_id": ["x"]}'],
)
def test_damaged_files_are_refused(data: bytes) -> None:
    with pytest.raises(CheckpointError):
        read_generation_defaults(data)
