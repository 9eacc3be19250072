"""One generation request from submission to its last byte, for every protocol.

    translate -> GenerationJob -> submit -> events -> Reply.frames -> stream, or their fold

The blocking reply is the fold of the frames a stream would have carried. `RunningRequest` owns the
place and the engine's handle and releases both exactly once, whatever the socket does. Knows no
protocol: a `Reply` turns events into frames. Source: the serving contract, sections 4.2 and 11.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from flask import Response

from ninfer.errors import (
    InvariantError,
    NinferError,
    QueueTimeout,
    RequestCancelled,
    RequestTimeout,
)
from ninfer.frontend.frontend import PreparedInput
from ninfer.gateway.error_responses import ErrorReply
from ninfer.gateway.event_stream import (
    STREAM_HEADERS,
    ClientGone,
    EventStream,
    Frame,
    exact_json,
)
from ninfer.gateway.gateway import Gateway
from ninfer.gateway.json_body import read_object
from ninfer.gateway.request_context import RequestContext
from ninfer.gateway.request_facts import (
    Endpoint,
    RequestEnd,
    RequestFacts,
    RequestOutcome,
    outcome_of,
)
from ninfer.gateway.request_slots import RequestSlot
from ninfer.generation import (
    FinishReason,
    GenerationEvent,
    GenerationResult,
    OutputCommitted,
    SamplingParams,
    number_text,
)
from ninfer.runtime import Engine, GenerationHandle, RequestOptions

GONE_CHECK_S: Final = 0.25
"""Longest wait for an event before the socket is looked at again."""

GONE_STATUS: Final = 499
"""Status of a reply that nobody reads; seen in logs of ours only."""


class Reply(Protocol):
    """A protocol's side of one request, without I/O."""

    def frames(self, event: GenerationEvent) -> list[Frame]:
        """Frames of one event; those of the result end the stream."""

    def failure(self, error: ErrorReply) -> list[Frame]:
        """Last frames of a stream that failed after its headers left."""

    def heartbeat(self) -> Frame | None:
        """Event sent in quiet times; None is a comment line."""

    def fold(self, frames: Sequence[Frame]) -> dict[str, Any]:
        """The blocking reply: all frames of a request that did not fail."""


@dataclass(frozen=True, slots=True)
class GenerationJob:
    """A request that passed every check.

    Attributes:
        options: with the sampling values that apply; timeouts are filled in by `run_request`.
        effort: reasoning effort by name, for the log.
    """

    endpoint: Endpoint
    prepared: PreparedInput
    options: RequestOptions
    sampling: SamplingParams
    reply: Reply
    is_stream: bool
    effort: str | None = None


Translate = Callable[[dict[str, Any], Engine, RequestContext], GenerationJob]
"""A protocol's reading of a body: checks everything, and starts nothing."""


def answer_generation(
    gateway: Gateway, context: RequestContext, read_body: Callable[[], bytes], translate: Translate
) -> Response:
    """Answer one generation request.

    Args:
        gateway: shared parts.
        context: facts of the HTTP request.
        read_body: called once a place is taken.
        translate: the protocol.

    Raises:
        NinferError: the request was refused, or failed before any byte of a reply.
    """
    engine = gateway.life.open_engine()
    slot = gateway.slots.acquire()
    try:
        job = translate(read_object(read_body()), engine, context)
        return run_request(gateway, context, slot, job, engine)
    except BaseException:
        slot.release()
        raise


def run_request(
    gateway: Gateway,
    context: RequestContext,
    slot: RequestSlot,
    job: GenerationJob,
    engine: Engine,
) -> Response:
    """Submit a job and reply; the slot is released once the request is over.

    Raises:
        NinferError: the request was refused, or failed before any byte of a reply.
    """
    running = RunningRequest(gateway, context, slot, job, engine)
    try:
        return _streamed(running, gateway, job) if job.is_stream else _blocking(running, job)
    except ClientGone:
        running.close()
        return Response(status=GONE_STATUS)
    except NinferError:
        running.close()
        raise
    except BaseException:
        running.fail()
        raise


