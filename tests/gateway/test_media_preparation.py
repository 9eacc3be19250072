"""Decoded pictures: each once at a time, the newest kept, failures never."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from ninfer.gateway.image_pixels import Picture, UnreadableImage
from ninfer.gateway.media_preparation import NUM_WORKERS, MediaPreparation
from tests.support.gateway_clients import wait_until

PATIENCE_S = 120.0


class Decoder:
    """Counts its calls and stands still until it is let go."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []
        self.may_go = threading.Event()
        self.may_go.set()
        self.is_broken = False
        self._lock = threading.Lock()
        self._running = 0
        self.most_running = 0

    def __call__(self, data: bytes) -> Picture:
        with self._lock:
            self.calls.append(data)
            self._running += 1
            self.most_running = max(self.most_running, self._running)
        self.may_go.wait(PATIENCE_S)
        with self._lock:
            self._running -= 1
        if self.is_broken:
            raise UnreadableImage
        return Picture(1, 1, data * 10)


@pytest.fixture
def decoder() -> Decoder:
    return Decoder()


def test_the_same_bytes_are_decoded_once(decoder: Decoder) -> None:
    preparation = MediaPreparation(decoder, 1000)
    decoder.may_go.clear()
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(preparation.prepared, b"a", PATIENCE_S) for _ in range(8)]
        wait_until(lambda: bool(decoder.calls))
        decoder.may_go.set()
        found = {id(future.result()) for future in waiting}

    assert preparation.prepared(b"a", PATIENCE_S).pixels == b"a" * 10
    assert decoder.calls == [b"a"]
    assert len(found) == 1


def test_a_failure_is_told_and_tried_again(decoder: Decoder) -> None:
    preparation = MediaPreparation(decoder, 1000)
    decoder.is_broken = True
    with pytest.raises(UnreadableImage):
        preparation.prepared(b"a", PATIENCE_S)
    decoder.is_broken = False

    wait_until(_succeeds(preparation, b"a"))
    assert preparation.kept_bytes == 10


def test_the_oldest_make_room_by_bytes(decoder: Decoder) -> None:
    preparation = MediaPreparation(decoder, 25)
    for data in (b"a", b"b", b"a", b"c"):
        preparation.prepared(data, PATIENCE_S)
        wait_until(lambda: preparation.kept_bytes <= 25)

    assert preparation.kept_bytes == 20
    preparation.prepared(b"a", PATIENCE_S)
    assert decoder.calls == [b"a", b"b", b"c"]
    preparation.prepared(b"b", PATIENCE_S)
    assert decoder.calls == [b"a", b"b", b"c", b"b"]


@pytest.mark.parametrize("capacity", [0, 9])
def test_what_is_larger_than_everything_is_not_kept(decoder: Decoder, capacity: int) -> None:
    preparation = MediaPreparation(decoder, capacity)

    preparation.prepared(b"a", PATIENCE_S)
    preparation.prepared(b"a", PATIENCE_S)

    assert len(decoder.calls) == 2
    assert preparation.kept_bytes == 0


def test_few_are_decoded_at_a_time_and_nobody_waits_for_ever(decoder: Decoder) -> None:
    preparation = MediaPreparation(decoder, 1000)
    decoder.may_go.clear()

    with ThreadPoolExecutor(6) as pool:
        late = [pool.submit(preparation.prepared, bytes([i]), 0.2) for i in range(6)]
        errors = [type(future.exception(PATIENCE_S)) for future in late]
    decoder.may_go.set()

    assert errors == [TimeoutError] * 6
    assert decoder.most_running == NUM_WORKERS
    wait_until(_succeeds(preparation, b"\5"))


def _succeeds(preparation: MediaPreparation, data: bytes) -> Callable[[], bool]:
    def attempt() -> bool:
        try:
            preparation.prepared(data, PATIENCE_S)
        except (UnreadableImage, TimeoutError):
            return False
        return True

    return attempt
