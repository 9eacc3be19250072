"""The key behind signatures: made once, kept, shared, and not needed to be writable."""

import stat
import threading
from pathlib import Path

from ninfer.gateway.thinking_signature import KEY_NAME, ThinkingSigner, state_folder


def test_a_signature_depends_on_text_and_installation(tmp_path: Path) -> None:
    first, other = ThinkingSigner(tmp_path / "a"), ThinkingSigner(tmp_path / "b")

    assert first.sign("x") == first.sign("x")
    assert first.sign("x") != first.sign("y")
    assert first.sign("x") != other.sign("x")


def test_the_key_outlives_the_process_and_is_private(tmp_path: Path) -> None:
    before = ThinkingSigner(tmp_path / "new").sign("x")

    assert ThinkingSigner(tmp_path / "new").sign("x") == before
    key = tmp_path / "new" / KEY_NAME
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert [path.name for path in key.parent.iterdir()] == [KEY_NAME]


def test_a_damaged_key_is_replaced(tmp_path: Path) -> None:
    (tmp_path / KEY_NAME).write_bytes(b"short")

    first = ThinkingSigner(tmp_path).sign("x")

    assert ThinkingSigner(tmp_path).sign("x") == first
    assert [path.name for path in tmp_path.iterdir()] == [KEY_NAME]


def test_a_folder_that_cannot_be_made_costs_only_the_persistence(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    signer = ThinkingSigner(tmp_path / "file" / "below")

    assert signer.sign("x") == signer.sign("x")


def test_starters_at_one_time_agree_on_a_key(tmp_path: Path) -> None:
    signatures: list[str] = []
    barrier = threading.Barrier(4)

    def start() -> None:
        barrier.wait()
        signatures.append(ThinkingSigner(tmp_path).sign("x"))

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(signatures) == 4
    assert len(set(signatures)) == 1


def test_the_state_folder_follows_the_environment() -> None:
    assert state_folder({"XDG_STATE_HOME": "/state"}) == Path("/state/ninfer")
    assert state_folder({"XDG_STATE_HOME": "relative"}) == Path.home() / ".local/state/ninfer"
    assert state_folder({}) == Path.home() / ".local/state/ninfer"
