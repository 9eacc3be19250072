"""Grammars to matchers, by the llguidance library.

Compiling happens before a request is submitted, within limits of text, work and time; a few tokens
are followed then, too, since the parser meets its limits only on the way. What cannot be honoured
is refused, never weakened. Compiled grammars are kept by digest.
The library is an optional part of the installation and is imported when it is first needed. Knows
no protocol and no channel. Source: the serving contract, section 7; llguidance 1.x.
"""

import functools
import hashlib
import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import ModuleType
from typing import Any, Final

from ninfer.errors import (
    GrammarDeadEnd,
    GrammarUnusable,
    NinferError,
    RequestError,
    UnsupportedFeature,
)
from ninfer.frontend.grammar_problems import compile_problem, is_dead_end, matcher_failure
from ninfer.frontend.grammar_source import GrammarKind, GrammarSource, invalid_schema
from ninfer.frontend.output_constraint import (
    CompiledGrammar,
    ConstraintPhase,
    ConstraintPlace,
    MaskVocabulary,
    OutputConstraint,
)
from ninfer.frontend.tokenizer import Tokenizer
from ninfer.generation import GrammarMatcher, TokenMask

_logger = logging.getLogger(__name__)

COMPILE_LIMIT_S: Final = 2.0
CACHE_SIZE: Final = 64
MAX_COMPILERS: Final = 4
"""Threads that may compile at a time, those included whose caller has given up."""

TRIED_TOKENS: Final = 32
TRIED_S: Final = 0.5
"""Most tokens, and about the longest time, that a new grammar is followed to see whether it can."""

MASK_LIMIT_S: Final = 0.4
"""Longest time of a processor for one mask: all requests wait for it."""

# The library's own defaults are not relied on; they may change with its version.
_LIMITS: Final = {
    # Ambiguity grows with the text and costs its square: a row this long takes about a second.
    "max_items_in_row": 2_000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 1_000_000,
    "step_max_items": 50_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 200_000,
    "precompute_large_lexemes": True,
    "verbose_errors": False,
}
# An object is as wide as it is written, up to four items a property; 64 KiB hold some 2,900
# properties, and masks of 10,000 items took 0.03 to 0.2 s. Where parts are alternatives or refer to
# others, they may be ambiguous: 5,000 items of alternatives took over a second, 5,600 of references
# over a minute.
_MAX_ITEMS_IN_SCHEMA: Final = 12_000
_AMBIGUOUS: Final = re.compile(r'"(?:\$ref|\$dynamicRef|anyOf|oneOf|allOf|if|not)"')
_JSON_OPTIONS: Final = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": False,
    "coerce_one_of": False,
    "lenient": False,
}


