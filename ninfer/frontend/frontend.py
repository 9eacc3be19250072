"""The frontend of one model: messages or text in, prompt and output session out.

    Conversation -> checks -> chat template -> tokens: PreparedInput -> open_session
    text | ids ---------------------------------------^

Built from the resources an artifact carries; immutable afterwards and safe to share between
threads. Does not know requests, queues, devices or protocols. Source: design page, sections 2 and
4; the serving contract, sections 4 to 6.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ninfer.errors import CheckpointError, RequestError, UnsupportedFeature
from ninfer.frontend.chat_template import ChatTemplate
from ninfer.frontend.conversation import (
    Conversation,
    Role,
    ToolDefinition,
    checked_conversation,
)
from ninfer.frontend.generation_defaults import read_generation_defaults
from ninfer.frontend.grammar_compiler import GrammarCompiler, has_library
from ninfer.frontend.grammar_source import GrammarSource
from ninfer.frontend.output_constraint import CompiledGrammar
from ninfer.frontend.output_session import SessionSettings, TokenOutputSession
from ninfer.frontend.prompt_identity import (
    TURN_OPENER,
    boundaries_of,
    encode_marked,
    frontier_behind_tools,
    prompt_of,
)
from ninfer.frontend.prompt_rendering import render_conversation
from ninfer.frontend.resource_files import resource_file, template_source
from ninfer.frontend.template_traits import ends_in_thinking, probe_template
from ninfer.frontend.token_bound import check_length
from ninfer.frontend.tokenizer import Tokenizer, check_unicode
from ninfer.frontend.tool_arguments import ToolSignature
from ninfer.frontend.tool_calls import CallIds
from ninfer.generation import Channel, PreparedPrompt, checked_integer

_INT32_MAX = (1 << 31) - 1
_THINK_END = "</think>"
_CLOSING_TEXT = "\n\nThe thinking budget is used up, so I answer with what I have.\n"


@dataclass(frozen=True, slots=True)
class PromptOptions:
    """How a conversation is rendered; None leaves a choice to the template.

    Attributes:
        enable_thinking: whether the answer starts with a thinking block.
        preserve_thinking: whether thinking of closed turns stays in the prompt.
        reasoning_effort: ``none`` switches thinking off; others must be known to the template.
        template_variables: further variables the template declares.
        continues_final: leave the last message, an assistant's, open.
    """

    enable_thinking: bool | None = None
    preserve_thinking: bool | None = None
    reasoning_effort: str | None = None
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    continues_final: bool = False


@dataclass(frozen=True, slots=True)
class PreparedInput:
    """A prompt and what its output means.

    Attributes:
        prompt: owned tokens with their identity.
        text: the rendered text; None for a prompt given as ids.
        start: channel the output begins in, as the rendered prompt left it.
        tools: tools whose calls are parsed.
        is_chat: whether the chat template rendered it.
    """

    prompt: PreparedPrompt
    text: str | None
    start: Channel = Channel.CONTENT
    tools: tuple[ToolDefinition, ...] = ()
    is_chat: bool = False


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """How the output of one request is read.

    Attributes:
        stop, reasoning_stop: strings that end the request, in content and in thinking.
        ignore_eos: end tokens never end the request.
        thinking_budget: sampled tokens the thinking block may have; None is unlimited.
        parallel_tool_calls: False ends the request after the first complete call.
        call_ids: names the tool calls; None is a fresh random series.
        grammar: what the content has to be, from `Frontend.compile_grammar`; None is any text.

    Raises:
        RequestError: a value has the wrong type or range.
    """

    stop: tuple[str, ...] = ()
    reasoning_stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    thinking_budget: int | None = None
    parallel_tool_calls: bool = True
    call_ids: CallIds | None = None
    grammar: CompiledGrammar | None = None

    def __post_init__(self) -> None:
        if self.thinking_budget is not None:
            checked_integer("thinking_budget", self.thinking_budget, 0, _INT32_MAX)
        for name in ("stop", "reasoning_stop"):
            stops = getattr(self, name)  # of one string each character would stop
            if not isinstance(stops, tuple | list) or not all(isinstance(s, str) for s in stops):
                raise RequestError(
                    f"{name} must be a tuple of strings", code="invalid_type", field=name
                )


class Frontend:
    """Everything between text and tokens for one model.

    Args:
        resources: file contents by artifact name, ``frontend/tokenizer.json`` and so on.
        chat_template: source of a template to use instead of the artifact's.

    Attributes:
        tokenizer: text to ids and back.
        sampling_defaults: the publisher's sampling values.
        traits: what the chat template can do.
        stop_ids: tokens that end a turn.

    Raises:
        CheckpointError: a resource is missing or unusable.
    """

    def __init__(self, resources: Mapping[str, bytes], *, chat_template: str | None = None) -> None:
        self.tokenizer = Tokenizer(
            resource_file(resources, "tokenizer.json"),
            resource_file(resources, "tokenizer_config.json"),
        )
        defaults = read_generation_defaults(resource_file(resources, "generation_config.json"))
        self.sampling_defaults = defaults.sampling
        self.stop_ids = self._known_ids(defaults.end_ids)
        source = template_source(resources) if chat_template is None else chat_template
        self._template = ChatTemplate(source)
        self._variables = self.tokenizer.template_variables
        self.traits = probe_template(self._template, self.tokenizer, self._variables)
        self._think_end = self.tokenizer.find_added(_THINK_END)
        self._grammars = GrammarCompiler(self.tokenizer, self.stop_ids)

    @property
    def has_thinking(self) -> bool:
        """Whether an answer of this model can start with a thinking block."""
        is_switchable = "enable_thinking" in self._template.variables
        return self._think_end is not None and (self.traits.opens_thinking or is_switchable)

    @property
    def has_structured_output(self) -> bool:
        """Whether this installation can constrain answers."""
        return has_library()

    def prepare(
        self,
        conversation: Conversation,
        options: PromptOptions | None = None,
        *,
        max_tokens: int | None = None,
    ) -> PreparedInput:
        """Render and encode a conversation.

        A prompt far over ``max_tokens`` is refused before the work, others by `output_room`.

        Raises:
            ContextLengthExceeded: its length shows that it has more than ``max_tokens``.
            RequestError: a field is invalid; `InvalidPrompt` when the template refuses.
            UnsupportedFeature: the template lacks an ability that was asked for.
        """
        options = options or PromptOptions()
        conversation = checked_conversation(conversation)
        if options.continues_final and self._asks_thinking(options):
            raise RequestError(
                "a final assistant message is continued only with thinking off",
                code="conflicting_parameters",
                field="enable_thinking",
            )
        variables = self._variables | self._switches(options)
        rendered = render_conversation(
            self._template, conversation, variables, continues_final=options.continues_final
        )
        check_length(self.tokenizer.least_tokens(rendered.prompt), max_tokens, is_bound=True)
        encoded = encode_marked(self.tokenizer, rendered.prompt)
        first = conversation.messages[0]
        has_system_behind_tools = conversation.offered_tools and first.role is Role.SYSTEM
        boundaries = boundaries_of(
            encoded,
            rendered.next_turn,
            self.tokenizer.find_added(TURN_OPENER),
            behind_tools=frontier_behind_tools(self.tokenizer, encoded, first.text)
            if has_system_behind_tools
            else None,
        )
        is_thinking = self._think_end is not None and ends_in_thinking(rendered.prompt)
        return PreparedInput(
            prompt_of(encoded.token_ids, "chat", boundaries),
            encoded.text,
            Channel.THINKING if is_thinking else Channel.CONTENT,
            conversation.offered_tools,
            is_chat=True,
        )

    def prepare_raw(
        self, text: str, *, parse_special: bool = False, max_tokens: int | None = None
    ) -> PreparedInput:
        """Encode a text as it is: no template, no channels; ``max_tokens`` as in `prepare`.

        Raises:
            ContextLengthExceeded: as in `prepare`.
            RequestError: the text is empty or holds a lone surrogate.
        """
        check_unicode(text, "prompt")
        check_length(self.tokenizer.least_tokens(text), max_tokens, is_bound=True)
        token_ids = self.tokenizer.encode(text, parse_special=parse_special)
        return PreparedInput(prompt_of(token_ids, "raw"), text)

    def prepare_tokens(self, token_ids: Sequence[int]) -> PreparedInput:
        """Take a prompt that is already ids: no template, no channels.

        Raises:
            RequestError: there are none, or one is not addressable.
        """
        for index, token_id in enumerate(token_ids):
            self.tokenizer.check_id(token_id, f"prompt[{index}]")
        return PreparedInput(prompt_of(token_ids, "raw"), None)

    def open_session(
        self, prepared: PreparedInput, options: OutputOptions | None = None
    ) -> TokenOutputSession:
        """Begin reading the output of one request.

        Raises:
            RequestError: a stop string is empty or no text, or the options contradict.
            UnsupportedFeature: a grammar together with tools.
        """
        options = options or OutputOptions()
        _check_grammar(prepared, options)
        _check_stops(options.stop, "stop")
        _check_stops(options.reasoning_stop, "reasoning_stop")
        budget = options.thinking_budget
        signatures = [ToolSignature.of(tool.name, tool.parameters) for tool in prepared.tools]
        settings = SessionSettings(
            start=prepared.start,
            stop_ids=self.stop_ids,
            think_end=self._think_end,
            tools={signature.name: signature for signature in signatures},
            stops=options.stop,
            reasoning_stops=options.reasoning_stop,
            ignores_end=options.ignore_eos,
            max_calls=None if options.parallel_tool_calls else 1,
            thinking_budget=budget,
            forced_close=() if budget is None else self.forced_close(budget),
            call_ids=options.call_ids or CallIds(secrets.token_bytes(16)),
            grammar=options.grammar,
        )
        return TokenOutputSession(settings, self.tokenizer)

    def compile_grammar(self, source: GrammarSource, field: str) -> CompiledGrammar:
        """Make a grammar usable; see `GrammarCompiler.compile` for the errors."""
        return self._grammars.compile(source, field)

    def warm_up_grammars(self) -> None:
        """Do once what the first grammar would wait for; see `GrammarCompiler.warm_up`."""
        self._grammars.warm_up()

    def forced_close(self, thinking_budget: int) -> tuple[int, ...]:
        """Tokens that close a thinking block whose budget is spent.

        A budget of 0 gets the empty block of the template, without a word.
        """
        if self._think_end is None:
            return ()
        text = _CLOSING_TEXT if thinking_budget else "\n"
        return (*self.tokenizer.encode(text, parse_special=False), self._think_end)

    def output_room(self, prompt: PreparedPrompt, max_new_tokens: int, max_context: int) -> int:
        """Output budget that fits the context behind this prompt.

        Raises:
            ContextLengthExceeded: the prompt alone is too long.
        """
        check_length(len(prompt.token_ids), max_context)
        return min(max_new_tokens, max_context - len(prompt.token_ids))

    def check_thinking_budget(
        self, prepared: PreparedInput, thinking_budget: int | None, max_new_tokens: int
    ) -> None:
        """Refuse a budget that leaves no room for the closing text and one token behind it.

        Raises:
            RequestError: ``thinking_budget_capacity_insufficient``.
        """
        if thinking_budget is None or prepared.start is not Channel.THINKING:
            return
        needed = thinking_budget + len(self.forced_close(thinking_budget)) + 1
        if needed > max_new_tokens:
            raise RequestError(
                f"thinking_budget is {thinking_budget}; with the closing text and one token it "
                f"needs {needed} output tokens, and {max_new_tokens} are allowed",
                code="thinking_budget_capacity_insufficient",
                field="thinking_budget",
            )

    def _known_ids(self, end_ids: frozenset[int]) -> frozenset[int]:
        eos = self.tokenizer.eos_text
        eos_id = None if eos is None else self.tokenizer.find_added(eos)
        known = end_ids if eos_id is None else end_ids | {eos_id}
        for end_id in known:
            if not 0 <= end_id < self.tokenizer.addressable:
                raise CheckpointError(
                    f"end token {end_id} is not in the vocabulary", field="eos_token_id"
                )
        return known

    def _asks_thinking(self, options: PromptOptions) -> bool:
        if options.reasoning_effort == "none":
            return False
        wanted = options.enable_thinking
        return self.traits.opens_thinking if wanted is None else wanted

    def _switches(self, options: PromptOptions) -> dict[str, Any]:
        variables = dict(options.template_variables)
        for name in variables:
            if name not in self._template.variables:
                raise RequestError(
                    f"chat_template_kwargs.{name[:64]} is not known to the chat template",
                    field=f"chat_template_kwargs.{name[:64]}",
                )
        is_off = options.reasoning_effort == "none"
        if options.reasoning_effort is not None and options.enable_thinking is is_off:
            raise RequestError(
                "enable_thinking and reasoning_effort contradict",
                code="conflicting_parameters",
                field="reasoning_effort",
            )
        thinking = False if is_off else options.enable_thinking
        switches = (
            ("enable_thinking", thinking, self.traits.opens_thinking),
            ("preserve_thinking", options.preserve_thinking, self.traits.keeps_closed_reasoning),
        )
        for name, wanted, default in switches:
            if wanted is None:
                continue
            if name in self._template.variables:
                variables[name] = wanted
            elif wanted is not default:
                raise UnsupportedFeature(
                    f"{name} is {wanted}; the chat template of this model knows no such switch",
                    field=name,
                )
        if options.reasoning_effort is not None and not is_off:
            variables["reasoning_effort"] = self._known_effort(options.reasoning_effort)
        return variables

    def _known_effort(self, effort: str) -> str:
        if effort not in self.traits.reasoning_efforts:
            known = ", ".join(("none", *self.traits.reasoning_efforts))
            raise RequestError(
                f"reasoning_effort is {effort[:64]!r}; this model knows {known}",
                code="reasoning_effort_not_supported",
                field="reasoning_effort",
            )
        return effort


def _check_grammar(prepared: PreparedInput, options: OutputOptions) -> None:
    if options.grammar is None:
        return
    if prepared.tools:
        raise UnsupportedFeature(
            "structured output together with tools is not supported yet", field="tools"
        )
    if options.ignore_eos:
        raise RequestError(
            "ignore_eos contradicts structured output, which ends where its grammar ends",
            code="conflicting_parameters",
            field="ignore_eos",
        )


def _check_stops(stops: Sequence[str], name: str) -> None:
    for index, stop in enumerate(stops):
        check_unicode(stop, f"{name}[{index}]")
        if not stop:
            raise RequestError(f"{name}[{index}] is empty", field=f"{name}[{index}]")