class RunningRequest:
    """Owner of one accepted request: its handle, its place, and what is told about its end."""

    def __init__(
        self,
        gateway: Gateway,
        context: RequestContext,
        slot: RequestSlot,
        job: GenerationJob,
        engine: Engine,
    ) -> None:
        self._gateway = gateway
        self._context = context
        self._slot = slot
        self._reply = job.reply
        self._lock = threading.Lock()
        self._is_ended = False
        self._is_over = False
        self._ttft_s: float | None = None
        prepare_s = self._age_s()
        self._handle = _submitted(gateway, job, engine, prepare_s)
        context.is_accepted = True
        self._facts = RequestFacts(
            endpoint=job.endpoint,
            request_id=context.request_id,
            client_request_id=context.client_request_id,
            is_stream=job.is_stream,
            sampling=job.sampling,
            prompt_tokens=len(job.prepared.prompt.token_ids),
            max_new_tokens=engine.frontend.output_room(
                job.prepared.prompt, job.options.max_new_tokens, engine.config.max_context
            ),
            reasoning_effort=job.effort,
            thinking_budget=job.options.output.thinking_budget,
            prepare_s=prepare_s,
        )
        gateway.note_started(self._facts)

    def next_event(self, timeout_s: float | None) -> GenerationEvent | None:
        """Next event; None when the time passed.

        Raises:
            NinferError: the request failed; it is over.
            ClientGone: the socket is closed; the request is over.
        """
        life = self._gateway.life
        deadline = None if timeout_s is None else life.now() + timeout_s
        while True:
            # Asked before each wait: a client may leave while events keep coming.
            if self._context.is_client_gone():
                self.close()
                raise ClientGone
            left_s = GONE_CHECK_S if deadline is None else deadline - life.now()
            if left_s <= 0:
                return None
            try:
                event = self._handle.next_event(min(left_s, GONE_CHECK_S))
            except NinferError as error:
                self._end(RequestOutcome.ERROR, code=error.code)
                raise self._in_options(error) from error
            if event is not None:
                self._note(event)
                return event

    def next_frames(self, timeout_s: float) -> Sequence[Frame] | None:
        """Frames of the next event that has any; see `FrameSource`."""
        deadline = self._gateway.life.now() + timeout_s
        while not self._is_over:
            try:
                event = self.next_event(max(0.0, deadline - self._gateway.life.now()))
            except NinferError as error:
                self._is_over = True
                return self._reply.failure(self._error_reply(error))
            if event is None:
                return ()
            frames = self._frames(event)
            if frames:
                return frames
        return None

    def _in_options(self, error: NinferError) -> NinferError:
        """The engine was given what preparing had left of a limit; clients know the whole one."""
        settings = self._gateway.settings
        match error:
            case QueueTimeout():
                limit = number_text(settings.pending_timeout_s)
                return QueueTimeout(f"the request waited longer than {limit} s")
            case RequestTimeout() if settings.request_timeout_s is not None:
                limit = number_text(settings.request_timeout_s)
                return RequestTimeout(
                    f"the request ran longer than its whole-request limit of {limit} s"
                )
            case _:
                return error

    def heartbeat(self) -> Frame | None:
        """The protocol's heartbeat."""
        return self._reply.heartbeat()

    def close(self) -> None:
        """Let go of the request, cancelling it when it still runs. Idempotent, never blocks."""
        self._end(RequestOutcome.CANCELLED, code=None)

    def fail(self) -> None:
        """Let go of the request because of a bug of ours. Idempotent, never blocks."""
        self._end(RequestOutcome.ERROR, code="internal_error")

    def _frames(self, event: GenerationEvent) -> Sequence[Frame]:
        try:
            return self._reply.frames(event)
        except Exception as error:  # noqa: BLE001 - logged as the cause of the reply
            # The status is gone already; the client still has to learn that this is no end.
            self._is_over = True
            self.fail()
            bug = InvariantError("a reply could not be formed", code="internal_error")
            bug.__cause__ = error
            return self._reply.failure(self._error_reply(bug))

    def _error_reply(self, error: NinferError) -> ErrorReply:
        return self._gateway.error(error, self._context.request_id, is_running=True)

    def _note(self, event: GenerationEvent) -> None:
        if isinstance(event, OutputCommitted) and self._ttft_s is None:
            self._ttft_s = self._age_s()
        if not isinstance(event, GenerationResult):
            return
        self._is_over = True
        if event.finish is FinishReason.CANCELLED:
            cancelled = RequestCancelled("the request was cancelled")
            self._end(RequestOutcome.CANCELLED, code=cancelled.code)
            raise cancelled
        # Before the last bytes are written: who has read them may come back at once.
        self._slot.is_served = True
        self._end(outcome_of(event.finish), result=event)

    def _end(
        self,
        outcome: RequestOutcome,
        *,
        result: GenerationResult | None = None,
        code: str | None = None,
    ) -> None:
        with self._lock:
            if self._is_ended:
                return
            self._is_ended = True
        self._handle.close()
        self._slot.release()
        end = RequestEnd(outcome, result, code, self._age_s(), self._ttft_s)
        self._gateway.note_ended(self._facts, end)

    def _age_s(self) -> float:
        return self._gateway.life.now() - self._context.received_at


def _submitted(
    gateway: Gateway, job: GenerationJob, engine: Engine, prepare_s: float
) -> GenerationHandle:
    settings = gateway.settings
    request_timeout_s = settings.request_timeout_s
    if prepare_s >= settings.pending_timeout_s:
        limit = number_text(settings.pending_timeout_s)
        raise QueueTimeout(f"preparing the request took longer than {limit} s")
    options = replace(
        job.options,
        sampling=job.sampling,
        queue_timeout_s=settings.pending_timeout_s - prepare_s,
        request_timeout_s=(
            None if request_timeout_s is None else max(0.0, request_timeout_s - prepare_s)
        ),
    )
    return engine.submit(job.prepared, options)


def _blocking(running: RunningRequest, job: GenerationJob) -> Response:
    frames: list[Frame] = []
    while True:
        event = running.next_event(None)
        if event is None:
            continue
        frames.extend(job.reply.frames(event))
        if isinstance(event, GenerationResult):
            body = exact_json(job.reply.fold(frames))
            return Response(body, mimetype="application/json")


def _streamed(running: RunningRequest, gateway: Gateway, job: GenerationJob) -> Response:
    """Wait for a first sign, so that a refusal still has its status, then hand the stream out."""
    heartbeat_s = gateway.settings.heartbeat_s
    event = running.next_event(heartbeat_s)
    first = () if event is None else job.reply.frames(event)
    stream = EventStream(running, heartbeat_s, first)
    response = Response(stream, headers=STREAM_HEADERS)
    response.call_on_close(stream.close)
    return response
