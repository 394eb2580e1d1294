"""The end of a run on one page: what was reached, what was spent, whom it protects, who is trusted, what comes next."""

from __future__ import annotations

import math
import shlex
import textwrap
from typing import TYPE_CHECKING

from cloister.privacy.certificate_text import round_up
from cloister.runs.folder import RunFolder
from cloister.runs.metric_text import figure
from cloister.runs.report.runs import communication_text, kept_lines, scores_text
from cloister.runs.scores import watched_in

if TYPE_CHECKING:
    from rich.console import Console

    from cloister.privacy.certificate import Certificate
    from cloister.runs.result import Run

Rows = list[tuple[str, str]]
"""A word, and what there is to say; where the word repeats itself, it is a list."""

_LABEL = 9
"""Columns of the words at the left."""


def summary_rows(run: Run, folder: RunFolder) -> Rows:
    """What came of a run that has ended, by its folder."""
    certificate, sent = run.certificate, communication_text(folder)
    return [
        ("reached", _reached(run, folder)),
        *(("reached", more) for more in (scores_text(folder) or "").splitlines()),
        *((("stopped", run.stopped),) if run.stopped else ()),
        *(("spent", line) for line in _spent(certificate)),
        ("protects", _protects(certificate)),
        ("trusted", certificate.trusted if certificate.private else "everybody who sees an update or the model"),
        *((("noise", _SEEDED),) if certificate.private and not certificate.secure_rng else ()),
        *((("sent", sent.removeprefix("upload: ")),) if sent else ()),
        ("took", f"{run.seconds:.1f} s of training with the {run.engine} engine"),
        ("kept in", str(folder.path)),
    ]


_SEEDED = "from a seed, as in a simulation: whoever knows it can remove the noise; for a release use secure_rng=true"


def next_commands(run: Run, folder: RunFolder, program: str) -> Rows:
    """What to do with it, and how."""
    path = shlex.quote(str(folder.path))
    publish = [(f"{program} publish {path} -o public", "what may leave the house")]
    return [
        (f"{program} show {path}", "the certificate"),
        *(publish if run.certificate.private else []),
        (f"{program} report {path}", "as a page, with curves"),
    ]


def _reached(run: Run, folder: RunFolder) -> str:
    lines = folder.metrics()
    name, score = watched_in(kept_lines(folder, lines))
    kept = "" if run.best_round is None else f"; best by validation in round {run.best_round}"
    done = f"after {len(lines)} of {run.certificate.rounds_planned} rounds{kept}"
    return f"{name} {figure(name, score)} on test samples, {done}"


def _spent(certificate: Certificate) -> list[str]:
    if not certificate.private or math.isinf(certificate.epsilon):
        return ["without bound: no guarantee was asked for"]
    budget = certificate.budget
    of = "" if budget is None else f" of a budget of {budget['epsilon']:g}"
    own, *others = certificate.prices
    first = f"epsilon {round_up(own.epsilon_pld)}{of}, at delta {own.delta:g}"
    return [first, *(f"epsilon {round_up(one.epsilon_pld)} at delta {one.delta:g}" for one in others)]


def _protects(certificate: Certificate) -> str:
    if not certificate.private:
        return "nobody"
    whom = "any one sample of a client" if certificate.unit == "sample" else f"any one {certificate.unit} as a whole"
    return f"{whom} ({certificate.adjacency})"


def print_summary(console: Console, title: str, rows: Rows, commands: Rows) -> None:
    """In a frame on a terminal, as plain lines elsewhere. A command is never broken: it is to be copied."""
    if not console.is_terminal or console.is_dumb_terminal:
        for line in _plain(rows, commands, console.width):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        return
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0), expand=False)
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in _labeled(rows):
        grid.add_row(label, Text(text))
    inside = all(len(command) + _LABEL + 6 <= console.width for command, _ in commands)
    for label, text in _labeled([("next", command) for command, _ in commands]) if inside else ():
        grid.add_row(label, Text(text))
    console.print(
        Panel(grid, title=Text(title), title_align="left", expand=False, border_style="green"), highlight=False
    )
    for command, _ in () if inside else commands:
        console.print(command, markup=False, highlight=False, soft_wrap=True)


def _labeled(rows: Rows) -> Rows:
    """With an empty word where the one before is the same."""
    before = ["", *(label for label, _ in rows)]
    return [("" if label == last else label, text) for (label, text), last in zip(rows, before, strict=False)]


def _plain(rows: Rows, commands: Rows, width: int) -> list[str]:
    lines: list[str] = []
    for label, text in _labeled(rows):
        first = f"{label + ':' if label else '':<{_LABEL}} "
        wide = max(width, 40)
        lines += textwrap.wrap(
            text,
            wide,
            initial_indent=first,
            subsequent_indent=" " * len(first),
            break_long_words=False,
            break_on_hyphens=False,
        )
    widest = max((len(command) for command, _ in commands), default=0)
    return [*lines, "", "next:", *(f"  {command:<{widest}}  {what}" for command, what in commands)]
