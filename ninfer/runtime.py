"""The library entry: `Engine` generates, `Scorer` scores texts.

Both own a whole stack, are context managers and free everything when they close; the purpose of a
stack is fixed when it is built. Knows no protocol and no terminal.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Final, Self

from ninfer.config import EngineConfig, Purpose
from ninfer.engine.engine_core import EngineCore
from ninfer.engine.engine_status import EngineStatus as EngineStatus
from ninfer.engine.engine_worker import EngineWorker
from ninfer.engine.intake import EngineState as EngineState
from ninfer.engine.response_channel import GenerationHandle as GenerationHandle
from ninfer.engine.scoring import CausalScoreCore
from ninfer.engine.scoring import TextScore as TextScore
from ninfer.errors import ConfigurationError, EngineClosed, RequestError, UnsupportedFeature
from ninfer.frontend.conversation import Conversation
from ninfer.frontend.frontend import OutputOptions, PreparedInput, PromptOptions
from ninfer.frontend.message_json import parse_messages, parse_tools
from ninfer.generation import (
    CacheMode,
    Channel,
    GenerationRequest,
    GenerationResult,
    SamplingParams,
    checked_integer,
    checked_number,
)
from ninfer.model_stack import LoadedModel, Measurement, ModelSource
from ninfer.model_stack import Progress as Progress
from ninfer.model_stack import SyntheticModel as SyntheticModel

DEFAULT_MAX_NEW_TOKENS = 8192
"""Output budget of a request that names none; clamped to the context like every budget."""

NON_THINKING_PRESET = SamplingParams(
    temperature=0.7, top_p=0.8, top_k=20, min_p=0.0, presence_penalty=1.5
)
"""Sampling of chat answers without thinking (serving contract, section 4)."""

_INT32_MAX: Final = (1 << 31) - 1
_LONGEST_S: Final = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """How one prepared input is answered.

    Attributes:
        sampling: None takes the publisher's values.
        max_new_tokens: output budget; clamped to what the context leaves.
        output: stop strings, thinking budget and the like.
        queue_timeout_s, request_timeout_s: None is unlimited.
        session_key: hint that requests belong together.

    Raises:
        RequestError: a number has the wrong type or range.
    """

    sampling: SamplingParams | None = None
    max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS
    output: OutputOptions = field(default_factory=OutputOptions)
    cache: CacheMode = CacheMode.READ_WRITE
    queue_timeout_s: float | None = None
    request_timeout_s: float | None = None
    session_key: str | None = None

    def __post_init__(self) -> None:
        checked_integer("max_new_tokens", self.max_new_tokens, 0, _INT32_MAX)
        for name in ("queue_timeout_s", "request_timeout_s"):
            value = getattr(self, name)
            if value is not None:
                checked_number(name, value, 0.0, _LONGEST_S)


class Engine:
    """One model, ready to answer up to ``config.max_concurrency`` requests at a time.

    Submitting is safe from any thread. `close` ends what runs and frees everything.

    Attributes:
        frontend: text to tokens and back.
        model_id: identity of the model.
        weights_id: storage profile of the artifact.
        max_positions: longest context the model was made for.
        artifact_time: of the artifact's file, in seconds since the epoch.
        device_kind, kv_dtype: what the options came to: the kind of device, and what the KV cache
            holds.
    """

    def __init__(
        self,
        model: ModelSource,
        *,
        config: EngineConfig | None = None,
        chat_template: str | None = None,
        progress: Progress | None = None,
        compiling: Progress | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Load a model and start its worker.

        Args:
            model: path of the artifact, or a synthetic model for measurement.
            config: start-up options; its purpose must be generation.
            chat_template: source of a template to use instead of the artifact's.
            progress: told (bytes loaded, bytes in all) while weights are loaded.
            compiling: told (kernels compiled, kernels in all) while a first start on a machine
                compiles those of the model.
            clock: seconds; never goes back.

        Raises:
            ArtifactError: the file is no artifact of a registered model.
            ConfigurationError: an option does not fit this model.
            DeviceUnavailable: there is no such device.
            OutOfDeviceMemory: the start-up plan does not fit.
            UnsupportedFeature: an option asks for what this build does not offer.
        """
        config = config or EngineConfig(shrinks_context=True)
        if config.purpose is not Purpose.GENERATION:
            raise ConfigurationError("an Engine generates; use Scorer to score", field="purpose")
        _refuse_idle_slots(config)
        with ExitStack() as stack:
            loaded = stack.enter_context(
                LoadedModel(model, config, chat_template, progress, compiling)
            )
            core = EngineCore(
                loaded.program,
                max_pending=config.max_pending,
                num_checkpoint_slots=config.device_state_slots + config.host_state_slots,
                clock=clock,
            )
            self._worker = stack.enter_context(EngineWorker(core))
            self._stack = stack.pop_all()
        self._process_id = os.getpid()
        self._loaded = loaded
        self.frontend = loaded.frontend
        self.model_id = loaded.model_id
        self.weights_id = loaded.weights_id
        self.max_positions = loaded.max_positions
        self.artifact_time = loaded.artifact_time
        self.device_kind = loaded.device_kind
        self.kv_dtype = loaded.kv_dtype

    @property
    def config(self) -> EngineConfig:
        """Start-up options."""
        return self._loaded.config

    @property
    def memory_account(self) -> str:
        """What was allocated for what, as a table for people."""
        return self._loaded.program.memory.account()

    @property
    def measurement(self) -> Measurement:
        """What a benchmark asks; only while no request is active."""
        return self._loaded.measurement

    @property
    def start_seconds(self) -> dict[str, float]:
        """How long each step of the start took, in order."""
        return self._loaded.start_seconds

    @property
    def arena_bytes(self) -> dict[str, int]:
        """Device bytes by what they hold."""
        memory = self._loaded.program.memory
        return {"weights": memory.weights_bytes} | {a.name: a.nbytes for a in memory.arenas}

    @property
    def fingerprint(self) -> str:
        """Changes exactly when something that can change bits changes."""
        return self._loaded.fingerprint

    def sampling_preset(self, prepared: PreparedInput) -> SamplingParams:
        """Sampling values for a request that names none.

        The publisher's values, except that a chat answer without thinking has a preset of its own.
        """
        is_plain_chat = prepared.is_chat and prepared.start is Channel.CONTENT
        return self.plain_chat_preset if is_plain_chat else self.frontend.sampling_defaults

    @property
    def plain_chat_preset(self) -> SamplingParams:
        """Sampling values of a chat answer without thinking; a greedy publisher's stay greedy."""
        published = self.frontend.sampling_defaults
        return published if published.is_greedy else NON_THINKING_PRESET

    def status(self) -> EngineStatus:
        """The newest published snapshot; takes no lock."""
        return self._worker.core.status()

    def submit(
        self, prepared: PreparedInput, options: RequestOptions | None = None
    ) -> GenerationHandle:
        """Start answering a prepared input.

        Raises:
            RequestError: an option is out of range, or the prompt is too long.
            EngineOverloaded: active plus waiting capacity is full.
            EngineClosed: the engine is closing or closed.
            EngineFailed: the engine has failed.
        """
        if os.getpid() != self._process_id:
            raise EngineClosed("the engine's worker lives in another process: this one was forked")
        options = options or RequestOptions()
        return self._worker.core.submit(self._request(prepared, options))

    def generate(
        self, prepared: PreparedInput, options: RequestOptions | None = None
    ) -> GenerationResult:
        """Answer a prepared input and wait for the result; raises what `submit` raises."""
        with self.submit(prepared, options) as handle:
            return handle.result()

    def prepare(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        prompt: PromptOptions | None = None,
    ) -> PreparedInput:
        """Render and encode messages in the shape of OpenAI's chat API.

        Raises:
            RequestError: with the dotted path of the offending field.
        """
        parsed = parse_tools(None if tools is None else list(tools))
        conversation = Conversation(parse_messages(list(messages)), parsed)
        return self.frontend.prepare(conversation, prompt, max_tokens=self.config.max_context)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        prompt: PromptOptions | None = None,
        max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS,
        sampling: SamplingParams | None = None,
    ) -> GenerationResult:
        """Answer messages and wait for the result; raises what `prepare` and `submit` raise."""
        prepared = self.prepare(messages, tools=tools, prompt=prompt)
        options = RequestOptions(sampling=sampling, max_new_tokens=max_new_tokens)
        return self.generate(prepared, options)

    def drain(self, grace_s: float) -> None:
        """Refuse new and waiting requests; cancel what is still active after the grace.

        Never blocks; a further call can only bring the end forward.
        """
        self._worker.core.drain(grace_s)

    def close(self, grace_s: float = 0.0) -> None:
        """Drain for at most ``grace_s``, cancel the rest, free everything. Idempotent."""
        self._worker.close(grace_s)
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _request(self, prepared: PreparedInput, options: RequestOptions) -> GenerationRequest:
        sampling = options.sampling or self.sampling_preset(prepared)
        addressable = self.frontend.tokenizer.addressable
        if sampling.top_k > addressable:
            raise RequestError(
                f"top_k is {sampling.top_k}; allowed is -1..{addressable}", field="top_k"
            )
        room = self.frontend.output_room(
            prepared.prompt, options.max_new_tokens, self.config.max_context
        )
        self.frontend.check_thinking_budget(prepared, options.output.thinking_budget, room)
        return GenerationRequest(
            prompt=prepared.prompt,
            output=self.frontend.open_session(prepared, options.output),
            sampling=sampling,
            max_new_tokens=room,
            cache=options.cache,
            queue_timeout_s=options.queue_timeout_s,
            request_timeout_s=options.request_timeout_s,
            session_key=options.session_key,
        )


