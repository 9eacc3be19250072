"""A whole `Engine` on a scripted program: real frontend, real worker, chosen output tokens.

The script maps the rendered prompt to the text the model says; it is encoded with special spellings
read, and followed by end tokens. `pace` is called before every call of the program and may sleep or
wait, which is how a test stops the engine in a phase.
"""

import os
from collections.abc import Callable
from contextlib import ExitStack

from ninfer.config import EngineConfig, KvDtype
from ninfer.engine.engine_core import EngineCore
from ninfer.engine.engine_worker import EngineWorker
from ninfer.frontend.frontend import Frontend
from ninfer.generation import PreparedPrompt
from ninfer.program.contract import PendingRow, SequenceHandle
from ninfer.runtime import Engine
from tests.support.frontends import frontend as golden_frontend
from tests.support.scripted_books import Faults
from tests.support.scripted_program import ScriptedProgram

Script = Callable[[str], str]
END = "<|im_end|>"
PLENTY_OF_PAGES = 100_000


def says(text: str) -> Script:
    """A script that answers every prompt alike."""
    return lambda prompt: text


ONE_TWO_THREE = says("one two three")


class TextProgram(ScriptedProgram):
    """A scripted program whose tokens spell a text; see the module."""

    def __init__(
        self,
        script: Script,
        frontend: Frontend,
        config: EngineConfig,
        *,
        width: int,
        chunk: int,
        num_pages: int,
        faults: Faults | None,
        pace: Callable[[str], None] | None,
    ) -> None:
        super().__init__(
            max_concurrency=config.max_concurrency,
            max_context=config.max_context,
            num_pages=num_pages,
            chunk=chunk,
            width=width,
            faults=faults,
            observe=pace,
        )
        self._script = script
        self._frontend = frontend
        end = frontend.tokenizer.find_added(END)
        assert end is not None
        self._end = end
        self._outputs: dict[bytes, list[int]] = {}

    def _decode_row(self, handle: SequenceHandle) -> PendingRow:
        entry = self._runnable(handle)
        output = self._output(entry.prompt)
        first = len(entry.tokens)
        width = min(self._width, entry.budget - first)
        tokens = output[first : first + width]
        return PendingRow(
            handle, entry.frontier, tuple(tokens) + (self._end,) * (width - len(tokens))
        )

    def _output(self, prompt: PreparedPrompt) -> list[int]:
        if prompt.identity not in self._outputs:
            tokenizer = self._frontend.tokenizer
            text = tokenizer.decode(prompt.token_ids).decode("utf-8", "replace")
            self._outputs[prompt.identity] = tokenizer.encode(
                self._script(text), parse_special=True
            )
        return self._outputs[prompt.identity]


class ScriptedEngine(Engine):
    """See the module.

    Args:
        script: rendered prompt to answer.
        case: golden model whose frontend is used.
        width: most tokens of a row in one round.
        chunk: prompt tokens of one prefill call.
        num_pages: KV pages of the scripted program.
    """

    def __init__(
        self,
        script: Script = ONE_TWO_THREE,
        *,
        case: str = "tiny-dense",
        max_concurrency: int = 2,
        max_pending: int = 2,
        max_context: int = 4096,
        width: int = 1,
        chunk: int = 64,
        num_pages: int = PLENTY_OF_PAGES,
        faults: Faults | None = None,
        pace: Callable[[str], None] | None = None,
    ) -> None:
        self._scripted_config = EngineConfig(
            device="host",
            max_concurrency=max_concurrency,
            max_pending=max_pending,
            max_context=max_context,
        )
        self._process_id = os.getpid()
        self.frontend = golden_frontend(case)
        self.model_id = case
        self.weights_id = "scripted"
        self.max_positions = max_context
        self.artifact_time = 1764000000
        self.device_kind = "host"
        self.kv_dtype = KvDtype.F32
        self.program = TextProgram(
            script,
            self.frontend,
            self._scripted_config,
            width=width,
            chunk=chunk,
            num_pages=num_pages,
            faults=faults,
            pace=pace,
        )
        core = EngineCore(self.program, max_pending=max_pending)
        with ExitStack() as stack:
            self._worker = stack.enter_context(EngineWorker(core))
            self._stack = stack.pop_all()

    @property
    def memory_account(self) -> str:
        return "arenas\n  none      0 bytes"

    @property
    def config(self) -> EngineConfig:
        return self._scripted_config

    @property
    def fingerprint(self) -> str:
        return "nf_scripted"

    @property
    def arena_bytes(self) -> dict[str, int]:
        return {"weights": 0}
