"""The methods and operators a chat template may use, each checked before it runs.

Every check estimates the size of the result, or the time a slow search may take, from the sizes of
what goes in. Knows no filters and no messages. Source: the methods published templates rely on.
"""

import re
import string
from collections.abc import Callable, Iterable
from typing import Any, Final

from markupsafe import Markup

from ninfer.frontend.marked_text import MarkedText
from ninfer.frontend.template_budget import RenderBudget, RenderLimitExceeded

_MAX_EXPONENT: Final = 64
_MAX_WIDTH: Final = 1000
_MAX_SEARCH: Final = 1 << 28
_ESCAPED_CHARACTERS: Final = 6
_LINE_ENDS: Final = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_PERCENT: Final = re.compile(
    r"%(?:\([^()]*\))?[#0\- +]*(?P<width>\*|\d*)(?:\.(?P<precision>\*|\d*))?[hlL]?[^\d]"
)
# fmt: off
_TEXT_METHODS: Final = frozenset(
    (
        "capitalize", "casefold", "center", "count", "endswith", "find", "format", "format_map",
        "index", "join", "ljust", "lower", "lstrip", "partition", "removeprefix",
        "removesuffix", "replace", "rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip",
        "split", "splitlines", "startswith", "strip", "swapcase", "title", "upper", "zfill",
        "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower",
        "isnumeric", "isprintable", "isspace", "istitle", "isupper",
    )
)
# fmt: on
_METHODS: Final[tuple[tuple[type, frozenset[str]], ...]] = (
    (str, _TEXT_METHODS),
    (list, frozenset({"copy", "count", "index"})),
    (tuple, frozenset({"count", "index"})),
    (dict, frozenset({"copy", "get", "items", "keys", "values"})),
)
_REVERSE_SEARCHES: Final = frozenset({"rfind", "rindex", "rpartition", "rsplit"})
_STRIPS: Final = frozenset({"strip", "lstrip", "rstrip"})
_PADDINGS: Final = frozenset({"center", "ljust", "rjust", "zfill"})


def is_allowed_method(receiver: Any, name: str) -> bool:
    """Whether templates may call a method of a value."""
    return any(isinstance(receiver, kind) and name in names for kind, names in _METHODS)


def call_method(
    budget: RenderBudget,
    receiver: Any,
    method: Callable[..., Any],
    args: tuple[Any, ...],
    options: dict[str, Any],
) -> Any:
    """Call an allowed method.

    Raises:
        RenderLimitExceeded: its result would be too large, or it could take too long.
    """
    if isinstance(receiver, str):
        args = _checked_arguments(budget, receiver, method.__name__, args, options)
    result = method(*args, **options)
    if isinstance(receiver, list | dict) and method.__name__ == "copy":
        return budget.hold(result, budget.weight(receiver))
    if isinstance(receiver, str) and isinstance(result, list | tuple):
        for part in result:
            budget.hold(part)
        return budget.hold(result)
    return budget.hold(result) if isinstance(receiver, str) else result


def _checked_arguments(
    budget: RenderBudget,
    text: str,
    name: str,
    args: tuple[Any, ...],
    options: dict[str, Any],
) -> tuple[Any, ...]:
    values = (*args, *options.values())
    if isinstance(text, Markup):
        _check_markup(budget, text, values)
    if name == "join":
        return (_joinable(budget, text, args), *args[1:])
    if name == "replace" and len(args) > 1:
        check_replacement(budget, text, args[0], args[1], args[2] if len(args) > 2 else -1)
    elif name in _PADDINGS:
        budget.check_size(max(int(value) for value in values[:1]))
    elif name in _REVERSE_SEARCHES or name in _STRIPS:
        for value in values:
            if isinstance(value, str) and len(value) * len(text) > _MAX_SEARCH:
                raise RenderLimitExceeded(f"the method {name!r} would search for too long")
    if name in ("split", "rsplit"):
        _check_split(budget, text, values)
    elif name == "splitlines":
        budget.check_items(sum(map(text.count, _LINE_ENDS)) + 1)
    elif name == "title":
        budget.check_items(len(text))
    return args


def _check_markup(budget: RenderBudget, text: str, values: Iterable[Any]) -> None:
    size = len(text)
    for value in values:
        size += budget.weight(value)
    budget.check_size(size * _ESCAPED_CHARACTERS)


def _joinable(budget: RenderBudget, text: str, args: tuple[Any, ...]) -> list[Any]:
    items: list[Any] = []
    size = 0
    for item in budget.counted(budget.check_loop(args[0])):
        items.append(item)
        size += len(text) + (len(item) if isinstance(item, str) else 0)
        budget.check_size(size - len(text))
    return items


