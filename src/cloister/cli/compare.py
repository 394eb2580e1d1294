"""`cloister compare`: many runs side by side, as a file and lists of values ask for them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cloister.cli.output import (
    file_and_words,
    interruptible,
    new_folder,
    print_whole,
    program,
    say,
    say_wrapped,
    working,
)
from cloister.errors import CloisterError

if TYPE_CHECKING:
    from cloister.studies.compare import Comparison

_MOST_LISTED = 60
"""Runs that are also shown one by one."""

_NOT_CHOSEN = (
    *("epsilon", "delta", "noise_multiplier", "data", "split", "partition", "clients", "fraction", "test_fraction"),
    *("alpha", "split_seed", "trust", "record"),
)
"""Keys that say what is asked, and not how well it is done: their best value is no choice by results."""


def compare(
    ctx: typer.Context,
    folder: Annotated[Path | None, typer.Option(help="Where to keep the runs [default: runs/compare-TIME].")] = None,
    jobs: Annotated[str, typer.Option(help="Runs at a time; auto: as many as cores and memory allow.")] = "auto",
    threads: Annotated[int, typer.Option(help="Threads of a run; another number rounds otherwise.")] = 1,
    quiet: Annotated[bool, typer.Option("--quiet", help="Neither how far it is nor a line for every run.")] = False,
) -> None:
    """Many runs on the same data: methods, epsilons, seeds, values of any key; with means, intervals and a ranking.

    \b
    methods at equal epsilon; the same over seeds; one run's file, over its keys:
      cloister compare experiments/digits-methods.toml
      cloister compare experiments/digits-methods.toml 'seed=[0,1,2,3,4]'
      cloister compare experiments/digits.toml 'lr=[0.3,1]' 'epsilons=[2,8]'
      cloister compare data=digits 'method=[pfl,dp_fed]' 'seed=[0,1,2]' ...

    KEY=VALUE is for every run, and KEY=[VALUE,VALUE] runs each value. A key whose own value may be a list takes a list
    of lists. With the folder of a comparison that was interrupted, it goes on. In the folder: results.json, the table
    as table.md, table.csv and table.tex, and compare.png.
    """
    from cloister.runs.config_file import load

    file, words = file_and_words(ctx.args)
    if file is None and not words:
        raise CloisterError(
            "Expected a file, or keys of runs to compare, found neither: try cloister compare data=digits "
            "'method=[pfl,dp_fed]' clients=10 cohort=full local_epochs=1 rounds=20 epsilon=8 delta=1e-3 'seed=[0,1,2]'."
        )
    load(file, words)  # refuses what cannot be read before anything heavy is imported
    count = _jobs(jobs)
    from cloister.runs import report
    from cloister.studies.compare import Comparison
    from cloister.studies.execution import CellsFailed
    from cloister.studies.planning import planned

    path = folder or new_folder("compare")
    command = shlex.join(["cloister", "compare", *([] if file is None else [str(file)]), *words])
    with working("checking all runs"):
        comparison = Comparison(planned(file or {}, words), path)
    with interruptible(path, f"the same command with --folder {path} goes on from here"):
        try:
            for cell, found in comparison.run(count, command=command, threads=threads, progress=True, quiet=quiet):
                if not quiet:
                    say(f"{cell.folder}: {report.in_words(found)}", err=True)
        except CellsFailed as failed:
            for name, why in failed.failures.items():
                say(f"failed: {name}: {why}", err=True)
            raise
        finally:
            _show(comparison)
    say(f"\nplot: {path / 'compare.png'}; tables: {path / 'table.md'}, .csv, .tex; figures: {path / 'results.json'}")
    say(f"what each was promised: {program()} show {path}/NAME")


def _show(comparison: Comparison) -> None:
    """What there is so far."""
    from cloister.runs import report
    from cloister.studies.ranking_text import cautions, ranking_text
    from cloister.studies.rows import keys_that_differ
    from cloister.studies.tables import rich_table

    rows = comparison.rows
    if not rows:
        return
    print_whole(rich_table(rows))
    if len(comparison.results) <= _MOST_LISTED:
        say("")
        print_whole(report.comparison_scores_table(comparison.results))
    chosen = [key for key in keys_that_differ(rows) if key not in _NOT_CHOSEN]
    say_wrapped(ranking_text(comparison.ranking(), swept=chosen))
    say_wrapped(cautions(rows))
    if len(rows) > 1:
        told = [key for key in rows[0].swept if all(key in row.swept for row in rows)]
        say_wrapped(report.settings_text(comparison.settings, told))


def _jobs(words: str) -> int | Literal["auto"]:
    if words == "auto":
        return "auto"
    if not words.isdecimal() or int(words) < 1:
        raise CloisterError(f"Expected --jobs to be a number of at least 1, or auto, found {words!r}: give one.")
    return int(words)
