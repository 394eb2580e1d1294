"""`python -m mutants`: plant every bug, and show which test notices. Exit status 1 where one passes unnoticed."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from mutants.planted import ROOT, Mutant, Stale, mutants
from mutants.report import commit, merged, row_of, write
from mutants.trials import Copy, Killed, Outcome, import_once, trial


def main() -> int:
    """Plant all bugs, or those that are named."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="mutants, or subjects (all without any); results are merged")
    parser.add_argument("--jobs", type=int, default=2, help="copies of the source that are tested side by side")
    parser.add_argument("--list", action="store_true", help="name the mutants, and stop")
    parser.add_argument("--named", action="store_true", help="run the tests that are named, and no others")
    parser.add_argument("--dry", action="store_true", help="write no documents")
    given, console = parser.parse_args(), Console()
    if unknown := set(given.names) - {name for one in mutants() for name in (one.name, one.subject)}:
        parser.error(f"no mutant and no subject is called {', '.join(sorted(unknown))}: --list names them")
    if given.jobs < 1:
        parser.error(f"expected --jobs of at least 1, found {given.jobs}")
    chosen = [one for one in mutants() if not given.names or {one.name, one.subject} & set(given.names)]
    if given.list:
        console.print("\n".join(f"{one.subject}: {one.name}: {one.breaks}" for one in chosen))
        return 0
    try:
        for one in chosen:
            one.applied((ROOT / one.path).read_text())
    except (Stale, OSError) as stale:
        console.print(str(stale), style="red")
        return 2
    with tempfile.TemporaryDirectory(prefix="cloister-mutants-") as folder:
        found = _tried(chosen, given.jobs, not given.named, Path(folder), console)
    if found is None:
        return 2
    console.print(_table(found))
    rows = [row_of(one, commit()) for one in found]
    if not given.dry:
        write(merged(rows))
    alive = [one for one in found if one.by is None]
    for one in alive:
        console.print(f"{one.mutant.name}: {one.trouble or 'no test fails'}", style="red", markup=False)
    console.print(f"{len(found) - len(alive)} of {len(found)} planted bugs are caught.")
    return 1 if alive else 0


def _tried(chosen: list[Mutant], jobs: int, wide: bool, folder: Path, console: Console) -> list[Killed] | None:
    """What became of each; None where tests fail without any bug, so that nothing would be said by a failure."""
    import_once()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    workers = get_context("fork").Pool(jobs, _begin, (folder,))
    with workers, Progress(*columns, console=console, auto_refresh=False) as bar:  # no thread beside forks
        named: dict[str, set[str]] = {}
        for test in (test for one in chosen for test in one.tests):
            named.setdefault(test.partition("::")[0], set()).add(test)
        sound = bar.add_task("the tests without a bug", total=len(named))
        for outcome in workers.imap_unordered(_without_a_bug, map(sorted, named.values())):
            bar.update(sound, advance=1, refresh=True)
            if outcome.failed or outcome.trouble:
                told = f"Without any bug, {outcome.failed or outcome.trouble} fails: make the tests pass first."
                console.print(told, style="red", markup=False)
                return None
        task, found = bar.add_task("planted bugs", total=len(chosen)), {}
        for done in workers.imap_unordered(_attempt, [(one, wide) for one in chosen]):
            found[done.mutant.name] = done
            mark = "caught" if done.by else "NOT CAUGHT"
            told = f"{mark} {done.mutant.name} ({done.seconds:.0f} s) {done.by or done.trouble or ''}"
            bar.console.print(told, markup=False, highlight=False, soft_wrap=True, style="" if done.by else "red")
            bar.update(task, advance=1, refresh=True)
        return [found[one.name] for one in chosen]


_COPY: list[Copy] = []
"""A worker's own."""


def _begin(folder: Path) -> None:
    _COPY.append(Copy(folder / str(os.getpid())))


def _without_a_bug(tests: list[str]) -> Outcome:
    return _COPY[0].test(tests, first=False, timeout=3600)


def _attempt(what: tuple[Mutant, bool]) -> Killed:
    return trial(_COPY[0], *what)


def _table(found: list[Killed]) -> Table:
    table = Table("mutant", "killed by", "s")
    for one in found:
        table.add_row(one.mutant.name, escape(one.by) if one.by else "[red]nothing[/red]", f"{one.seconds:.0f}")
    return table


if __name__ == "__main__":
    sys.exit(main())
