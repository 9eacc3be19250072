"""A model's chat template: conversation in, text with provenance out.

Renders exactly what the published template renders, and says which characters the template wrote
itself (see `marked_text`). Does not know tokens, sessions or how messages reach us. Source: the
model contract, section 3.9; the serving contract, section 6.1.
"""

import functools
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any, Final

from jinja2 import Template, TemplateError, meta

from ninfer.errors import CheckpointError, InvalidPrompt
from ninfer.frontend.marked_text import MarkedText
from ninfer.frontend.template_budget import RenderLimits
from ninfer.frontend.template_environment import TemplateEnvironment

_OWN_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
_MESSAGE_CHARACTERS = 200
_KEPT: Final = 8
"""Compiled templates that a process keeps for the next engine that has the same."""


class ChatTemplate:
    """One compiled template; immutable, safe to share between threads.

    Attributes:
        digest: SHA-256 of the source.
        variables: names a caller may set, besides messages, tools and the generation prompt.
    """

    def __init__(
        self,
        source: str,
        *,
        limits: RenderLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Compile a template.

        Raises:
            CheckpointError: the source is no template, whatever is wrong with it.
        """
        self._environment = TemplateEnvironment(limits or RenderLimits(), clock)
        try:
            code, used = _compiled(source)
            known = self._environment.make_globals(None)
            self._template = Template.from_code(self._environment, code, known)
        except TemplateError as error:
            raise CheckpointError(
                f"chat_template.jinja: {error}", field="chat_template.jinja"
            ) from error
        except Exception as error:
            # Source that nests, repeats or counts beyond what the compilers behind take.
            raise CheckpointError(
                f"chat_template.jinja: it cannot be compiled ({type(error).__name__})",
                field="chat_template.jinja",
            ) from error
        self.digest = hashlib.sha256(source.encode("utf-8", "surrogatepass")).digest()
        self.variables = used - _OWN_VARIABLES - frozenset(self._environment.globals)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> MarkedText:
        """Render a conversation given as plain template values.

        Raises:
            InvalidPrompt: the template raised, ran too long or wrote too much.
        """
        environment = self._environment
        environment.start_rendering()
        context = self._template.new_context(
            {
                **(variables or {}),
                "messages": messages,
                "tools": tools,
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
            }
        )
        try:
            text = environment.concat(self._template.root_render_func(context))
        except TemplateError as error:
            reason = str(error.message or type(error).__name__)[:_MESSAGE_CHARACTERS]
            raise InvalidPrompt(
                f"the chat template refuses this conversation: {reason}", field="messages"
            ) from error
        except Exception as error:
            raise InvalidPrompt(
                f"the chat template cannot render this conversation ({type(error).__name__})",
                field="messages",
            ) from error
        finally:
            environment.end_rendering()
        return text if isinstance(text, MarkedText) else MarkedText(text, ())


@functools.lru_cache(_KEPT)
def _compiled(source: str) -> tuple[CodeType, frozenset[str]]:
    """Code of a template, which runs in any environment, and names that it does not define."""
    environment = TemplateEnvironment(RenderLimits(), time.monotonic)
    used = meta.find_undeclared_variables(environment.parse(source))
    return environment.compile(source), frozenset(used)
