"""Memory of simulated warps: what an access outside, or off its place, comes to."""

from typing import Any

import numpy as np
import pytest

from tests.support.lane_memory import Memory

BASE = 1 << 20
EVERY_16 = BASE + 16 * np.arange(32)


def memory(nbytes: int = 512) -> Memory:
    return Memory(BASE, np.arange(nbytes).astype(np.uint8), 32)


def of_one_lane(lane: int, address: int) -> Any:
    return np.where(np.arange(32) == lane, address, EVERY_16)


@pytest.mark.parametrize("address", [BASE - 16, BASE + 512, BASE + 4, 0, -16, 1 << 40])
@pytest.mark.parametrize("lane", [0, 17, 31])
def test_one_lane_that_reads_or_writes_elsewhere_fails(address: int, lane: int) -> None:
    held, addresses = memory(), of_one_lane(lane, address)

    with pytest.raises(IndexError):
        held.load(addresses, np.uint32, 4)
    with pytest.raises(IndexError):
        held.store(addresses, [1, 2, 3, 4], np.uint32)
    with pytest.raises(IndexError):
        held.load(np.int64(address), np.uint32, 4)

    np.testing.assert_array_equal(held.octets, memory().octets)


@pytest.mark.parametrize("address", [BASE - 16, BASE + 512, 0, -16])
def test_a_lane_that_is_masked_writes_nothing_anywhere(address: int) -> None:
    held, addresses = memory(), of_one_lane(5, address)

    held.store(addresses, [7, 7, 7, 7], np.uint32, np.arange(32) != 5)

    words = held.octets.view(np.uint32).reshape(32, 4)
    np.testing.assert_array_equal(np.delete(words, 5, axis=0), 7)
    np.testing.assert_array_equal(words[5], memory().octets.view(np.uint32).reshape(32, 4)[5])
    with pytest.raises(IndexError):
        held.store(addresses, [7, 7, 7, 7], np.uint32, np.arange(32) == 5)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.uint32])
def test_lanes_read_what_stands_at_their_addresses(dtype: Any, count: int) -> None:
    held, size = memory(530), np.dtype(dtype).itemsize
    addresses = BASE + size * count * np.random.default_rng(0).integers(0, 512 // size // count, 32)

    found = held.load(addresses.astype(np.uint64), dtype, count)

    for i, values in enumerate(found if count > 1 else [found]):
        places = addresses - BASE + size * i
        expected = [held.octets[at : at + size].view(dtype)[0] for at in places]
        np.testing.assert_array_equal(values, expected)
        one = held.load(addresses[3], dtype, count)
        assert (one[i] if count > 1 else one).tobytes() == values[3].tobytes()