class GrammarCompiler:
    """Compiles for one tokenizer; safe to share between threads.

    Args:
        tokenizer: text to ids and back.
        stop_ids: tokens that end a turn.
        limit_s: longest time of one compilation.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop_ids: Iterable[int], *, limit_s: float = COMPILE_LIMIT_S
    ) -> None:
        self._tokenizer = tokenizer
        self._stop_ids = tuple(sorted(stop_ids))
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._compilers = threading.BoundedSemaphore(MAX_COMPILERS)
        self._cache: OrderedDict[bytes, CompiledGrammar] = OrderedDict()
        self._tokens_lock = threading.Lock()
        self._tokens: tuple[Any, MaskVocabulary] | None = None

    def compile(self, source: GrammarSource, field: str) -> CompiledGrammar:
        """Make a grammar usable.

        Args:
            source: the grammar.
            field: path that errors name.

        Raises:
            RequestError: ``invalid_json_schema``: it is no grammar, or over a limit.
            UnsupportedFeature: this installation lacks the library.
        """
        library = _library(field)
        key = hashlib.sha256(f"{source.kind.name} {source.text}".encode()).digest()
        with self._lock:
            found = self._cache.get(key)
            if found is not None:
                self._cache.move_to_end(key)
                return found
        # Outside the time limit: it is the model's, not the client's, and done once.
        tokens, vocabulary = self._known_tokens(library)
        compiled = self._within_limit(
            lambda: _compiled(library, tokens, vocabulary, source, field), field
        )
        with self._lock:
            self._cache[key] = compiled
            self._cache.move_to_end(key)
            while len(self._cache) > CACHE_SIZE:
                self._cache.popitem(last=False)
        return compiled

    def warm_up(self) -> None:
        """Read the vocabulary now, if grammars can be compiled here at all.

        It takes seconds for a large vocabulary, and other threads stand still meanwhile.
        """
        library = _imported()
        if library is not None:
            self._known_tokens(library)

    def _known_tokens(self, library: ModuleType) -> tuple[Any, MaskVocabulary]:
        with self._tokens_lock:
            return self._tokens or self._read_tokens(library)

    def _read_tokens(self, library: ModuleType) -> tuple[Any, MaskVocabulary]:
        wrapped = library.TokenizerWrapper(_TokenTable(self._tokenizer, self._stop_ids))
        tokens = library.LLTokenizer(
            wrapped,
            n_vocab=self._tokenizer.addressable,
            eos_token=list(self._stop_ids),
            slices=library.LLTokenizer.json_slices(),
        )
        self._tokens = tokens, MaskVocabulary.of(self._tokenizer, self._stop_ids)
        return self._tokens

    def _within_limit(self, work: Callable[[], CompiledGrammar], field: str) -> CompiledGrammar:
        """Run ``work`` in a thread and stop waiting at the limit; its own limits end it later."""
        too_long = invalid_schema(field, f"takes longer than {self._limit_s:g} s to compile")
        if not self._compilers.acquire(timeout=self._limit_s):
            raise too_long
        future: Future[CompiledGrammar] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - handed to the waiting caller
                future.set_exception(error)
            finally:
                self._compilers.release()

        threading.Thread(target=run, name="grammar", daemon=True).start()
        try:
            return future.result(self._limit_s)
        except TimeoutError as error:
            raise too_long from error
        except NinferError:
            raise
        except BaseException as error:
            _logger.exception("a grammar broke the compiler")
            raise invalid_schema(field, "is not usable: the compiler gave up") from error


class LlguidanceMatcher:
    """`ninfer.generation.GrammarMatcher` over the library's matcher, which it owns."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    @property
    def may_stop(self) -> bool:
        """Whether the output is complete as it stands."""
        is_complete = bool(self._matcher.is_accepting())
        self._check()
        return is_complete

    def mask(self) -> TokenMask:
        """Tokens the output may go on with."""
        mask: TokenMask = self._matcher.compute_bitmask()
        # A broken matcher answers with end tokens, as if all were well.
        self._check()
        return mask

    def accept(self, token_id: int) -> None:
        """Follow a committed token."""
        self._matcher.consume_token(token_id)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise matcher_failure(self._matcher.get_error())


