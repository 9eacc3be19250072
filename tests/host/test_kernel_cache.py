"""Compiled host kernels are kept in the user's folder, or nowhere, but never in the package."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WHERE = "from ninfer.kernels.host import norm; print(norm._rms_norm.stats.cache_path)"


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