class Scorer:
    """One model that scores texts instead of continuing them; one text at a time.

    Attributes:
        frontend: text to tokens and back.
        model_id: identity of the model.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        config: EngineConfig | None = None,
        progress: Progress | None = None,
        compiling: Progress | None = None,
    ) -> None:
        """Load a model for scoring; arguments and errors are those of `Engine`."""
        config = config or EngineConfig(shrinks_context=True)
        config = replace(config, purpose=Purpose.CAUSAL_SCORING)
        _refuse_idle_slots(config)
        with ExitStack() as stack:
            loaded = stack.enter_context(LoadedModel(model, config, None, progress, compiling))
            self._stack = stack.pop_all()
        self._core = CausalScoreCore(loaded.program, max_context=loaded.config.max_context)
        self._lock = threading.Lock()
        self.frontend = loaded.frontend
        self.model_id = loaded.model_id

    def score(
        self,
        tokens: Sequence[int],
        *,
        window: int | None = None,
        stride: int | None = None,
        progress: Progress | None = None,
    ) -> TextScore:
        """Score a text of any length; see `CausalScoreCore.score`.

        Raises:
            RequestError: the text is empty or names an id that does not exist.
        """
        for index, token in enumerate(tokens):
            self.frontend.tokenizer.check_id(token, f"tokens[{index}]")
        with self._lock:
            return self._core.score(tokens, window=window, stride=stride, progress=progress)

    def close(self) -> None:
        """Free everything; idempotent."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _refuse_idle_slots(config: EngineConfig) -> None:
    """Program could keep checkpoints there, but no planner asks it to."""
    if config.device_state_slots:
        raise UnsupportedFeature(
            "this build keeps no checkpoints on the device; slots would only take memory",
            field="device_state_slots",
        )
