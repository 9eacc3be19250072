"""Kernels of a recording are compiled before its first launch, whoever compiles them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ninfer.host import ahead
from ninfer.host.ahead import Job, compile_ahead
from ninfer.kernels.host import norm, pointwise, sampling
from tests.support.tiny_model import artifact_path

ROOT = Path(__file__).resolve().parents[2]
CODE = """
import sys
from ninfer.config import EngineConfig
from ninfer.host.ahead import Job, is_on_disk
from ninfer.runtime import Engine
told = []
with Engine(
    sys.argv[1],
    config=EngineConfig(max_context=256, device="host"),
    compiling=lambda *report: told.append(report),
) as engine:
    prompt = engine.prepare([{"role": "user", "content": "Name three metals."}])
    print(engine.chat([{"role": "user", "content": "Name three metals."}]).usage.prompt_tokens)
names = {"gated_delta": "_advance", "attention": "_attend", "linear": "_project_rows"}
print(told == sorted(told), told[0][0], told[-1][0] == told[-1][1] > 5)
print(all(is_on_disk(Job(f"ninfer.kernels.host.{m}", n, ()).kernel()) for m, n in names.items()))
"""


def test_calls_that_are_no_kernels_need_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "module_process", lambda *_: pytest.fail("nothing is missing"))

    compile_ahead([(print, ("x",)), (len, ([],))])


def test_every_missing_kernel_is_compiled_even_without_a_second_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[tuple[str, object]] = []

    class Kernel:
        def __init__(self, name: str) -> None:
            self.name = name
            self.overloads: dict[object, object] = {}

        def compile(self, types: object) -> None:
            compiled.append((self.name, types))

    monkeypatch.setattr(sys, "executable", "no interpreter")
    monkeypatch.setattr(ahead, "is_on_disk", lambda *_: False)
    monkeypatch.setattr(Job, "kernel", lambda job: Kernel(job.name))
    kernels = [norm._rms_norm, pointwise._swiglu, sampling._count_tokens]

    told: list[tuple[int, int]] = []
    compile_ahead([(kernel, (1.0,)) for kernel in kernels], lambda *report: told.append(report))

    assert [name for name, _ in compiled] == ["_rms_norm", "_swiglu", "_count_tokens"]
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_what_the_other_process_has_brought_counts_as_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there: set[str] = set()

    class Kernel:
        def __init__(self, name: str) -> None:
            self.name = name

        def compile(self, types: object) -> None:
            there.update((self.name, "d"))

    monkeypatch.setattr(Job, "is_on_disk", lambda job: job.name in there)
    monkeypatch.setattr(Job, "kernel", lambda job: Kernel(job.name))
    told: list[tuple[int, int]] = []

    jobs = [Job("module", name, ()) for name in "abcd"]
    ahead._compile(jobs, lambda *report: told.append(report))

    assert told == [(0, 4), (2, 4), (3, 4), (4, 4), (4, 4)]


@pytest.mark.slow
def test_cold_start_fills_the_cache_and_answers(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(artifact_path("tiny-dense", "bf16"))],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
    )

    assert done.stdout.split() == ["28", "True", "0", "True", "True"]
