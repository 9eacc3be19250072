"""The sandbox chat templates run in: what they may use, how long and how large they may get.

Everything a template writes itself becomes `MarkedText`: string constants and template data are
wrapped when the template is compiled, so provenance needs no cooperation of the template. Loops and
macros call ``tick`` first, which ends a template that runs too long. Knows nothing about messages.
Source: the globals and filters published templates rely on.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ninfer.frontend.marked_text import MarkedText, join_marked, replace_marked
from ninfer.frontend.template_json import write_json

_MAX_EXPONENT = 64


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """Bounds of one rendering: characters of any text it builds, and seconds it takes."""

    max_characters: int = 1 << 25
    max_seconds: float = 10.0


class RenderLimitExceeded(TemplateError):
    """A rendering passed one of its limits."""


class TemplateRefusal(TemplateError):
    """The template called ``raise_exception``, or asked for something it cannot have."""


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Immutable sandbox with provenance and limits; safe to share between threads.

    Args:
        limits: bounds of each rendering.
        clock: seconds from any fixed point, never going back.
    """

    intercepted_binops = frozenset(["*", "**"])

    def __init__(self, limits: RenderLimits, clock: Callable[[], float]) -> None:
        self.code_generator_class = _MarkingCodeGenerator
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock]
        )
        self.mark = MarkedText
        self._limits = limits
        self._clock = clock
        self._deadline = threading.local()
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _refuse_the_clock}
        self.filters |= {"tojson": write_json, "join": _join, "replace": _replace}

    def start_clock(self) -> None:
        """Begin the time of one rendering on this thread."""
        self._deadline.at = self._clock() + self._limits.max_seconds

    def tick(self) -> None:
        """End the rendering when its time has passed.

        Raises:
            RenderLimitExceeded: the time has passed.
        """
        if self._clock() > self._deadline.at:
            raise RenderLimitExceeded(f"it ran longer than {self._limits.max_seconds:g} s")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Evaluate an operator that could make something huge out of something small."""
        if operator == "**" and isinstance(right, int) and abs(right) > _MAX_EXPONENT:
            raise RenderLimitExceeded(f"an exponent is over {_MAX_EXPONENT}")
        for repeated, count in ((left, right), (right, left)):
            if isinstance(repeated, str | list | tuple) and isinstance(count, int):
                self._check_size(len(repeated) * max(count, 0))
        return super().call_binop(context, operator, left, right)

    def concat(self, parts: Iterable[str]) -> str:
        """Join what the template writes, marks and size in view."""
        kept: list[str] = []
        size = 0
        for part in parts:
            size += len(part)
            self._check_size(size)
            kept.append(part)
        return join_marked(kept)

    def _check_size(self, size: int) -> None:
        if size > self._limits.max_characters:
            raise RenderLimitExceeded(
                f"its text is longer than {self._limits.max_characters} characters"
            )

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        repeated: list[nodes.For | nodes.Macro | nodes.CallBlock] = [
            *template.find_all(nodes.For),
            *template.find_all(nodes.Macro),
            *template.find_all(nodes.CallBlock),
        ]
        for node in repeated:
            call = nodes.Call(nodes.EnvironmentAttribute("tick"), [], [], None, None)
            tick = nodes.ExprStmt(call).set_lineno(node.lineno).set_environment(self)
            node.body.insert(0, tick)
        return template


class _MarkingCodeGenerator(CodeGenerator):
    """Wraps every string the template spells out."""

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:  # noqa: N802 - the base's name
        self.write(_marked_literal(node.as_const(frame.eval_ctx)))

    def visit_TemplateData(  # noqa: N802 - the base's name
        self, node: nodes.TemplateData, frame: Frame
    ) -> None:
        self.write(_marked_literal(node.data))

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 - see above
        self.write("environment.concat(map(str, (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write(")))")

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return _marked_literal("".join(group))


class _GenerationBlock(Extension):
    """``{% generation %}``: marks text for training tools; renders as its body."""

    tags = {"generation"}  # noqa: RUF012 - the base wants a mutable set

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Replace the block by its body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _marked_literal(value: Any) -> str:
    match value:
        case str():
            return f"environment.mark({str.__str__(value)!r})"
        case tuple():
            return "(" + "".join(_marked_literal(item) + ", " for item in value) + ")"
        case list():
            return "[" + ", ".join(map(_marked_literal, value)) + "]"
        case dict():
            members = (f"{_marked_literal(k)}: {_marked_literal(v)}" for k, v in value.items())
            return "{" + ", ".join(members) + "}"
        case float():
            return str(value)
        case _:
            return repr(value)


def _raise_exception(message: object = "") -> NoReturn:
    raise TemplateRefusal(str(message))


def _refuse_the_clock(form: object = "") -> NoReturn:
    raise TemplateRefusal("it asks for the time of day, so its prompts could not be reproduced")


def _join(value: Iterable[Any], separator: str = "", attribute: str | int | None = None) -> str:
    items = list(value)
    if attribute is not None:
        items = [item[attribute] for item in items]
    joined: list[str] = []
    for item in items:
        if joined:
            joined.append(separator)
        joined.append(str(item))
    return join_marked(joined)


def _replace(value: Any, old: str, new: str, count: int | None = None) -> str:
    return replace_marked(str(value), str(old), str(new), -1 if count is None else count)
