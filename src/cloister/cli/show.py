"""`cloister show`: what runs reached, what they spent, and what they recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from cloister.cli.output import print_table, program, say
from cloister.errors import CloisterError, expect_one_of

_PICTURES = ("score", "loss", "norms", "clipping", "gradients", "cosine", "signal", "sparsity", "thresholds")


def show(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs; several are compared.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the certificates as JSON.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the watched metric and epsilon over rounds.")] = None,
    of: Annotated[
        str,
        typer.Option(
            help="What to draw instead: loss, or recorded norms, clipping, gradients, cosine, signal, sparsity, "
            "thresholds."
        ),
    ] = "score",
    epsilon: Annotated[
        list[float] | None, typer.Option(help="The last score within this epsilon; can be given several times.")
    ] = None,
    measurements: Annotated[
        bool, typer.Option("--measurements", help="What was recorded, round by round (NOT PRIVATE).")
    ] = False,
    clients: Annotated[
        bool, typer.Option("--clients", help="What each client's samples have lost, and each client's score.")
    ] = False,
) -> None:
    """What a run reached and what it spent, computed afresh from its ledger."""
    from cloister.privacy.description import plain
    from cloister.runs import measurement_file, report
    from cloister.runs.folder import RunFolder

    expect_one_of("--of", of, _PICTURES)
    if plot is not None:
        report.expect_plot(plot)
    elif of != "score":
        raise CloisterError(f"Expected --plot beside --of, found --of {of} alone: add --plot {of}.png.")
    names = [path.name for path in runs]
    folders = {p.name if names.count(p.name) == 1 else str(p): RunFolder.open(p) for p in runs}
    certificates = {name: folder.certificate() for name, folder in folders.items()}
    if as_json:
        found = [plain(certificate.to_json()) for certificate in certificates.values()]
        say(json.dumps(found[0] if len(found) == 1 else found, indent=2))
    else:
        print_table(report.runs_table(folders))
        for name, folder in folders.items():
            for more in (report.scores_text(folder), report.communication_text(folder)):
                if more is not None:
                    say(more if len(folders) == 1 else f"{name}: {more}")
            recorded = measurement_file.read(folder.path)
            if recorded is not None:
                say(("" if len(folders) == 1 else f"{name}: ") + report.measurements_text(recorded))
            if not folder.finished:
                say(f"{name} has not ended: continue it with `{program()} resume {folder.path}`.")
        if epsilon:
            say("\nThe last score within each epsilon:\n")
            print_table(report.epsilons_table(folders, epsilon))
        if measurements:
            for name, folder in folders.items():
                _show_measurements(name, folder)
        if len(folders) == 1 and not (clients or epsilon or measurements):
            say(f"\n{next(iter(certificates.values()))}")
    if clients and not as_json:
        for name, folder in folders.items():
            _show_clients(name, folder)
    if plot is not None:
        if of == "score":
            report.runs_plot(folders, plot)
        else:
            curves = {n: report.Curves(f.metrics(), measurement_file.read(f.path)) for n, f in folders.items()}
            report.measurements_plot(curves, plot, of)
        say(f"plot: {plot}", err=True)


def _show_measurements(name: str, folder: Any) -> None:
    """What a run recorded, round by round."""
    from cloister.runs import measurement_file, report

    recorded = measurement_file.read(folder.path)
    if recorded is None:
        raise CloisterError(f"Expected a run that recorded something, found none in {folder.path}: run it with record.")
    for title, table in report.measurements_tables(recorded).items():
        say(f"\n{name}, {title}:\n")
        print_table(table)


def _show_clients(name: str, folder: Any) -> None:
    """What is known of single clients: accounts, where samples are protected, and scores, where some were kept."""
    from cloister.runs import client_files, report

    scores = client_files.read(folder.path)
    if scores is None or folder.description().method.unit == "sample":
        say(f"\n{name}, client by client:\n")
        print_table(report.clients_table(folder))
    if scores is not None:
        say(f"\n{name}, scores client by client:\n")
        print_table(report.client_scores_table(*scores))
        say(f"\n{report.client_scores_text(*scores)}")
