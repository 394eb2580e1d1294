"""`cloister theory`: the papers' bounds beside what runs measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from cloister.cli.output import say
from cloister.errors import CloisterError


def theory(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs with record = norms,clipping (clients,signal).")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The picture [default: theory.png here].")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers instead of drawing them.")] = False,
    ideal: Annotated[
        float | None, typer.Option(help="Accuracy of the ideal model [default: that of runs without noise].")
    ] = None,
    distance: Annotated[float, typer.Option(help="l of PFL's l-utility.")] = 0.1,
) -> None:
    """The papers' bounds with the norms that runs recorded (NOT PRIVATE), beside what was measured.

    Clipping and noise (BLUR eq. 2), clip factors and Theorem 3 (DP-FedSAM); of runs with three or more numbers of
    clients also utility over their number (PFL Theorem 3).
    """
    from cloister.runs import measurement_file
    from cloister.runs.folder import RunFolder
    from cloister.runs.report import expect_plot
    from cloister.studies.bound_plots import bounds_plot
    from cloister.studies.measured_bounds import of_run, utility_of

    picture = output or Path("theory.png")
    if not as_json:
        expect_plot(picture)
    names = [path.name for path in runs]
    labels = {path: path.name if names.count(path.name) == 1 else str(path) for path in runs}
    over_clients = utility_of(runs, ideal, distance)
    for path in runs:
        RunFolder.open(path)
    read = {path: measurement_file.read(path) for path in runs}
    recorded = [path for path, found in read.items() if found and {"norms", "clipping"} <= set(found.names)]
    if not recorded and over_clients is None:
        raise CloisterError(
            "Expected a run that recorded norms and clipping, or runs with three numbers of clients, found neither: "
            "run it with record = norms,clipping,clients,signal."
        )
    found = {labels[path]: of_run(path) for path in recorded}
    if as_json:
        say(json.dumps({"runs": found, "utility": over_clients}, indent=1))
        return
    bounds_plot(found, over_clients, picture)
    for name, run in found.items():
        over = run["over_clips"]
        say(f"{name}: clip {over['used']:.3g}; by eq. 2 the least error is at {over['best']:.3g} ({run['mark']})")
    left_out = [labels[path] for path in runs if path not in recorded]
    if recorded and left_out and over_clients is None:
        say(f"left out, for they recorded no norms and clipping: {', '.join(left_out)}")
    say(f"plot: {picture}")
