"""What a call of the library or of the command line came to, where only errors of ours are allowed."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import typer

from cloister.cli import app as application
from cloister.errors import CloisterError

LONGEST = 2000
"""An error of one sentence has fewer characters."""


_COMMANDS = typer.main.get_command(application.app)
"""Made once: it takes longer than most commands."""


class Unexpected(Exception):
    """Something was raised, or said, that no user should see."""


def sentence(error: CloisterError) -> str:
    """What an error says, where that is one sentence."""
    said = str(error)
    if not said or len(said.splitlines()) > 1 or len(said) > LONGEST:
        raise Unexpected(f"an error that is no sentence: {said[:300]!r}")
    return said


def of_library(call: Callable[[], Any]) -> Any:
    """What a call returned, or the error of ours that it raised; raises for everything else."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call()
    except CloisterError as error:
        sentence(error)
        return error


def of_command(*words: object) -> tuple[int, str, str]:
    """Status, output and errors of the command line in this process; raises for what would be a traceback."""
    out, err, before = io.StringIO(), io.StringIO(), (sys.argv, application.app)
    sys.argv, application.app = ["cloister", *map(str, words)], _COMMANDS
    status: int | str | None = 0
    try:
        with redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            application.main()
    except SystemExit as end:
        status = end.code
    finally:
        sys.argv, application.app = before
    code, said = int(status or 0), err.getvalue()
    if "Traceback" in said or code not in (0, 1, 2):
        raise Unexpected(f"status {code}: {said[-400:]}")
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    if code == 2 and not (len(errors) == 1 or "Usage:" in said):
        raise Unexpected(f"status 2 without a sentence: {said[-400:]!r}")
    return code, out.getvalue(), said
