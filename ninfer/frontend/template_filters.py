"""The filters a chat template may use, each checked before it runs.

A filter that is not listed here can be compiled, so that a template which never reaches it still
works, and refuses by name when it is reached. Knows nothing about messages. Source: the filters of
the template language that published templates rely on.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn, Protocol

from jinja2.exceptions import TemplateError
from jinja2.filters import FILTERS
from jinja2.runtime import Context
from jinja2.utils import Namespace, _PassArg, pass_context

from ninfer.frontend.marked_text import join_marked, replace_marked
from ninfer.frontend.template_budget import RenderBudget, RenderLimitExceeded
from ninfer.frontend.template_json import write_json
from ninfer.frontend.template_methods import check_formatting, check_replacement

MAX_ARGUMENT: Final = 1000
_MAX_DIGITS: Final = 4300
_ESCAPED_CHARACTERS: Final = 6
_AS_IT_IS: Final = ("abs", "attr", "count", "d", "default", "first", "items", "last", "length")
_TEXT: Final = ("capitalize", "lower", "safe", "string", "trim", "truncate", "upper")
_SEQUENCE: Final = ("list", "map", "max", "min", "reject", "rejectattr", "select", "selectattr")
_NUMBER: Final = ("float", "int", "round")


class TemplateRefusal(TemplateError):
    """The template called ``raise_exception``, or asked for something it cannot have."""


class _Guard(Protocol):
    """Checks the arguments of a filter and returns the value it shall get."""

    def __call__(
        self, budget: RenderBudget, value: Any, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        """Check."""


class TemplateNamespace(Namespace):
    """A namespace whose spelling does not spell its members."""

    def __repr__(self) -> str:
        return "<Namespace>"


def template_filters() -> dict[str, Callable[..., Any]]:
    """Get every filter of the language by name, checked or refused."""
    guards: dict[str, _Guard] = {
        **dict.fromkeys(_AS_IT_IS, _as_it_is),
        **dict.fromkeys(_TEXT, _text),
        **dict.fromkeys(_SEQUENCE, _sequence),
        **dict.fromkeys(_NUMBER, _number),
        "dictsort": _sorting_members,
        "e": _escaping,
        "escape": _escaping,
        "format": _formatting,
        "indent": _indenting,
        "reverse": _reversing,
        "sort": _sorting,
        "sum": _adding,
        "title": _titling,
    }
    filters = {
        name: _checked(function, guards[name])
        if name in guards
        else pass_context(functools.partial(_refuse, f"the filter {name!r}"))
        for name, function in FILTERS.items()
    }
    return filters | {"join": _join, "replace": _replace, "tojson": _tojson}


def _refuse(what: str, *_args: object, **_options: object) -> NoReturn:
    raise TemplateRefusal(f"{what} is not available to chat templates")


def _checked(function: Callable[..., Any], guard: _Guard) -> Callable[..., Any]:
    passed = _PassArg.from_obj(function)

    @pass_context
    def checked(context: Context, value: Any, *args: Any, **options: Any) -> Any:
        budget = budget_of(context)
        if guard not in (_as_it_is, _formatting):
            _check_arguments(args, options)
        value = guard(budget, value, args, options)
        match passed:
            case _PassArg.context:
                result = function(context, value, *args, **options)
            case _PassArg.eval_context:
                result = function(context.eval_ctx, value, *args, **options)
            case _PassArg.environment:
                result = function(context.environment, value, *args, **options)
            case _:
                result = function(value, *args, **options)
        return budget.hold(result)

    return checked


def _check_arguments(args: tuple[Any, ...], options: dict[str, Any]) -> None:
    for argument in (*args[:1], *options.values()):
        if isinstance(argument, str) and len(argument) > MAX_ARGUMENT:
            raise RenderLimitExceeded(
                f"an argument of a filter is longer than {MAX_ARGUMENT} characters"
            )


def budget_of(context: Context) -> RenderBudget:
    """Get the account of the rendering a context belongs to."""
    budget: RenderBudget = context.environment.budget  # type: ignore[attr-defined]
    return budget


def _as_it_is(
    budget: RenderBudget, value: Any, args: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    return value


def _text(budget: RenderBudget, value: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    return budget.text(value)


def _titling(
    budget: RenderBudget, value: Any, args: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    text = budget.text(value)
    budget.check_items(len(text))
    return text


def _escaping(
    budget: RenderBudget, value: Any, args: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    if hasattr(value, "__html__"):
        return value
    text = budget.text(value)
    budget.check_size(len(text) + _ESCAPED_CHARACTERS * sum(map(text.count, "&<>'\"")))
    return text


def _sequence(
    budget: RenderBudget, value: Any, args: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    return budget.counted(budget.check_loop(value))


def _reversing(
    budget: RenderBudget, value: Any, args: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    if isinstance(value, str):
        return value
    if hasattr(type(value), "__reversed__") or hasattr(type(value), "__len__"):
        return budget.check_loop(value)
    return budget.counted(value)


def _sorting(
    budget: RenderBudget, value: Any, args: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    return budget.hold(list(budget.counted(budget.check_loop(value))))


def _sorting_members(
    budget: RenderBudget, value: Any, args: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    budget.check_size(budget.weight(value))
    return budget.check_loop(value)


def _adding(
    budget: RenderBudget, value: Any, args: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    for start in (*args[1:2], options.get("start", 0)):
        if not isinstance(start, int | float):
            raise TemplateRefusal("the filter 'sum' adds numbers only")
    return budget.counted(budget.check_loop(value))


def _number(
    budget: RenderBudget, value: Any, args: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    if isinstance(value, str) and len(value) > _MAX_DIGITS:
        raise RenderLimitExceeded(f"a number has more than {_MAX_DIGITS} digits")
    for argument in (*args, *options.values()):
        if isinstance(argument, int) and abs(argument) > MAX_ARGUMENT:
            raise RenderLimitExceeded(f"a precision is over {MAX_ARGUMENT}")
    return value


def _formatting(
    budget: RenderBudget, value: Any, args: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    text = budget.text(value)
    check_formatting(budget, text, options or args)
    return text


def _indenting(
    budget: RenderBudget, value: Any, args: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    text = budget.text(value)
    width = args[0] if args else options.get("width", 4)
    lines = sum(map(text.count, "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")) + 1
    budget.check_items(lines)
    budget.check_size(len(text) + lines * (len(width) if isinstance(width, str) else width))
    return text


@pass_context
def _join(
    context: Context,
    value: Iterable[Any],
    separator: str = "",
    attribute: str | int | None = None,
) -> str:
    budget = budget_of(context)
    joined: list[str] = []
    size = 0
    for item in budget.counted(budget.check_loop(value)):
        text = budget.text(item if attribute is None else item[attribute])
        if joined:
            joined.append(separator)
            size += len(separator)
        joined.append(text)
        size += len(text)
        budget.check_size(size)
    result: str = budget.hold(join_marked(joined))
    return result


@pass_context
def _replace(context: Context, value: Any, old: Any, new: Any, count: int | None = None) -> str:
    budget = budget_of(context)
    text, old, new = budget.text(value), budget.text(old), budget.text(new)
    limit = -1 if count is None else count
    check_replacement(budget, text, old, new, limit)
    result: str = budget.hold(replace_marked(text, old, new, limit))
    return result


@pass_context
def _tojson(
    context: Context,
    value: Any,
    *,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    budget = budget_of(context)
    budget.check_size(budget.weight(value))
    widths = [len(text) for text in (separators or ())]
    if indent is not None:
        widths.append(len(indent) if isinstance(indent, str) else indent)
    if any(width > MAX_ARGUMENT for width in widths):
        raise RenderLimitExceeded(f"an indentation or separator is over {MAX_ARGUMENT}")
    text = write_json(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        check_size=budget.check_size,
    )
    result: str = budget.hold(text)
    return result
