"""``generation_config.json``: end tokens and the publisher's sampling values.

Source: the model contract, section 3.8.
"""

import json
from dataclasses import dataclass
from typing import Any

from ninfer.errors import CheckpointError
from ninfer.generation import SamplingParams

_FILE = "generation_config.json"


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What the publisher recommends.

    Attributes:
        sampling: values for requests that name none; greedy when sampling is off.
        end_ids: tokens that end a turn.
    """

    sampling: SamplingParams
    end_ids: frozenset[int]


def read_generation_defaults(data: bytes) -> GenerationDefaults:
    """Read the file.

    Raises:
        CheckpointError: it is not a JSON object, or a value has the wrong type.
    """
    try:
        config = json.loads(data)
    except ValueError as error:
        raise CheckpointError(f"{_FILE} is not JSON: {error}", field=_FILE) from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{_FILE} is not a JSON object", field=_FILE)
    is_sampling = config.get("do_sample", True)
    sampling = SamplingParams(
        temperature=_number(config, "temperature", 1.0) if is_sampling else 0.0,
        top_p=_number(config, "top_p", 1.0),
        top_k=int(_number(config, "top_k", 0)),
        min_p=_number(config, "min_p", 0.0),
        presence_penalty=_number(config, "presence_penalty", 0.0),
        frequency_penalty=_number(config, "frequency_penalty", 0.0),
    )
    ends = config.get("eos_token_id")
    listed = ends if isinstance(ends, list) else [] if ends is None else [ends]
    if not all(isinstance(end, int) and not isinstance(end, bool) for end in listed):
        raise CheckpointError(f"{_FILE}: eos_token_id is {ends!r}", field="eos_token_id")
    return GenerationDefaults(sampling, frozenset(listed))


def _number(config: dict[str, Any], name: str, default: float) -> float:
    value = config.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CheckpointError(f"{_FILE}: {name} is {value!r}", field=name)
    return float(value)
