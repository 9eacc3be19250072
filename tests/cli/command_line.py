"""Run the command line in this process and collect what it writes."""

import contextlib
import io
import json
from dataclasses import dataclass
from typing import Any

from ninfer.cli.main import main


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one command ended with."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Standard output as one JSON document."""
        return json.loads(self.out)


def run(*arguments: object) -> Outcome:
    """Run ``ninfer`` with these arguments; usage errors of argparse become their exit code."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = int(main([str(argument) for argument in arguments]))
        except SystemExit as leaving:
            code = int(leaving.code or 0)
    return Outcome(code, out.getvalue(), err.getvalue())
