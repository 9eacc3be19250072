"""``ninfer serve`` in a process of its own, whose device fails on purpose.

    python -m tests.support.faulty_server KIND DEVICE MODEL [OPTION...]

KIND is one of the rounds of `device_faults`. The first round waits until `NUM_CLIENTS` requests
have been accepted, so that all of them are there when the device fails. Ends as the command would.
"""

import argparse
import sys
import threading
from collections.abc import Callable

from ninfer.cli import serve
from ninfer.cli.console import Console
from ninfer.cli.options import add_console_options
from ninfer.engine.engine_core import EngineCore
from ninfer.engine.response_channel import GenerationHandle
from ninfer.generation import GenerationRequest
from tests.support.device_faults import arm

NUM_CLIENTS = 3
PATIENCE_S = 60.0


def main(kind: str, device: str, *rest: str) -> int:
    """Arm the fault and serve."""
    arm(kind, device, _wait_for_clients())
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    add_console_options(parser)
    options = parser.parse_args([*rest, "--device", device, "--port", "0"])
    return int(serve.run(options, Console(options)))


def _wait_for_clients() -> Callable[[], None]:
    """Count accepted requests, and return what waits for the last of them."""
    accepted = threading.Semaphore(0)
    submit = EngineCore.submit

    def counted(core: EngineCore, request: GenerationRequest) -> GenerationHandle:
        handle = submit(core, request)
        accepted.release()
        return handle

    EngineCore.submit = counted  # type: ignore[method-assign,assignment]
    missing = NUM_CLIENTS

    def wait() -> None:
        nonlocal missing
        while missing and accepted.acquire(timeout=PATIENCE_S):
            missing -= 1

    return wait


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
