"""What all tests share.

Markers: ``slow`` tests run with ``--slow``, ``gpu`` and ``browser`` tests where there is one.
Properties that name no number of examples have fewer without ``--slow``. Examples have no deadline:
a shared machine has no even pace. Matrix products of
oracles, which are small, are made by one thread: others would take more time than they save. What
collection has made lives to the end, and nobody looks for garbage in it.
"""

import ctypes
import gc
import os
import shutil

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when NumPy is imported


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()
    settings.register_profile(
        "shared-machine",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        max_examples=200 if config.getoption("--slow") else 50,
    )
    settings.load_profile("shared-machine")


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    skip_slow = pytest.mark.skip(reason="slow: run with --slow")
    skip_gpu = pytest.mark.skip(reason="gpu: no CUDA driver on this machine")
    skip_browser = pytest.mark.skip(reason="browser: chromium is not installed")
    has_browser = shutil.which("chromium") is not None
    has_driver = _has_driver()
    for item in items:
        if "slow" in item.keywords and not config.getoption("--slow"):
            item.add_marker(skip_slow)
        if "gpu" in item.keywords and not has_driver:
            item.add_marker(skip_gpu)
        if "browser" in item.keywords and not has_browser:
            item.add_marker(skip_browser)


def _has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