class _Master:
    """A matcher that has used up nothing, and is only ever copied."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher
        self._lock = threading.Lock()

    def new_matcher(self) -> GrammarMatcher:
        with self._lock:
            return LlguidanceMatcher(self._matcher.deep_copy())


class _TokenTable:
    """A tokenizer as the library wants it; special tokens are marked by a byte no text has."""

    def __init__(self, tokenizer: Tokenizer, stop_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = stop_ids[0]
        self.bos_token_id = None
        self.special_token_ids = sorted(tokenizer.added)
        self.tokens = [
            (b"\xff" if token_id in tokenizer.added else b"") + tokenizer.piece(token_id)
            for token_id in range(tokenizer.addressable)
        ]

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenizer.encode(text.decode("utf-8"), parse_special=False)


def _compiled(
    library: ModuleType,
    tokens: Any,
    vocabulary: MaskVocabulary,
    source: GrammarSource,
    field: str,
) -> CompiledGrammar:
    def unusable(text: object) -> RequestError:
        problem = compile_problem(text, has_lines=source.kind is GrammarKind.LARK)
        return invalid_schema(field, f"is not usable: {problem}")

    try:
        grammar = _grammar_text(library, source)
    except ValueError as error:
        raise unusable(error) from error
    limits = library.LLParserLimits(**_limits(source))
    is_error, messages = library.LLMatcher.validate_grammar_with_warnings(
        grammar, tokens, limits=limits
    )
    if is_error or messages:
        raise unusable(messages[0])
    matcher = library.LLMatcher(tokens, grammar, log_level=0, limits=limits)
    # The first mask builds what every copy starts with, and shows whether there is any answer.
    mask = matcher.compute_bitmask()
    if is_dead_end(matcher.get_error()) or not any(mask):
        raise invalid_schema(field, "allows no answer")
    if matcher.is_error():
        raise unusable(matcher.get_error())
    compiled = CompiledGrammar(_Master(matcher).new_matcher, vocabulary)
    _try_out(compiled, field)
    return compiled


def _try_out(grammar: CompiledGrammar, field: str) -> None:
    """Follow two ways into a grammar: its widest place is mostly behind the first token.

    Raises:
        RequestError: it is over a limit there, or both lead nowhere.
    """
    until = time.monotonic() + TRIED_S
    try:
        # Single bytes have the lowest ids, long pieces the highest: other values, as a rule.
        try:
            _follow(grammar, _lowest, until)
        except GrammarDeadEnd:
            _follow(grammar, int.bit_length, until)
        else:
            with suppress(GrammarDeadEnd):  # the other way leads on
                _follow(grammar, int.bit_length, until)
    except NinferError as error:
        raise invalid_schema(field, f"is not usable: {error}") from error


def _follow(grammar: CompiledGrammar, choose: Callable[[int], int], until: float) -> None:
    """Follow a grammar to its end, or as far as it is tried.

    Args:
        grammar: made by its compilation, and not given to anybody yet.
        choose: number of the chosen bit of a mask, from one.
        until: time at which to stop.
    """
    constraint = OutputConstraint(grammar)
    place = ConstraintPlace(ConstraintPhase.ACTIVE)
    for _ in range(TRIED_TOKENS):
        start = time.thread_time()
        mask = int.from_bytes(constraint.mask(place) or b"", "little") & grammar.vocabulary.ordinary
        if time.thread_time() - start > MASK_LIMIT_S:
            raise GrammarUnusable("it is so ambiguous that every token would take too long")
        if not mask or time.monotonic() > until:
            return
        place = constraint.commit(place.behind(choose(mask) - 1, grammar.vocabulary.breaks))


def _lowest(mask: int) -> int:
    return (mask & -mask).bit_length()


def _limits(source: GrammarSource) -> dict[str, Any]:
    is_plain = source.kind is GrammarKind.JSON_SCHEMA and not _AMBIGUOUS.search(source.text)
    return _LIMITS | {"max_items_in_row": _MAX_ITEMS_IN_SCHEMA} if is_plain else dict(_LIMITS)


def _grammar_text(library: ModuleType, source: GrammarSource) -> Any:
    matcher = library.LLMatcher
    match source.kind:
        case GrammarKind.JSON_SCHEMA:
            return matcher.grammar_from_json_schema(source.text, overrides=_JSON_OPTIONS)
        case GrammarKind.REGEX:
            return matcher.grammar_from_regex(source.text)
        case GrammarKind.LARK:
            return matcher.grammar_from_lark(source.text)


def has_library() -> bool:
    """Whether grammars can be compiled here."""
    return _imported() is not None


@functools.cache
def _imported() -> ModuleType | None:
    try:
        import llguidance
    except ImportError:
        return None
    return llguidance


def _library(field: str) -> ModuleType:
    library = _imported()
    if library is None:
        raise UnsupportedFeature(
            f"{field} needs the extra [structured]: pip install '.[structured]'", field=field
        )
    return library
