"""Task entry points; every session uses the environment nox itself runs in.

``nox -s check`` is what a push needs. ``nox -s check -- --without-tests`` is the same for a caller
that has just run the tests.
"""

import shutil
from pathlib import Path

import nox

nox.options.default_venv_backend = "none"
nox.options.sessions = ["check"]

PYTHON = "python"
RACECHECKED = ("attention_on_cuda", "few_kernels_on_cuda", "gated_delta_on_cuda", "moe_on_cuda")
SANITIZED = {
    "memcheck": (
        *RACECHECKED,
        *("linear_on_devices", "wide_product_on_cuda", "whole_product_on_cuda"),
        *("narrow_product_on_cuda", "sampling_on_devices", "cache_on_devices"),
    ),
    "racecheck": RACECHECKED,
}
SIDE_BY_SIDE = ("-n", "2", "--dist", "loadfile")
"""Two processes; tests of one file share its fixtures in one of them."""
_NO_TESTS = 5  # what pytest ends with where none is chosen


@nox.session
def fix(session: nox.Session) -> None:
    """Format and apply safe lint fixes."""
    session.run("ruff", "format", ".")
    session.run("ruff", "check", "--fix", ".")


@nox.session
def lint(session: nox.Session) -> None:
    """Formatting and lint, read only."""
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Strict types."""
    session.run("mypy")


@nox.session
def layers(session: nox.Session) -> None:
    """Import contracts."""
    session.run("lint-imports")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the default tests; ``nox -s tests -- --slow`` adds the slow ones.

    ``nox -s tests -- -n 0 tests/ops`` has one process, and tests of one folder.
    """
    session.run(PYTHON, "-m", "pytest", "-q", *SIDE_BY_SIDE, *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Generated documentation is up to date."""
    session.run(PYTHON, "-m", "tools.docs", "--check")


@nox.session
def write_docs(session: nox.Session) -> None:
    """Regenerate the generated parts of the documentation."""
    session.run(PYTHON, "-m", "tools.docs")


@nox.session
def compile_kernels(session: nox.Session) -> None:
    """Compile every kernel of the 27B for sm_90; spills and exceeded budgets fail."""
    session.run(PYTHON, "-m", "ninfer", "compile", "--model-id", "qwen3.6-27b")


@nox.session
def compile_targets(session: nox.Session) -> None:
    """Every kernel of every model for sm_90, one geometry of each kind for the other targets."""
    session.run(
        *(PYTHON, "-m", "ninfer", "compile", "--all", "--every-target", "--one-geometry"),
    )


@nox.session
def compile_all(session: nox.Session) -> None:
    """Compile every kernel of every registered model for every target, with a JSON report.

    ``nox -s compile_all -- FILE`` names the report; ``build/kernels.json`` otherwise.
    """
    report = Path(session.posargs[0] if session.posargs else "build/kernels.json")
    report.parent.mkdir(parents=True, exist_ok=True)
    session.run(
        *(PYTHON, "-m", "ninfer", "compile", "--all", "--every-target", "--report", str(report))
    )


@nox.session
def gpu(session: nox.Session) -> None:
    """Tests that need a CUDA device: eight processes, then those that need it for themselves.

    All of them must have launched every kernel that a registered model declares.
    ``nox -s gpu -- -n 2 tests/ops`` has fewer processes, and tests of one folder.
    """
    plugin, folder = "tests.support.launch_coverage", Path(session.create_tmp()) / "launched"
    shutil.rmtree(folder, ignore_errors=True)
    noted = ("-p", plugin, "--launched", str(folder))
    together = ("-m", "gpu and not alone", "-n", "8", *session.posargs)
    alone = ("-m", "gpu and alone", *session.posargs, "-n", "0")
    for chosen in (together, alone):
        # Arguments may choose tests of one kind only: none of the other is no failure.
        session.run(PYTHON, "-m", "pytest", "-q", *noted, *chosen, success_codes=(0, _NO_TESTS))
    if not session.posargs:
        session.run(PYTHON, "-m", plugin, str(folder))


@nox.session
def sanitize(session: nox.Session) -> None:
    """Tests of ops on a CUDA device under memcheck and racecheck: ``-- FILE...`` takes some.

    racecheck does not come back from kernels whose clusters exchange sums or tallies
    (docs/cuda-kernels.md): by itself it takes files without them.
    """
    for tool, files in SANITIZED.items():
        session.run(
            *("compute-sanitizer", "--tool", tool, "--error-exitcode", "9"),
            *(PYTHON, "-m", "pytest", "-q", "-m", "gpu and not alone"),
            *(session.posargs or [f"tests/ops/test_{name}.py" for name in files]),
            external=True,
        )


@nox.session
def bench(session: nox.Session) -> None:
    """Run a benchmark; ``nox -s bench -- gateway_load 5`` names another one."""
    name, *arguments = session.posargs or ["host_linear"]
    session.run(PYTHON, "-m", f"benchmarks.{name}", *arguments)


@nox.session
def check(session: nox.Session) -> None:
    """Everything a push needs."""
    lint(session)
    types(session)
    layers(session)
    docs(session)
    compile_targets(session)
    if "--without-tests" not in session.posargs:
        session.run(PYTHON, "-m", "pytest", "-q", *SIDE_BY_SIDE)
