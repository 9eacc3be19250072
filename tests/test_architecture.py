"""The layout contract: twin names, file lengths, empty packages, public names."""

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FAMILIES = {
    "embedding",
    "norm",
    "linear",
    "attention",
    "kv_cache",
    "gated_delta",
    "moe",
    "pointwise",
    "sampling",
}
LONGEST_FILE = 400
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "base"}


def python_files() -> list[Path]:
    folders = ("ninfer", "tools", "tests", "benchmarks")
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def names(folder: str) -> set[str]:
    """Families of a folder: its files and packages."""
    found = set()
    for path in (ROOT / folder).iterdir():
        if path.suffix == ".py" or (path / "__init__.py").exists():
            found.add(path.stem)
    return found


def printed_by(code: str) -> str:
    """What a new interpreter prints, without the last line's end."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.strip()


@pytest.mark.parametrize("folder", ["ninfer/ops", "ninfer/kernels/host", "tests/support/oracles"])
def test_every_family_has_its_file(folder: str) -> None:
    assert names(folder) >= FAMILIES


def test_every_family_has_its_test() -> None:
    tested = {name.removeprefix("test_") for name in names("tests/ops")}

    assert tested >= FAMILIES


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_op_has_a_host_kernel_of_its_name(family: str) -> None:
    tree = ast.parse((ROOT / "ninfer" / "ops" / f"{family}.py").read_text(encoding="utf-8"))
    ops = [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.args.args and node.args.args[0].arg == "ctx"
    ]
    table = importlib.import_module(f"ninfer.kernels.host.{family}")

    assert ops
    assert [name for name in ops if not hasattr(table, name)] == []


def test_no_file_is_too_long_without_a_reason() -> None:
    too_long = []
    for path in python_files():
        source = path.read_text(encoding="utf-8")
        if source.count("\n") <= LONGEST_FILE:
            continue
        docstring = ast.get_docstring(ast.parse(source)) or ""
        if "400 lines" not in docstring:
            too_long.append(str(path.relative_to(ROOT)))

    assert too_long == []


def test_no_file_has_a_name_without_a_subject() -> None:
    assert [path for path in python_files() if path.stem in FORBIDDEN_NAMES] == []


def test_package_files_are_empty_apart_from_the_named_ones() -> None:
    allowed = {
        "ninfer/__init__.py",
        "ninfer/kernels/cuda/__init__.py",
        "ninfer/kernels/host/__init__.py",
        "ninfer/tensor_formats/__init__.py",
    }
    filled = {
        str(path.relative_to(ROOT))
        for path in python_files()
        if path.name == "__init__.py" and path.read_text(encoding="utf-8").strip()
    }

    assert {name for name in filled if not name.startswith("tests/")} <= allowed


def test_public_names_exist() -> None:
    package = importlib.import_module("ninfer")

    assert [name for name in package.__all__ if not hasattr(package, name)] == []


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, ninfer; print([m for m in ('numpy', 'numba', 'jinja2') if m in sys.modules])"
    )

    output = printed_by(code)

    assert output == "[]"


def test_modules_of_the_command_line_do_not_load_the_compiler() -> None:
    code = (
        "import sys; from ninfer.cli.main import build_parser; build_parser();"
        "print('numba' in sys.modules)"
    )

    output = printed_by(code)

    assert output == "False"


def test_a_command_waits_for_no_other_commands_modules() -> None:
    code = (
        "import sys; from ninfer.cli.main import build_parser; build_parser('chat');"
        "print([m for m in ('flask', 'ninfer.convert', 'ninfer.cli.bench') if m in sys.modules])"
    )

    output = printed_by(code)

    assert output == "[]"


def test_device_code_is_not_loaded_where_there_is_no_driver() -> None:
    code = (
        "import sys; from ninfer import model_stack; model_stack._DRIVER_LIBRARY = 'absent.so';"
        "print(model_stack.open_device('auto').kind, 'ninfer.cuda' in sys.modules)"
    )

    output = printed_by(code)

    assert output == "host False"


@pytest.mark.slow
def test_tests_are_in_the_same_order_in_every_process() -> None:
    """Processes beside each other collect the same; sets of texts have no order of their own."""
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"]

    first, second = (
        subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split("\n\n")[0]
        for seed in ("1", "2")
    )

    assert first.count("::") > 5000
    assert first == second
