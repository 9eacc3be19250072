"""Members of an Anthropic messages body other than the conversation itself.

What is a range or a spelling is checked here; what a model cannot do is the frontend's to say.
Source: the serving contract, section 9.
"""

from dataclasses import dataclass
from typing import Any, Final

from ninfer.errors import RequestError, UnsupportedFeature
from ninfer.gateway.gateway_settings import GatewaySettings
from ninfer.gateway.json_fields import Fields
from ninfer.gateway.request_context import RequestContext
from ninfer.generation import CacheMode

MAX_MODEL_CHARACTERS: Final = 256
MAX_STOPS: Final = 16
MAX_STOP_CHARACTERS: Final = 256
MAX_CACHE_MARKERS: Final = 4
MAX_SESSION_CHARACTERS: Final = 512
LEAST_BUDGET_TOKENS: Final = 1024
EFFORTS: Final = ("minimal", "low", "medium", "high", "xhigh", "max")
_INT32_MAX: Final = (1 << 31) - 1
_HARMLESS: Final = (
    "metadata",
    "service_tier",
    "inference_geo",
    "speed",
    "diagnostics",
    "user_profile_id",
    "workspace_id",
)
_INSTEAD: Final = {
    "mcp_servers": "call the servers in the client and offer their functions in tools",
    "container": "this server executes nothing",
    "output_format": "use output_config.format",
    "functions": "use tools",
}


