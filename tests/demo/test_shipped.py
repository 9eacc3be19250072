"""The demo model is found where an installation puts it, or is missed by name."""

import configparser
import fnmatch
import subprocess
import zipfile
from pathlib import Path

import pytest

from ninfer.cli.exit_codes import ExitCode, exit_code_of
from ninfer.demo.shipped import ARTIFACT_NAME, shipped_model
from ninfer.errors import DemoModelMissing

ROOT = Path(__file__).resolve().parents[2]


def test_artifact_beside_the_package_is_found(tmp_path: Path) -> None:
    place = tmp_path / ARTIFACT_NAME
    place.write_bytes(b"x")

    assert shipped_model(tmp_path) == place


def test_installation_without_the_artifact_says_so(tmp_path: Path) -> None:
    with pytest.raises(DemoModelMissing, match=r"no demo model.*ninfer convert") as caught:
        shipped_model(tmp_path)

    assert caught.value.field == "model"
    assert exit_code_of(caught.value) is ExitCode.USAGE


def test_folder_of_that_name_is_no_artifact(tmp_path: Path) -> None:
    (tmp_path / ARTIFACT_NAME).mkdir()

    with pytest.raises(DemoModelMissing):
        shipped_model(tmp_path)


def test_artifact_inside_an_archive_is_as_good_as_missing(tmp_path: Path) -> None:
    archive = tmp_path / "installed.zip"
    with zipfile.ZipFile(archive, "w") as writer:
        writer.writestr(ARTIFACT_NAME, b"x")

    with pytest.raises(DemoModelMissing):
        shipped_model(zipfile.Path(archive))


def test_artifact_is_installed_with_the_package() -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg", encoding="utf-8")

    patterns = settings["options.package_data"]["ninfer.demo"].replace(",", " ").split()

    assert any(fnmatch.fnmatch(ARTIFACT_NAME, pattern) for pattern in patterns)


def test_artifact_is_not_ignored_by_version_control() -> None:
    path = f"ninfer/demo/{ARTIFACT_NAME}"

    found = subprocess.run(
        ["git", "check-ignore", "--quiet", "--no-index", path], cwd=ROOT, check=False
    )

    assert found.returncode == 1
