"""The devices that a test body runs on: always the host, and CUDA where there is one."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.cuda_bench import CudaBench
from tests.support.guarded_bench import GuardedBench

BenchFactory = Callable[..., Any]
"""`GuardedBench` or `CudaBench`: the same methods."""

every_device = pytest.mark.parametrize(
    "make_bench",
    [
        pytest.param(GuardedBench, id="host"),
        pytest.param(CudaBench, id="cuda", marks=pytest.mark.gpu),
    ],
)
