"""The sandbox chat templates run in: what they may use, how long and how large they may get.

Everything a template writes itself becomes `MarkedText`: string constants and template data are
wrapped when the template is compiled, so provenance needs no cooperation of the template. Loops and
macros call ``tick`` first, which ends a template that runs too long. Knows nothing about messages.
Source: the globals and filters published templates rely on.
"""

import functools
import threading
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import TemplateAssertionError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner

from ninfer.frontend.marked_text import MarkedText, join_marked
from ninfer.frontend.template_budget import PieceBuffer, RenderBudget, RenderLimits
from ninfer.frontend.template_filters import (
    TemplateNamespace,
    TemplateRefusal,
    template_filters,
)
from ninfer.frontend.template_methods import (
    FormatCall,
    call_method,
    check_operator,
    cut,
    is_allowed_method,
)

_MAX_ARGUMENTS = 256
_SCOPES = frozenset({"_loop_vars", "_block_vars"})
_REFUSED_STATEMENTS = (
    nodes.Block,
    nodes.Extends,
    nodes.FromImport,
    nodes.Import,
    nodes.Include,
    nodes.EvalContextModifier,
)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Immutable sandbox with provenance and limits; safe to share between threads.

    Args:
        limits: bounds of each rendering.
        clock: seconds from any fixed point, never going back.
    """

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(self, limits: RenderLimits, clock: Callable[[], float]) -> None:
        self.code_generator_class = _MarkingCodeGenerator
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=[loopcontrols, _GenerationBlock],
        )
        self.mark = functools.lru_cache(maxsize=None)(MarkedText)
        self._limits = limits
        self._clock = clock
        self._rendering = threading.local()
        self.globals = {
            "cycler": Cycler,
            "dict": _dictionary,
            "joiner": Joiner,
            "namespace": _namespace,
            "raise_exception": _raise_exception,
            "range": self.globals["range"],
            "strftime_now": _refuse_the_clock,
        }
        self._callable_globals = frozenset(self.globals.values())
        self.filters = template_filters()

    @property
    def budget(self) -> RenderBudget:
        """The account of the rendering on this thread."""
        budget: RenderBudget = self._rendering.budget
        return budget

    def start_rendering(self) -> None:
        """Begin the account of one rendering on this thread."""
        self._rendering.budget = RenderBudget(self._limits, self._clock)

    def end_rendering(self) -> None:
        """Forget the account, and with it every value it kept."""
        del self._rendering.budget

    def tick(self) -> bool:
        """End the rendering when its time has passed; true otherwise.

        Raises:
            RenderLimitExceeded: the time has passed.
        """
        self.budget.tick()
        return True

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Evaluate an operator that could make something huge out of something small."""
        budget = self.budget
        check_operator(budget, operator, left, right)
        return budget.hold(super().call_binop(context, operator, left, right))

    def call(self, context: Context, function: Any, /, *args: Any, **options: Any) -> Any:
        """Call a macro, a listed function or a listed method."""
        budget = self.budget
        if len(args) + len(options) > _MAX_ARGUMENTS:
            raise TemplateRefusal(f"it passes more than {_MAX_ARGUMENTS} arguments")
        if isinstance(function, types.MethodType | types.BuiltinMethodType):
            receiver = function.__self__
            if is_allowed_method(receiver, function.__name__):
                own = {name: options[name] for name in options if name not in _SCOPES}
                return call_method(budget, receiver, function, args, own)
            if isinstance(receiver, Cycler | LoopContext):
                return super().call(context, function, *args, **options)
        elif isinstance(function, Macro | LoopContext | Undefined | FormatCall | Joiner) or (
            isinstance(function, type | types.FunctionType) and function in self._callable_globals
        ):
            return budget.hold(super().call(context, function, *args, **options))
        name = getattr(function, "__name__", type(function).__name__)
        raise TemplateRefusal(f"calling {name!r} is not available to chat templates")

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Wrap ``format`` of texts."""
        formatter = super().wrap_str_format(value)
        return formatter and FormatCall(self.budget, value.__self__, formatter)

    def concat(self, parts: Iterable[str]) -> str:
        """Join what the template writes, marks and size in view."""
        budget = self.budget
        kept = parts
        if not isinstance(parts, PieceBuffer):
            kept = PieceBuffer(budget)
            kept.extend(parts)
        text: str = budget.hold(join_marked(kept))
        return text

    def buffer(self) -> PieceBuffer:
        """Begin to collect what a macro or a block writes."""
        return PieceBuffer(self.budget)

    def text(self, value: Any) -> str:
        """Spell a value."""
        return self.budget.text(value)

    def literal(self, value: Any) -> Any:
        """Take a list, tuple or dict the template spells out into account."""
        return self.budget.hold(value)

    def loop(self, values: Any) -> Any:
        """Check what a loop goes through."""
        return self.budget.check_loop(values)

    def cut(self, value: Any, part: slice) -> Any:
        """Take a slice."""
        return cut(self.budget, value, part)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        for statement in template.find_all(_REFUSED_STATEMENTS):
            kind = type(statement).__name__.lower()
            raise TemplateAssertionError(
                f"{kind} is not available to chat templates", statement.lineno, name, filename
            )
        repeated: list[nodes.For | nodes.Macro | nodes.CallBlock] = [
            *template.find_all(nodes.For),
            *template.find_all(nodes.Macro),
            *template.find_all(nodes.CallBlock),
        ]
        for node in repeated:
            tick = nodes.ExprStmt(self._own("tick"))
            node.body.insert(0, tick.set_lineno(node.lineno).set_environment(self))
            if isinstance(node, nodes.For):
                node.iter = self._own("loop", node.iter)
                if node.test is not None:
                    test = nodes.And(self._own("tick"), node.test)
                    node.test = test.set_lineno(node.lineno).set_environment(self)
        return template

    def _own(self, name: str, *args: nodes.Node) -> nodes.Call:
        call = nodes.Call(nodes.EnvironmentAttribute(name), list(args), [], None, None)
        call.set_environment(self)
        return call


class _MarkingCodeGenerator(CodeGenerator):
    """Wraps every string the template spells out, and lets the environment see every value made."""

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:  # noqa: N802 - the base's name
        self.write(_marked_literal(node.as_const(frame.eval_ctx)))

    def visit_TemplateData(  # noqa: N802 - the base's name
        self, node: nodes.TemplateData, frame: Frame
    ) -> None:
        self.write(_marked_literal(node.data))

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 - see above
        self.write("environment.concat(map(environment.text, (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write(")))")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802 - see above
        self.write("environment.literal(")
        super().visit_List(node, frame)
        self.write(")")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802 - see above
        self.write("environment.literal(")
        super().visit_Dict(node, frame)
        self.write(")")

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802 - see above
        is_value = node.ctx == "load"
        self.write("environment.literal(" if is_value else "")
        super().visit_Tuple(node, frame)
        self.write(")" if is_value else "")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802 - see above
        if not isinstance(node.arg, nodes.Slice):
            super().visit_Getitem(node, frame)
            return
        self.write("environment.cut(")
        self.visit(node.node, frame)
        self.write(", slice(")
        for bound in (node.arg.start, node.arg.stop, node.arg.step):
            if bound is None:
                self.write("None")
            else:
                self.visit(bound, frame)
            self.write(", ")
        self.write("))")

    def visit_Call(  # noqa: N802 - see above
        self, node: nodes.Call, frame: Frame, forward_caller: bool = False
    ) -> None:
        if not isinstance(node.node, nodes.EnvironmentAttribute):
            super().visit_Call(node, frame, forward_caller=forward_caller)
            return
        self.write(f"environment.{node.node.name}(")
        for argument in node.args:
            self.visit(argument, frame)
        self.write(")")

    def buffer(self, frame: Frame) -> None:
        """Collect in a list that watches its size."""
        frame.buffer = self.temporary_identifier()
        self.writeline(f"{frame.buffer} = environment.buffer()")

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return _marked_literal("".join(group))

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if not isinstance(node, nodes.Const | nodes.TemplateData):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        self.write("environment.text(")


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


def _dictionary(*sources: Mapping[str, Any], **members: Any) -> dict[str, Any]:
    for source in sources:
        if not isinstance(source, Mapping):
            raise TemplateRefusal("'dict' takes mappings and keyword arguments only")
    return dict(*sources, **members)


def _namespace(*sources: Mapping[str, Any], **members: Any) -> TemplateNamespace:
    return TemplateNamespace(_dictionary(*sources, **members))