def _check_split(budget: RenderBudget, text: str, values: tuple[Any, ...]) -> None:
    separators = [value for value in values if isinstance(value, str) and value]
    most = [value for value in values if isinstance(value, int) and value >= 0]
    parts = text.count(separators[0]) if separators else len(text) // 2
    budget.check_items(min([parts, *most]) + 1)


def check_replacement(budget: RenderBudget, text: str, old: str, new: str, count: int) -> None:
    """Refuse a replacement with too large a result."""
    found = str.count(text, old)
    if count >= 0:
        found = min(found, count)
    budget.check_items(found)
    budget.check_size(len(text) + found * (len(new) - len(old)))


def check_formatting(budget: RenderBudget, text: str, values: Any) -> None:
    """Refuse a ``%`` formatting with too large a result."""
    fields = 0
    for match in _PERCENT.finditer(text):
        fields += 1
        for size in (match["width"], match["precision"]):
            if size and (size == "*" or len(size) > 4 or int(size) > _MAX_WIDTH):
                raise RenderLimitExceeded(f"a field is wider than {_MAX_WIDTH} characters")
    budget.check_items(fields)
    weight = budget.weight(values)
    is_each_once = isinstance(values, tuple)
    budget.check_size(len(text) + fields * _MAX_WIDTH + (1 if is_each_once else fields) * weight)


class FormatCall:
    """``format`` or ``format_map`` of one text; checks widths and size before it runs.

    Args:
        budget: the account of the rendering.
        text: the text with fields.
        formatter: what does the work.
    """

    __slots__ = ("_budget", "_formatter", "_text")

    def __init__(self, budget: RenderBudget, text: str, formatter: Callable[..., str]) -> None:
        self._budget = budget
        self._text = text
        self._formatter = formatter

    def __call__(self, *args: Any, **options: Any) -> str:
        """Format.

        Raises:
            RenderLimitExceeded: the result would be too large.
        """
        fields = 0
        for _, name, spec, _ in string.Formatter().parse(self._text):
            fields += name is not None
            for size in re.findall(r"\d+|\{", spec or ""):
                if size == "{" or len(size) > 4 or int(size) > _MAX_WIDTH:
                    raise RenderLimitExceeded(f"a field is wider than {_MAX_WIDTH} characters")
            self._budget.check_items(fields)
        weight = self._budget.weight(args) + self._budget.weight(options)
        self._budget.check_size(len(self._text) + fields * (_MAX_WIDTH + weight))
        text: str = self._budget.hold(self._formatter(*args, **options))
        return text


def check_operator(budget: RenderBudget, operator: str, left: Any, right: Any) -> None:
    """Refuse an operation whose result would be too large, or which could take too long."""
    for value in (left, right):
        if isinstance(value, int):
            budget.check_integer(value)
    match operator:
        case "+":
            _check_addition(budget, left, right)
        case "*":
            _check_repetition(budget, left, right)
            _check_repetition(budget, right, left)
        case "**" if isinstance(right, int) and abs(right) > _MAX_EXPONENT:
            raise RenderLimitExceeded(f"an exponent is over {_MAX_EXPONENT}")
        case "%" if isinstance(left, str):
            if isinstance(left, Markup):
                _check_markup(budget, left, (right,))
            check_formatting(budget, left, right)


def _check_addition(budget: RenderBudget, left: Any, right: Any) -> None:
    if isinstance(left, str) and isinstance(right, str):
        size = len(left) + len(right)
        if isinstance(left, Markup) or isinstance(right, Markup):
            size *= _ESCAPED_CHARACTERS
        budget.check_size(size)
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
        budget.check_items(len(left) + len(right))
        budget.check_size(budget.weight(left) + budget.weight(right))


def _check_repetition(budget: RenderBudget, value: Any, count: Any) -> None:
    if not isinstance(count, int) or count <= 0:
        return
    if isinstance(value, str):
        budget.check_size(len(value) * count)
        if isinstance(value, MarkedText) and value.spans != ((0, len(value)),):
            budget.check_items(len(value.spans) * count)
    elif isinstance(value, list | tuple):
        budget.check_items(len(value) * count)
        budget.check_size(budget.weight(value) * count)


def cut(budget: RenderBudget, value: Any, part: slice) -> Any:
    """Take a slice of a value."""
    result = value[part]
    if isinstance(value, list | tuple):
        return budget.hold(result, budget.weight(value))
    return budget.hold(result)
