"""Sampling values of a request body, and what they mean over the defaults.

Precedence: ``--greedy``, the request, the process's flags, the preset of model and mode. Shared by
every protocol; ranges are those of `SamplingParams`. Source: the serving contract, section 4.
"""

import secrets
from typing import Any

from ninfer.errors import RequestError
from ninfer.gateway.gateway_settings import GatewaySettings, SamplingChoices
from ninfer.gateway.json_fields import Fields
from ninfer.generation import SamplingParams, number_text

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


def effective_sampling(
    asked: SamplingChoices, preset: SamplingParams, settings: GatewaySettings
) -> SamplingParams:
    """Lay the request over the process's flags and those over a preset.

    Without a seed a fresh one is drawn, so that every reply can name the seed it used.
    """

    def chosen(name: str) -> Any:
        for value in (getattr(asked, name), getattr(settings.sampling, name)):
            if value is not None:
                return value
        return getattr(preset, name)

    seed = asked.seed if asked.seed is not None else settings.sampling.seed
    is_greedy = settings.is_greedy
    return SamplingParams(
        temperature=0.0 if is_greedy else chosen("temperature"),
        top_p=chosen("top_p"),
        top_k=chosen("top_k"),
        min_p=chosen("min_p"),
        presence_penalty=0.0 if is_greedy else chosen("presence_penalty"),
        frequency_penalty=0.0 if is_greedy else chosen("frequency_penalty"),
        seed=secrets.randbits(63) if seed is None else seed,
    )


def read_sampling(fields: Fields, vocabulary: int, *, hottest: float = 2.0) -> SamplingChoices:
    """Read the sampling members of a body.

    Args:
        fields: the body.
        vocabulary: number of addressable ids, the largest ``top_k``.
        hottest: largest temperature of the protocol.

    Raises:
        RequestError: a value has the wrong type or range.
    """
    repetition = fields.number("repetition_penalty", 0.0, 1e9)
    if repetition is not None and repetition != 1.0:
        raise RequestError(
            f"repetition_penalty is {number_text(repetition)}; only 1 is supported, use "
            "presence_penalty or frequency_penalty",
            code="unsupported_value",
            field=fields.path("repetition_penalty"),
        )
    return SamplingChoices(
        temperature=fields.number("temperature", 0.0, hottest),
        top_p=fields.number("top_p", 0.0, 1.0),
        top_k=fields.integer("top_k", -1, vocabulary),
        min_p=fields.number("min_p", 0.0, 1.0),
        presence_penalty=fields.number("presence_penalty", -2.0, 2.0),
        frequency_penalty=fields.number("frequency_penalty", -2.0, 2.0),
        seed=fields.integer("seed", _INT64_MIN, _INT64_MAX),
    )
