"""Compiled host kernels are kept in the user's folder, or nowhere, but never in the package."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WHERE = "from ninfer.kernels.host import norm; print(norm._rms_norm.stats.cache_path)"


USE = """
import resource, sys
import numpy as np
from ninfer.kernels.host import pointwise
if sys.argv[1:]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
out = np.zeros((1, 2), np.float32)
pointwise._swiglu(0, 1, np.ones((1, 4), np.float32), out)
print(out[0, 0], *map(len, pointwise._swiglu.stats[1:]))
"""
COMPILED, LOADED = ["0 1", "1 0"]  # hits and misses of the cache


def use_kernel(folder: Path, *arguments: str) -> str:
    """Run one kernel in a process of its own; returns whether it was loaded or compiled."""
    done = subprocess.run(
        [sys.executable, "-c", USE, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | {"NUMBA_CACHE_DIR": str(folder)},
    )
    assert done.returncode == 0, done.stderr
    value, _, how = done.stdout.strip().partition(" ")
    assert math.isclose(float(value), 1 / (1 + math.exp(-1)), rel_tol=1e-6)
    return how


def cache_path(**environment: str) -> str:
    kept = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", WHERE],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=kept | environment,
    )
    return done.stdout.strip()


def test_kernels_are_kept_in_the_cache_folder_of_the_user(tmp_path: Path) -> None:
    found = Path(cache_path(XDG_CACHE_HOME=str(tmp_path)))

    assert found.is_relative_to(tmp_path / "ninfer" / "host-kernels")


def test_variable_names_another_place(tmp_path: Path) -> None:
    assert Path(cache_path(NUMBA_CACHE_DIR=str(tmp_path))).is_relative_to(tmp_path)


@pytest.mark.parametrize("variable", ["XDG_CACHE_HOME", "NUMBA_CACHE_DIR"])
def test_kernels_work_where_nothing_can_be_kept(variable: str, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")

    assert cache_path(**{variable: str(blocked / "below")}) == "None"


def test_damaged_code_is_compiled_anew_and_heals(tmp_path: Path) -> None:
    assert use_kernel(tmp_path) == COMPILED
    assert use_kernel(tmp_path) == LOADED
    (path,) = tmp_path.rglob("*.kernel")
    content = bytearray(path.read_bytes())
    content[3000:3010] = bytes(10)
    path.write_bytes(content)

    assert use_kernel(tmp_path) == COMPILED
    assert use_kernel(tmp_path) == LOADED


def test_full_disk_costs_compiling_only(tmp_path: Path) -> None:
    assert use_kernel(tmp_path, "1000") == COMPILED
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert use_kernel(tmp_path, "1000") == COMPILED
