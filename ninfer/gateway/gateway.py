"""The parts of one gateway that its routes share; built before the port is bound.

Owns nothing that needs closing: the engine belongs to the server's main thread, the log to whoever
opened it. Knows no HTTP.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from ninfer.config import EngineConfig
from ninfer.errors import EngineFailed, GrammarUnusable, InvariantError, NinferError
from ninfer.gateway.error_responses import ErrorReply, error_reply
from ninfer.gateway.gateway_settings import EXTRA_THREADS, GatewaySettings
from ninfer.gateway.media_source import MediaSource
from ninfer.gateway.request_facts import Endpoint, RequestEnd, RequestFacts, RequestObserver
from ninfer.gateway.request_slots import RequestSlots
from ninfer.gateway.server_state import ServerLife

_logger = logging.getLogger(__name__)

COUNTING_PLACES: Final = EXTRA_THREADS // 2
"""Tokenizing takes time and its replies may be long: threads for health have to remain."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """See the module.

    Attributes:
        life: state of the server, and the engine.
        slots: places for generation requests.
        counting: places for requests that only count tokens.
        media: acquires images.
        observers: hear of every generation request.
        created: start of the process in seconds since the epoch.
    """

    settings: GatewaySettings
    life: ServerLife
    slots: RequestSlots
    media: MediaSource
    observers: Sequence[RequestObserver] = ()
    counting: RequestSlots = field(default_factory=lambda: RequestSlots(COUNTING_PLACES, 0))
    created: int = field(default_factory=lambda: int(time.time()))

    def error(self, error: NinferError, request_id: str, *, is_running: bool = False) -> ErrorReply:
        """Look an error up, see `error_reply`, and log what the reply does not tell or explain."""
        engine = self.life.engine
        num_waiting = 0 if engine is None else engine.status().waiting
        reply = error_reply(
            error,
            retry_after_s=self.slots.retry_after_s(num_waiting),
            request_id=request_id,
            is_running=is_running,
        )
        if isinstance(error, EngineFailed | GrammarUnusable):
            # The engine has logged where it came from; here is whom it hit.
            _logger.warning("request %s ends with %s: %s", request_id, reply.code, error)
        elif isinstance(error, InvariantError) or reply.code == "internal_error":
            _logger.error("request %s failed", request_id, exc_info=error)
        return reply

    def note_started(self, facts: RequestFacts) -> None:
        """Tell every observer."""
        for observer in self.observers:
            observer.note_started(facts)

    def note_ended(self, facts: RequestFacts, end: RequestEnd) -> None:
        """Tell every observer."""
        for observer in self.observers:
            observer.note_ended(facts, end)

    def note_rejected(self, endpoint: Endpoint, request_id: str, code: str) -> None:
        """Tell every observer."""
        for observer in self.observers:
            observer.note_rejected(endpoint, request_id, code)


def build_gateway(
    settings: GatewaySettings,
    config: EngineConfig,
    *,
    observers: Sequence[RequestObserver] = (),
    clock: Callable[[], float] = time.monotonic,
) -> Gateway:
    """Build the parts for an engine of this configuration, which need not exist yet."""
    slots = RequestSlots(config.max_concurrency, config.max_pending, clock)
    media = MediaSource(settings, clock=clock)
    return Gateway(settings, ServerLife(clock), slots, media, tuple(observers))
