"""Markers: ``slow`` tests run with ``--slow``, ``gpu`` tests where there is a CUDA device."""

import ctypes.util

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    skip_slow = pytest.mark.skip(reason="slow: run with --slow")
    skip_gpu = pytest.mark.skip(reason="gpu: no CUDA driver on this machine")
    has_driver = ctypes.util.find_library("cuda") is not None
    for item in items:
        if "slow" in item.keywords and not config.getoption("--slow"):
            item.add_marker(skip_slow)
        if "gpu" in item.keywords and not has_driver:
            item.add_marker(skip_gpu)
