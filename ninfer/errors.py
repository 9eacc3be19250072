"""The exception tree of ninfer.

    NinferError
      RequestError      the caller can fix it; names the field, the value and the limit
      CapacityError     try again later, or reconfigure
      InvariantError    we are wrong: the engine fails, loudly and cleanly

The first two harm nobody else. ``code`` is the stable machine-readable name that the HTTP table and
the command line's exit codes are keyed by.
"""


class NinferError(Exception):
    """Root of every error ninfer raises on purpose.

    Attributes:
        code: stable lower-case name of the cause.
    """

    code: str = "internal_error"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


class RequestError(NinferError):
    """One request cannot be served as asked; nothing else is affected.

    Attributes:
        field: dotted path of the offending field, when there is one.
    """

    code = "invalid_value"

    def __init__(self, message: str, *, code: str | None = None, field: str | None = None) -> None:
        super().__init__(message, code=code)
        self.field = field


class ContextLengthExceeded(RequestError):
    """The rendered prompt is longer than the context."""

    code = "context_length_exceeded"


class RequestInfeasible(RequestError):
    """The request cannot fit even alone, with every inactive cache entry released."""

    code = "request_infeasible"


class InvalidPrompt(RequestError):
    """The chat template cannot represent the conversation."""

    code = "invalid_prompt"


class GrammarUnusable(RequestError):
    """A grammar that was accepted turns out to be over a limit, or leads nowhere."""

    code = "invalid_json_schema"


class GrammarDeadEnd(GrammarUnusable):
    """A grammar leads to a place where no token is allowed."""


class UnsupportedFeature(RequestError):
    """A known feature that this build, this model or this start-up configuration does not offer."""

    code = "unsupported_parameter"


class RequestCancelled(RequestError):
    """The request was cancelled by its owner, or by a shutdown."""

    code = "request_cancelled"


class QueueTimeout(RequestError):
    """The request waited longer than its queue deadline."""

    code = "request_queue_timeout"


class RequestTimeout(RequestError):
    """The request ran longer than its whole-request limit."""

    code = "request_timeout"


class ConfigurationError(RequestError):
    """A start-up option, or a combination of options, is illegal."""

    code = "invalid_configuration"


class DemoModelMissing(ConfigurationError):
    """No model was named, and this installation ships none."""


class CheckpointError(RequestError):
    """A source checkpoint is missing something, damaged, or of another kind."""

    code = "invalid_checkpoint"


class CapacityError(NinferError):
    """There is not enough room now."""

    code = "server_overloaded"


class EngineOverloaded(CapacityError):
    """Active plus waiting capacity is full."""

    code = "server_overloaded"


class EngineClosed(CapacityError):
    """The engine is shutting down or already closed."""

    code = "server_draining"


class DeviceUnavailable(CapacityError):
    """The asked-for device does not exist or cannot be used."""

    code = "device_unavailable"


class OutOfDeviceMemory(CapacityError):
    """The start-up plan does not fit; the message says how many bytes are missing."""

    code = "out_of_memory"


class InvariantError(NinferError):
    """A rule of ours was broken. The engine that meets it fails as a whole."""

    code = "engine_failed"


class IllegalMove(InvariantError):
    """A life cycle was asked for a move its table does not have; nothing changed."""


class StaleHandle(InvariantError):
    """A handle's owner or generation does not match: its slot has been reused."""


class ShapeError(InvariantError):
    """An operand's extent or type differs from an op's contract."""


class KernelTooLarge(InvariantError):
    """A block of a kernel needs more shared memory than the device gives one."""


class EngineFailed(InvariantError):
    """The engine has failed; every request of it ends with this error."""
