"""Servers that several modules of the gateway's tests share."""

from collections.abc import Iterator

import pytest

from ninfer.runtime import Engine
from tests.support.gateway_server import RunningServer, running_server, tiny_engine
from tests.support.scripted_engine import ScriptedEngine


@pytest.fixture(scope="session", autouse=True)
def _state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Signing keys that servers of these tests make stay out of the user's folders."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def tiny() -> Iterator[Engine]:
    """The tiny dense model on the host device."""
    with tiny_engine() as engine:
        yield engine


@pytest.fixture(scope="session")
def tiny_server(tiny: Engine) -> Iterator[RunningServer]:
    """A server of the tiny model with default settings."""
    with running_server(tiny) as server:
        yield server


@pytest.fixture(scope="session")
def scripted_server() -> Iterator[RunningServer]:
    """A server of a scripted model that answers ``one two three``."""
    with ScriptedEngine() as engine, running_server(engine) as server:
        yield server