@dataclass(frozen=True, slots=True)
class ThinkingChoice:
    """What a body says about thinking.

    Attributes:
        is_enabled: None leaves it to the server and the template.
        is_asked: the body wants thinking, or leaves it to the template by name (``adaptive``).
        budget_tokens: None is unlimited.
        is_shown: False leaves the text out of the reply, and keeps its block and signature.
    """

    is_enabled: bool | None = None
    is_asked: bool = False
    budget_tokens: int | None = None
    is_shown: bool = True


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What ``tool_choice`` says."""

    is_offered: bool = True
    is_parallel: bool = True


class ReadingNotes:
    """What is noticed while a conversation is read.

    Explicit cache boundaries are checked, and have no effect of their own: a prefix is found
    whether marked or not.

    Attributes:
        ignored: paths of what was accepted without effect.
    """

    def __init__(self) -> None:
        self.ignored: list[str] = []
        self._num_markers = 0

    def note_marker(self, owner: Fields) -> None:
        """Check the marker of a block, tool or body, if it has one.

        Raises:
            RequestError: it is malformed, or one too many.
        """
        marker = owner.nested("cache_control")
        if marker is None:
            return
        if marker.choice("type", ("ephemeral",)) is None:
            raise marker.missing("type")
        marker.choice("ttl", ("5m", "1h"))
        self._num_markers += 1
        self.ignored.append(owner.path("cache_control"))
        if self._num_markers > MAX_CACHE_MARKERS:
            field = owner.path("cache_control")
            raise RequestError(
                f"{field} is one too many; allowed are {MAX_CACHE_MARKERS} in a request",
                field=field,
            )

    def note_leftover(self, owner: Fields) -> None:
        """List the members of an object that nobody has read."""
        self.ignored.extend(owner.path(name) for name in owner.unknown() if owner.has(name))


def read_model(fields: Fields, loaded: str) -> str:
    """Read the name that the reply echoes; it selects nothing."""
    name = fields.text("model", shortest=1, longest=MAX_MODEL_CHARACTERS)
    return loaded if name is None else name


def read_thinking(
    fields: Fields, context: RequestContext, max_tokens: int | None
) -> ThinkingChoice:
    """Read ``thinking``.

    Args:
        fields: the body.
        context: gets what was accepted without effect.
        max_tokens: output budget; None when the request has none.

    Raises:
        RequestError: a member is invalid, or the budget is not below ``max_tokens``.
    """
    thinking = fields.nested("thinking")
    if thinking is None:
        return ThinkingChoice()
    kind = thinking.choice("type", ("enabled", "disabled", "adaptive"))
    if kind is None:
        raise thinking.missing("type")
    budget = thinking.integer("budget_tokens", 0, _INT32_MAX)
    is_shown = thinking.choice("display", ("summarized", "omitted")) != "omitted"
    context.ignored.extend(thinking.path(name) for name in thinking.unknown())
    field = thinking.path("budget_tokens")
    if kind != "enabled":
        if budget is not None:
            raise RequestError(
                f"{field} goes with the type enabled only",
                code="conflicting_parameters",
                field=field,
            )
        is_off = kind == "disabled"
        return ThinkingChoice(False if is_off else None, is_asked=not is_off, is_shown=is_shown)
    if budget is None:
        raise thinking.missing("budget_tokens")
    limit = _INT32_MAX if max_tokens is None else max_tokens - 1
    if not LEAST_BUDGET_TOKENS <= budget <= limit:
        named = "max_tokens" if max_tokens is None else f"max_tokens, which is {max_tokens}"
        raise RequestError(
            f"{field} is {budget}; it must be at least {LEAST_BUDGET_TOKENS} and less than {named}",
            field=field,
        )
    return ThinkingChoice(True, is_asked=True, budget_tokens=budget, is_shown=is_shown)


def read_tool_choice(fields: Fields) -> ToolUse:
    """Read ``tool_choice``.

    Raises:
        RequestError: a member is invalid.
        UnsupportedFeature: a choice that would constrain the output.
    """
    choice = fields.nested("tool_choice")
    if choice is None:
        return ToolUse()
    kind = choice.choice("type", ("auto", "none", "any", "tool"))
    if kind is None:
        raise choice.missing("type")
    if kind in ("any", "tool"):
        raise UnsupportedFeature(
            f"tool_choice {kind} is not supported yet; use auto or none", field="tool_choice"
        )
    is_single = bool(choice.boolean("disable_parallel_tool_use"))
    return ToolUse(is_offered=kind == "auto", is_parallel=not is_single)


def read_effort(fields: Fields, context: RequestContext) -> str | None:
    """Read ``output_config.effort``."""
    config = fields.nested("output_config")
    if config is None:
        return None
    effort = config.choice("effort", EFFORTS)
    config.raw("format")
    context.ignored.extend(config.path(name) for name in config.unknown())
    return effort


def read_stop_sequences(fields: Fields) -> tuple[str, ...]:
    """Read ``stop_sequences``."""
    fields.items("stop_sequences")
    return fields.strings("stop_sequences", most=MAX_STOPS, longest=MAX_STOP_CHARACTERS)


def read_cache(
    fields: Fields, session_header: str | None, cache_header: str | None
) -> tuple[CacheMode, str | None]:
    """Read whether the request joins the cache, and the hint which requests belong together."""
    mode = fields.choice("cache", ("on", "off"))
    if mode is None and cache_header is not None:
        mode = Fields({"x-ninfer-cache": cache_header}).choice("x-ninfer-cache", ("on", "off"))
    is_usable = session_header is not None and 1 <= len(session_header) <= MAX_SESSION_CHARACTERS
    return (
        CacheMode.DISABLED if mode == "off" else CacheMode.READ_WRITE,
        session_header if is_usable else None,
    )


def settle_members(fields: Fields, context: RequestContext, settings: GatewaySettings) -> None:
    """Refuse what is not offered, and list what is accepted without effect.

    Raises:
        UnsupportedFeature: the message names what to use instead.
        RequestError: ``unknown_parameter``, when the server is strict.
    """
    for name, instead in _INSTEAD.items():
        if _is_wanted(fields.raw(name)):
            raise UnsupportedFeature(f"{name} is not supported; {instead}", field=name)
    context.ignored.extend(name for name in _HARMLESS if fields.has(name))
    unknown = fields.unknown()
    if unknown and settings.is_strict:
        raise RequestError(
            f"{unknown[0][:64]} is not a field of this endpoint",
            code="unknown_parameter",
            field=unknown[0][:64],
        )
    context.ignored.extend(unknown)


def _is_wanted(value: Any) -> bool:
    return value is not None and value != [] and value != {}
