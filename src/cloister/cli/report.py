"""`cloister report`: runs as one page of HTML."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cloister.cli.output import say, working


def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs, or of comparisons with runs inside.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page; what is there is replaced.")] = Path(
        "report.html"
    ),
    title: Annotated[str | None, typer.Option(help="Of the page [default: the first folder's name].")] = None,
    labels: Annotated[
        bool, typer.Option(help="Read the data of simulations again, to show who holds which class.")
    ] = True,
) -> None:
    """Runs as one HTML page, with figures, tables and certificates, that needs no network.

    Runs that differ only in their seed are drawn as one. What is exact on clients' data is marked NOT PRIVATE.
    """
    from cloister.studies.html.render import expect_page
    from cloister.studies.html.render import report as write

    expect_page(output)
    with working("reading runs"):
        page = write(folders, output, title=title, labels=labels)
    say(f"report: {page}")
