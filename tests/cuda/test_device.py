"""The real device: memory, copies, events, graphs and what a fault does."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer.device import ALIGNMENT, Device, host_array
from ninfer.errors import DeviceUnavailable, InvariantError, OutOfDeviceMemory
from ninfer.ops import embedding, norm, pointwise
from ninfer.tensor import DType, TensorFormat
from tests.support.cuda_bench import CudaBench, cuda_device, fresh_stream

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]


def test_device_is_a_device_with_properties() -> None:
    device = cuda_device()
    is_device = isinstance(cuda_device(), Device)

    assert is_device
    assert device.kind == "cuda"
    assert device.activation_dtype is DType.BF16
    assert device.target.startswith("sm_")
    assert device.properties.num_multiprocessors > 0
    assert 0 < device.free_bytes() <= device.properties.total_bytes


def test_missing_device_is_unavailable() -> None:
    from ninfer.cuda.device import CudaDevice

    with pytest.raises(DeviceUnavailable):
        CudaDevice(4096)


def test_views_are_aligned_and_the_arena_says_when_it_is_full() -> None:
    arena = cuda_device().arena("probe", 1000)

    first, second = arena.take((3,), DType.U8), arena.take((5,), DType.F32)

    assert first.address % ALIGNMENT == 0
    assert second.address == first.address + ALIGNMENT
    with pytest.raises(InvariantError):
        arena.take((1000,), DType.U8)
    arena.close()
    arena.close()
    with pytest.raises(InvariantError):
        arena.take((1,), DType.U8)


@pytest.mark.alone
def test_closed_arena_gives_its_bytes_back() -> None:
    device = cuda_device()
    before = device.free_bytes()
    arena = device.arena("probe", 1 << 30)
    during = device.free_bytes()

    arena.close()

    assert before - during >= 1 << 30
    assert device.free_bytes() == before


def test_too_large_an_arena_says_how_much_is_missing() -> None:
    with pytest.raises(OutOfDeviceMemory, match="more than are free"):
        cuda_device().arena("probe", 1 << 50)


def test_bytes_survive_the_way_there_and_back() -> None:
    values = np.random.default_rng(0).integers(0, 256, 100_001).astype(np.uint8)
    with CudaBench() as bench:
        source, target = bench.put(values), bench.out((100_001,), DType.U8)
        rest = bench.inout(values)

        bench.stream.copy(target, source)
        bench.stream.clear(rest.rows(5, 1000))

        bench.check()
        np.testing.assert_array_equal(bench.read_tensor(target), values)
        cleared = values.copy()
        cleared[5:1005] = 0
        np.testing.assert_array_equal(bench.read_tensor(rest), cleared)


def test_another_thread_can_use_the_device() -> None:
    results: list[Any] = []

    def work() -> None:
        with CudaBench() as bench:
            results.append(bench.read_tensor(bench.put(np.arange(7, dtype=np.int32))))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    np.testing.assert_array_equal(results[0], np.arange(7))


def test_events_wait_and_keep_time() -> None:
    with CudaBench(nbytes=1 << 28) as bench:
        block = bench._arena.take((1 << 27,), DType.U8)
        start = bench.stream.record()
        for _ in range(10):
            bench.stream.clear(block)
        end = bench.stream.record()

        end.synchronize()

        assert end.elapsed_ms(start) > 0.1


def test_graph_repeats_the_eager_bits_on_new_data() -> None:
    rng = np.random.default_rng(1)
    weight = rng.integers(0, 1 << 14, 640).astype(np.uint16)
    with CudaBench() as bench:
        x = bench.inout(rng.integers(0, 1 << 14, (3, 640)).astype(np.uint16))
        words = bench.put(weight)
        eager, replayed = bench.out_columns(3, 640), bench.out_columns(3, 640)
        norm.rms_norm(bench.ctx, x, words, 1e-6, replayed)
        bench.stream.synchronize()
        bench.stream.begin_capture()
        norm.rms_norm(bench.ctx, x, words, 1e-6, replayed)
        graph = bench.stream.end_capture()
        bench.write(x, rng.integers(0, 1 << 14, (3, 640)).astype(np.uint16))

        norm.rms_norm(bench.ctx, x, words, 1e-6, eager)
        graph.launch(bench.stream)

        bench.check()
        first, second = bench.read_columns(eager), bench.read_columns(replayed)
        graph.close()
    np.testing.assert_array_equal(first, second)


def test_capture_runs_nothing() -> None:
    with CudaBench() as bench:
        gate_up = bench.activations(np.ones((2, 256), np.float32))
        out = bench.out_columns(2, 128)
        bench.stream.begin_capture()
        pointwise.swiglu(bench.ctx, gate_up, out)
        graph = bench.stream.end_capture()

        bench.check()
        untouched = bench.read_tensor(out.storage)
        graph.launch(bench.stream)
        graph.close()

        bench.check()
        assert (untouched == 0xFF).all()
        assert not (bench.read_tensor(out.storage) == 0xFF).all()


def test_a_chain_of_dependent_launches_sees_its_predecessors() -> None:
    """Links share one buffer that each reads or overwrites; early starts must not show."""
    rng = np.random.default_rng(4)
    table = rng.integers(0x3F00, 0x4000, (64, 1024)).astype(np.uint16)
    with CudaBench() as bench:
        matrix = bench.matrix(TensorFormat.BF16, table.reshape(-1).view(np.uint8), 64, 1024)
        weight = bench.put(np.zeros(1024, np.uint16))
        row = bench.out((1, 1024), DType.BF16)
        picks = [bench.put(np.array([i], np.int32)) for i in range(40)]
        chained, waited = ([bench.out_columns(1, 1024) for _ in range(40)] for _ in range(2))
        bench.stream.begin_capture()
        for pick, out in zip(picks, chained, strict=True):
            embedding.gather(bench.ctx, matrix, pick, row)
            norm.rms_norm(bench.ctx, row, weight, 1e-6, out)
        graph = bench.stream.end_capture()

        for _ in range(20):
            graph.launch(bench.stream)
        for pick, out in zip(picks, waited, strict=True):
            embedding.gather(bench.ctx, matrix, pick, row)
            bench.stream.synchronize()
            norm.rms_norm(bench.ctx, row, weight, 1e-6, out)
            bench.stream.synchronize()

        bench.check()
        got = np.stack([bench.read_columns(out) for out in chained])
        expected = np.stack([bench.read_columns(out) for out in waited])
        graph.close()
    np.testing.assert_array_equal(got, expected)
    assert len(np.unique(got[:, 0, 0])) > 10


def test_two_streams_have_scratch_of_their_own() -> None:
    with fresh_stream() as first, fresh_stream() as second:
        assert abs(first.scratch.address - second.scratch.address) >= first.scratch.nbytes


FAULT = """
import numpy as np
from ninfer.errors import InvariantError
from ninfer.ops import embedding
from ninfer.tensor import DType, TensorFormat
from tests.support.cuda_bench import CudaBench, cuda_device

bench = CudaBench()
table = bench.matrix(TensorFormat.BF16, np.zeros(64 * 64 * 2, np.uint8), 64, 64).rows(0, 4)
out = bench.out((1, 64), DType.BF16)
embedding.gather(bench.ctx, table, bench.put(np.array([4], np.int32)), out)
other = cuda_device().stream()
try:
    bench.stream.synchronize()
except InvariantError as error:
    print("reported", error)
bench.stream.copy(out, out)
try:
    other.synchronize()
except InvariantError as error:
    print("spread")
bench._arena.close()
cuda_device().close()
cuda_device().close()
print("closed")
"""


def test_trap_is_reported_spreads_and_still_closes() -> None:
    result = subprocess.run(
        [sys.executable, "-c", FAULT], capture_output=True, text=True, cwd=ROOT, env=os.environ
    )

    assert result.returncode == 0, result.stderr
    words = [line.split()[0] for line in result.stdout.splitlines()]
    assert words == ["reported", "spread", "closed"]


def test_pinned_memory_is_process_memory() -> None:
    arena = cuda_device().pinned_arena("probe", 64)

    view = host_array(arena.take((16,), DType.I32))
    view[...] = np.arange(16)

    assert view.sum() == 120
    arena.close()
