"""`cloister reproduce`: a paper's table or figure, run and set beside what the paper reports."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cloister.cli.output import interruptible, print_table, print_whole, program, say, say_wrapped
from cloister.errors import CloisterError, expect


def reproduce(
    ctx: typer.Context,
    scale: Annotated[
        str,
        typer.Option(help="full (as the paper), here (with data at hand), a part such as 0.1, small or tiny."),
    ] = "full",
    seeds: Annotated[str | None, typer.Option(help="Such as 0,1,2 [default: the file's].")] = None,
    jobs: Annotated[str, typer.Option(help="Runs at a time: a number, or auto.")] = "1",
    rows: Annotated[str | None, typer.Option(help="Only cells whose names match, such as 'DP-FedSAM*'.")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where to keep the runs [default: runs/reproduce-NAME-SCALE].")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the cells and what differs from the paper.")] = False,
) -> None:
    """Run a paper's table or figure, and set it beside the paper's numbers; without a name, list all.

    NAME is one of these, or the path of such a file (experiments/papers/README.md). KEY=VALUE, or --KEY VALUE,
    overrides a key of every run, such as --device cuda. The same command goes on where it was interrupted.
    """
    name, words = _name_and_words(ctx.args)
    if name is None:
        _list()
        return
    from cloister.runs.config_file import load
    from cloister.studies.papers.files import find, read
    from cloister.studies.papers.reproduce import Plan
    from cloister.studies.papers.scale import scale_of

    file = read(find(name))
    plan = Plan.of(file, scale_of(scale), _seeds(seeds), rows, load(None, words))
    say(f"{file.title}\n{file.about['citation']}\n")
    if dry_run:
        _show_cells(plan)
        return
    path = folder or plan.folder
    with interruptible(path, f"the same command goes on with what is in {path}"):
        try:
            for cell, _ in plan.run(path, _jobs(jobs), progress=True):
                say(f"{cell.folder}: done", err=True)
        finally:  # also of what there is when it is interrupted, which is said last
            if path.is_dir():
                result = plan.found(path)
                print_whole(result.terminal())
                for note in result.notes():
                    say_wrapped(f"\n{note}")
    say(f"\nkept in {path}: reproduce.md, reproduce.csv, reproduce.json, curves.csv")
    say(f"what each run was promised: {program()} show {path}/NAME")


def _name_and_words(arguments: list[str]) -> tuple[str | None, list[str]]:
    from cloister.cli.output import file_and_words

    file, words = file_and_words(arguments)
    return None if file is None else str(file), words


def _list() -> None:
    from cloister.runs.report.style import new_table
    from cloister.studies.papers.files import titles

    table = new_table("name", "what")
    table.columns[0].no_wrap = True
    table.columns[0].justify = table.columns[1].justify = "left"
    for name, title in titles().items():
        table.add_row(name, title)
    print_table(table)
    say(f"\nOne of them on a CPU, in seconds, without data files: {program()} reproduce NAME --scale tiny")


def _show_cells(plan: Any) -> None:
    from cloister.studies.papers.table import changes_text

    for cell in plan.cells:
        say(cell.name)
    say(f"\n{len(plan.cells)} cells, seeds {', '.join(map(str, plan.seeds))}")
    for line in changes_text(cell.changed for cell in plan.cells):
        say(line)
    for choice in plan.file.choices:
        say(f"\n{choice['about']}: {choice['chosen']}\n  ({choice['why']})")


def _seeds(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        seeds = [int(one) for one in text.strip("[]").split(",")]
    except ValueError:
        seeds = []
    expect(
        bool(seeds) and min(seeds) >= 0 and len(set(seeds)) == len(seeds),
        "different seeds such as 0,1,2",
        text,
        "give whole numbers that are not negative",
    )
    return seeds


def _jobs(text: str) -> Any:
    if text == "auto":
        return "auto"
    if not text.isdigit():
        raise CloisterError(f"Expected a number of jobs, or auto, found {text!r}: 1 runs cells one after the other.")
    return int(text)
