"""`cloister data`: what there is, getting it, and looking at how it would be dealt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cloister.cli import interrupts
from cloister.cli.commands import Command
from cloister.cli.output import file_and_words, print_table, say
from cloister.errors import CloisterError

data_app = typer.Typer(name="data", help="Data sets: list them, get them, look at a partition.", no_args_is_help=True)


@data_app.command("list", cls=Command)
def list_sets(
    name: Annotated[str | None, typer.Argument(help="One data set, in full: license, citation, files.")] = None,
) -> None:
    """What there is, what is here, how large it is, and under which license."""
    from cloister.data import registry, storage

    root = storage.data_folder()
    if name is not None:
        say(storage.describe(registry.entry(name), root))
        return
    print_table(storage.list_table(root))
    say(f"\nThe data folder is {root}; set CLOISTER_DATA to choose another.")


@data_app.command(cls=Command)
def get(
    name: Annotated[str, typer.Argument(help="The data set.")],
    replace: Annotated[bool, typer.Option("--replace", help="Fetch again what is there but not as published.")] = False,
) -> None:
    """Download a data set from its official place, with checksum; an interrupted download is resumed."""
    from cloister.data import download, registry, storage

    root = storage.data_folder()
    with interrupts.working():
        download.get(registry.entry(name), root, replace=replace)
    say(f"{name} is in {root}")


@data_app.command(
    cls=Command,
    options_metavar="NAME [KEY=VALUE ...] [OPTIONS]",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def show(
    ctx: typer.Context,
    plot: Annotated[Path | None, typer.Option(help="Where to draw labels per client [NAME-PARTITION.png].")] = None,
) -> None:
    """How a data set would be dealt: labels per client as a table and a plot.

    Keys are those of `cloister run`: cloister data show cifar10 partition=dirichlet alpha=0.3 clients=100
    """
    import numpy as np

    from cloister.data.plots import labels_plot, labels_table
    from cloister.runs.config import build_task, load
    from cloister.runs.report import expect_plot

    name, words = file_and_words(ctx.args)
    if name is None:
        raise CloisterError("Expected the name of a data set, found none: `cloister data list` names them.")
    values = load(None, [f"data={name}", *words])
    if plot is not None:
        expect_plot(plot)
    task, partition = build_task(values)
    owners = np.repeat(np.arange(task.clients), task.population.sizes.numpy())
    counts = np.zeros((task.clients, task.classes or 1), dtype=np.int64)
    labels = task.population.labels.numpy()
    np.add.at(counts, (owners[:, None] if labels.ndim > 1 else owners, labels), 1)
    print_table(labels_table(counts))
    if task.public_samples is not None:
        say(f"\npublic: {len(task.public_samples[1]):,} samples that are nobody's of these")
    path = plot or Path(f"{str(name).rpartition(':')[2]}-{partition}.png")
    labels_plot(counts, path, f"{name}, {partition} partition, {task.clients} clients")
    say(f"\nplot: {path}")
