"""`cloister studio`: a page on this machine to look at runs, and to plan some."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cloister.cli.output import say
from cloister.errors import CloisterError

_RUNS = Path("runs")


def studio(
    folder: Annotated[Path, typer.Argument(help="Where runs are kept.")] = _RUNS,
    port: Annotated[int | None, typer.Option(help="The port [default: a free one].")] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
) -> None:
    """A page to look at runs: follow those under way, compare, open certificates and reports, plan others.

    It listens on this machine alone (127.0.0.1) and answers only who has the token in the address that it prints. It
    needs no network and writes nothing into runs. Ctrl-C ends it.
    """
    if not folder.is_dir() and folder != _RUNS:
        raise CloisterError(f"Expected a folder of runs, found no folder {folder}: check the name.")
    from cloister.studio.serve import serve

    say(f"runs in {folder}; Ctrl-C ends the page", err=True)
    serve(folder, port, browser, tell=say)
    say("ended", err=True)
