"""Members that chat and text completions share: model, stream, limits, and what is not offered.

Source: the serving contract, sections 4 and 4.6.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ninfer.errors import RequestError, UnsupportedFeature
from ninfer.gateway.gateway_settings import GatewaySettings
from ninfer.gateway.json_fields import Fields
from ninfer.gateway.message_notes import BREAKPOINT_LIFETIMES
from ninfer.gateway.request_context import RequestContext
from ninfer.generation import CacheMode, shown

MAX_STOPS: Final = 4
MAX_STOP_CHARACTERS: Final = 256
MAX_CACHE_KEY_CHARACTERS: Final = 512
_INT32_MAX: Final = (1 << 31) - 1
_HARMLESS: Final = ("user", "metadata", "safety_identifier", "service_tier", "prediction")
_INSTEAD: Final[Mapping[str, str]] = {
    "audio": "this server answers in text",
    "web_search_options": "offer a search function in tools",
    "functions": "use tools",
    "function_call": "use tool_choice",
    "guided_json": "use structured_outputs.json",
    "guided_regex": "use structured_outputs.regex",
    "guided_choice": "use structured_outputs.choice",
    "guided_grammar": "use structured_outputs.grammar",
    "guided_decoding_backend": "there is one backend",
    "guided_whitespace_pattern": "structured output is compact",
    "grammar": "use structured_outputs.grammar",
    "best_of": "send several requests with different seeds",
    "echo": "join the prompt and the answer yourself",
    "suffix": "put the text behind the gap into the prompt",
}


@dataclass(frozen=True, slots=True)
class StreamChoice:
    """Whether the reply is streamed, and with usage."""

    is_stream: bool
    has_usage: bool


@dataclass(frozen=True, slots=True)
class RequestHeaders:
    """Headers that say something about a generation request."""

    session_id: str | None = None
    cache: str | None = None


def check_model(fields: Fields, model_id: str, settings: GatewaySettings) -> None:
    """Refuse a model that is not the loaded one.

    Raises:
        RequestError: ``model_not_found``.
    """
    name = fields.text("model")
    if name is not None and name not in {"default", model_id} | settings.model_aliases:
        raise RequestError(
            f"model {shown(name)} does not exist; this server has {model_id}",
            code="model_not_found",
            field="model",
        )


def read_stream(fields: Fields) -> StreamChoice:
    """Read ``stream`` and ``stream_options``.

    Raises:
        RequestError: options without a stream, or a wrong type.
    """
    is_stream = bool(fields.boolean("stream"))
    options = fields.nested("stream_options")
    if options is None:
        return StreamChoice(is_stream, has_usage=not is_stream)
    has_usage = bool(options.boolean("include_usage"))
    if not is_stream:
        raise RequestError(
            "stream_options needs stream to be true",
            code="conflicting_parameters",
            field="stream_options",
        )
    return StreamChoice(is_stream, has_usage)


def read_max_tokens(fields: Fields, names: tuple[str, ...], default: int) -> int:
    """Read an output budget that may be spelled in several ways.

    Raises:
        RequestError: the spellings disagree, or a value is out of range.
    """
    values = {name: fields.integer(name, 0, _INT32_MAX) for name in names}
    given = {name: value for name, value in values.items() if value is not None}
    if len(set(given.values())) > 1:
        raise RequestError(
            " and ".join(f"{name} {value}" for name, value in given.items()) + " contradict",
            code="conflicting_parameters",
            field=next(iter(given)),
        )
    return next(iter(given.values()), default)


def read_stops(fields: Fields, name: str) -> tuple[str, ...]:
    """Read stop strings."""
    return fields.strings(name, most=MAX_STOPS, longest=MAX_STOP_CHARACTERS)


def read_cache_members(
    fields: Fields, context: RequestContext, headers: RequestHeaders
) -> tuple[CacheMode, str | None]:
    """Read whether the request joins the cache, and the hint which requests belong together.

    The hint and the boundaries that a client proposes have no effect yet: listed as ignored.

    Raises:
        RequestError: a member has the wrong type or value.
    """
    key = fields.text("prompt_cache_key", shortest=1, longest=MAX_CACHE_KEY_CHARACTERS)
    options = fields.nested("prompt_cache_options")
    if options is not None:
        options.choice("mode", ("implicit", "explicit"))
        options.choice("ttl", BREAKPOINT_LIFETIMES)
    fields.choice("prompt_cache_retention", ("in_memory", "in-memory", "24h"))
    names = ("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention")
    context.ignored.extend(name for name in names if fields.has(name))
    session_id = headers.session_id
    if key is None and session_id is not None and len(session_id) <= MAX_CACHE_KEY_CHARACTERS:
        key = session_id
    mode = fields.choice("cache", ("on", "off"))
    if mode is None and headers.cache is not None:
        mode = Fields({"x-ninfer-cache": headers.cache}).choice("x-ninfer-cache", ("on", "off"))
    return CacheMode.DISABLED if mode == "off" else CacheMode.READ_WRITE, key


def refuse_what_is_not_offered(fields: Fields) -> None:
    """Refuse members whose effect does not exist here.

    Raises:
        UnsupportedFeature: the message names what to use instead.
        RequestError: a member has the wrong type.
    """
    for name, instead in _INSTEAD.items():
        if fields.has(name):
            raise UnsupportedFeature(f"{name} is not supported; {instead}", field=name)
    count = fields.integer("n", 1, _INT32_MAX)
    if count is not None and count != 1:
        raise _unsupported_value("n", count, "1")
    if fields.integer("min_tokens", 0, _INT32_MAX):
        raise UnsupportedFeature("min_tokens is not supported yet", field="min_tokens")
    _check_logit_bias(fields)


def note_harmless(fields: Fields, context: RequestContext) -> None:
    """Accept members that cannot change the output, and say that they had no effect.

    Raises:
        RequestError: a member asks for something that would change it.
    """
    if fields.boolean("store"):
        raise UnsupportedFeature("store is true; nothing is kept here", field="store")
    verbosity = fields.text("verbosity")
    if verbosity not in (None, "medium"):
        raise _unsupported_value("verbosity", verbosity, "medium")
    modalities = fields.items("modalities")
    if modalities not in (None, ["text"]):
        raise _unsupported_value("modalities", modalities, '["text"]')
    names = (*_HARMLESS, "store", "verbosity", "modalities")
    context.ignored.extend(name for name in names if fields.has(name))


def settle_unknown(fields: Fields, context: RequestContext, *, is_strict: bool) -> None:
    """Ignore what is left of a body, and say so; or refuse it.

    Raises:
        RequestError: ``unknown_parameter``, when the server is strict.
    """
    unknown = fields.unknown()
    if unknown and is_strict:
        raise RequestError(
            f"{shown(unknown[0])} is not a field of this endpoint",
            code="unknown_parameter",
            field=unknown[0][:64],
        )
    context.ignored.extend(unknown)


def _check_logit_bias(fields: Fields) -> None:
    bias = fields.nested("logit_bias")
    if bias is None:
        return
    for name in bias.unknown():
        if bias.number(name, -100.0, 100.0):
            raise UnsupportedFeature("logit_bias is not supported yet", field="logit_bias")


def _unsupported_value(field: str, value: object, allowed: str) -> RequestError:
    return RequestError(
        f"{field} is {shown(value)}; only {allowed} is supported",
        code="unsupported_value",
        field=field,
    )
