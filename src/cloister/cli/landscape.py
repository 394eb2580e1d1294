"""`cloister landscape`: the loss around the models of some runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from cloister.cli.output import say, working
from cloister.errors import expect


def landscape(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs that have ended; several share axes and colors.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The picture [default: landscape.png in the run's folder].")
    ] = None,
    points: Annotated[int, typer.Option(help="Points along each direction; an odd number.")] = 21,
    range: Annotated[float, typer.Option(help="How far to go, in lengths of the model's filters.")] = 1.0,
    samples: Annotated[int, typer.Option(help="On so many samples, drawn by the seed; 0 for all.")] = 1000,
    of: Annotated[str, typer.Option(help="test, or train (NOT PRIVATE, of simulations alone).")] = "test",
    seed: Annotated[int, typer.Option(help="Of the random directions.")] = 0,
    dimensions: Annotated[int, typer.Option(help="2 for a plane, 1 for a line.")] = 2,
    hessian: Annotated[bool, typer.Option("--hessian/--no-hessian", help="Its largest eigenvalue, too.")] = True,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    model: Annotated[
        str | None, typer.Option(help="package.module:function that made the model, where it is your own.")
    ] = None,
) -> None:
    """The loss and accuracy around the final model, along filter-normalized random directions (Li et al. 2018).

    Numbers go into landscape.json in the run's folder, which no other file refers to.
    """
    from cloister.runs.report import expect_plot
    from cloister.studies.landscape import landscape as around
    from cloister.studies.landscape import write_landscape
    from cloister.studies.landscape_plots import landscape_plot
    from cloister.studies.run_task import task_of

    expect(len(runs) == 1 or output is not None, "-o FILE for several runs", "none", "name the picture")
    picture = output or runs[0] / "landscape.png"
    tasks = {path: task_of(path) for path in runs}
    expect_plot(picture)
    found = {}
    for path, task in tasks.items():
        with working(f"the loss around {path.name}"):
            one = around(
                path,
                task,
                points,
                range,
                samples or None,
                cast(Literal["test", "train"], of),  # which is checked there
                seed,
                dimensions,
                device,
                hessian,
                model,
            )
        name = path.name if [other.name for other in runs].count(path.name) == 1 else str(path)
        found[name] = one
        rise = ", ".join(f"{value:.3g} at {radius}" for radius, value in one.sharpness.rise.items())
        top = "" if one.sharpness.hessian is None else f"; largest eigenvalue {one.sharpness.hessian:.4g}"
        say(f"{name}: {one.of} loss {one.center:.4f} on {one.samples} samples, rises by {rise}{top}")
        say(f"{write_landscape(path, one)}: {one.note}")
    landscape_plot(found, picture)
    say(f"plot: {picture}")
