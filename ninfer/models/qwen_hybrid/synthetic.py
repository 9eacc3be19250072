"""A registered model without a file: its contract, and what its weights are drawn from.

Made for measurement where weights cannot be had. Everything has the shapes, formats and order of a
real artifact's text part; values are random, of scales at which activations and logits stay finite
and routing is spread. Who draws the numbers, and where they lie, is not known here.
"""

from dataclasses import dataclass, replace
from typing import Final

from ninfer.errors import ConfigurationError
from ninfer.models.package import WEIGHTS_IDS
from ninfer.models.qwen_hybrid.binding import BoundModel
from ninfer.models.qwen_hybrid.inventory import ExpectedObject, ObjectGroup, inventory
from ninfer.models.qwen_hybrid.synthetic_tokenizer import synthetic_resources
from ninfer.models.registry import lookup, model_ids

UNADDRESSED_ROWS: Final = 243
"""Rows of a published vocabulary that no token has; small vocabularies have none."""

_WHOLE_VOCABULARY: Final = 4096
_LOGIT_SPREAD: Final = 3.0


@dataclass(frozen=True, slots=True)
class Normal:
    """Independent normal values with mean 0."""

    deviation: float


@dataclass(frozen=True, slots=True)
class Uniform:
    """Independent values between two bounds."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Constant:
    """One value everywhere."""

    value: float


Spread = Normal | Uniform | Constant


def synthetic_model(model_id: str, weights_id: str) -> BoundModel:
    """Return the contract of a registered model, as if an artifact of it had been bound.

    Only the text group exists. The tokenizer is made up, and as large as the published one.

    Raises:
        ConfigurationError: no such model or profile.
    """
    try:
        package = lookup(model_id)
    except KeyError as error:
        raise ConfigurationError(
            f"model is {model_id[:64]!r}; registered are {', '.join(model_ids())}", field="model"
        ) from error
    if weights_id not in package.weights_ids:
        raise ConfigurationError(
            f"profile is {weights_id[:64]!r}; allowed is {', '.join(sorted(WEIGHTS_IDS))}",
            field="profile",
        )
    geometry = replace(package.expected_geometry, has_mtp=False, vision=None, draft=None)
    rows = geometry.vocab_rows
    addressable = rows if rows <= _WHOLE_VOCABULARY else rows - UNADDRESSED_ROWS
    objects = inventory(package, geometry, weights_id, addressable)
    return BoundModel(
        package=package,
        geometry=geometry,
        weights_id=weights_id,
        addressable_tokens=addressable,
        resources=synthetic_resources(addressable),
        objects={ObjectGroup.TEXT: tuple(o for o in objects if o.group is ObjectGroup.TEXT)},
    )


def spread_of(stored: ExpectedObject) -> Spread:
    """What the values of an object are drawn from.

    A product of a normalised column keeps the scale 1, the head makes logits of a usual spread
    (and so does a tied one, hence the small embeddings), decay rates and their biases lie in the
    range of a freshly initialised mixer.
    """
    name = stored.name.rpartition("/")[2]
    match name:
        case "token_embedding" | "output_head":
            return Normal(_LOGIT_SPREAD * stored.shape[1] ** -0.5)
        case "router_shared_gate":
            return Normal(2.0 * stored.shape[1] ** -0.5)
        case "a_log":
            return Uniform(-2.0, 2.7)  # logarithms of rates up to 16
        case "dt_bias":
            return Uniform(-4.0, 1.0)
        case "convolution":
            return Normal(0.5)
        case "norm":
            return Constant(1.0)
        case _ if name.endswith("_norm"):
            return Constant(0.0)
        case _:
            return Normal(stored.shape[-1] ** -0.5)
