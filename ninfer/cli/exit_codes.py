"""Exit codes of the command line, and which error ends with which."""

import enum
import errno

from ninfer.artifact.format import ArtifactError
from ninfer.errors import (
    CheckpointError,
    ConfigurationError,
    DeviceUnavailable,
    NinferError,
    OutOfDeviceMemory,
    RequestError,
)
from ninfer.termination import ending_signal, exit_code_of_signal


class ExitCode(enum.IntEnum):
    """What a process of ours can end with."""

    DONE = 0  # also when the answer hit a limit
    FAILED = 1  # failure while running: engine failed, I/O
    USAGE = 2  # wrong option or combination, unreadable input file
    ARTIFACT = 3  # artifact or checkpoint invalid, incomplete or of the wrong kind
    DEVICE = 4  # none found, driver too old, not enough memory
    REFUSED = 5  # the request itself was refused; the message is the HTTP one
    INCOMPLETE = 6  # --require-complete, and the finish reason was "length"
    HUNG_UP = 129
    INTERRUPTED = 130
    TERMINATED = 143


class UsageError(Exception):
    """The command line is wrong in a way the parser cannot see."""


_BY_CLASS: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (BrokenPipeError, ExitCode.DONE),  # the reader has seen enough
    (UsageError, ExitCode.USAGE),
    (FileNotFoundError, ExitCode.USAGE),
    (IsADirectoryError, ExitCode.USAGE),
    (NotADirectoryError, ExitCode.USAGE),
    (PermissionError, ExitCode.USAGE),
    (ArtifactError, ExitCode.ARTIFACT),
    (CheckpointError, ExitCode.ARTIFACT),
    (ConfigurationError, ExitCode.USAGE),
    (OutOfDeviceMemory, ExitCode.DEVICE),
    (DeviceUnavailable, ExitCode.DEVICE),
    (RequestError, ExitCode.REFUSED),
    (NinferError, ExitCode.FAILED),
    (OSError, ExitCode.FAILED),
)


_BAD_NAMES = frozenset({errno.ENAMETOOLONG, errno.ELOOP})


def exit_code_of(error: BaseException) -> ExitCode | None:
    """Return the exit code of an expected error, None for one that nobody foresaw.

    What a signal's exception was replaced by on its way out counts as the signal.
    """
    number = ending_signal(error)
    if number is not None:
        return ExitCode(exit_code_of_signal(number))
    if isinstance(error, OSError) and error.errno in _BAD_NAMES:
        return ExitCode.USAGE
    for kind, code in _BY_CLASS:
        if isinstance(error, kind):
            return code
    return None
