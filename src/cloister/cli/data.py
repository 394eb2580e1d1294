"""`cloister data`: what there is, getting it, looking at how it would be dealt, and a schema for one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cloister.cli import interrupts
from cloister.cli.commands import Command
from cloister.cli.output import file_and_words, print_table, say, short_name
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
    options_metavar="NAME|PATH [KEY=VALUE ...] [OPTIONS]",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def show(
    ctx: typer.Context,
    plot: Annotated[Path | None, typer.Option(help="Where to draw labels per client [NAME-PARTITION.png].")] = None,
) -> None:
    """How a data set would be dealt: labels per client as a table and a plot.

    Keys are those of `cloister run`: cloister data show cifar10 partition=dirichlet alpha=0.3 clients=100,
    or of your own data: cloister data show hospitals/ schema=schema.toml
    """
    from cloister.runs import catalogue
    from cloister.runs.config_file import load
    from cloister.runs.report import expect_plot
    from cloister.runs.resolution import resolve

    name, words = file_and_words(ctx.args)
    if name is None:
        raise CloisterError("Expected the name of a data set, found none: `cloister data list` names them.")
    values = {**load(None, words), "data": str(name)}
    catalogue.refuse_slips(values, lambda known: resolve(known, values, ("data", "partition")))
    if plot is not None:
        expect_plot(plot)
    from cloister.data.plots import label_counts, labels_plot, labels_table
    from cloister.runs.config import build_task

    task, partition = build_task(values)
    counts = label_counts(task)
    names = task.class_names or None if task.loss.classes else [task.loss.name]
    print_table(labels_table(counts, names, clients=task.client_names))
    if task.public_samples is not None:
        say(f"\npublic: {len(task.public_samples[1]):,} samples that are nobody's of these")
    path = plot or Path(f"{short_name(str(name))}-{partition}.png")
    labels_plot(counts, path, f"{name}, {partition} partition, {task.clients} clients")
    say(f"\nplot: {path}")


@data_app.command(cls=Command)
def inspect(
    path: Annotated[Path, typer.Argument(help="A client's file, or a folder of them (then its first file is read).")],
    label: Annotated[str | None, typer.Option(help="The column of labels [default: a guess].")] = None,
    client: Annotated[str | None, typer.Option(help="For one file: the column that says whose a row is.")] = None,
    files: Annotated[str | None, typer.Option(help="For a folder: which files are clients', such as '*.data'.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where to write it [default: print].")] = None,
) -> None:
    """Draft a schema from one client's file, to be checked and corrected by hand.

    A draft tells of the data it was made from: ranges and categories have to come from what is publicly known.
    """
    from cloister.data.user.drafts import WARNING, draft

    if output is not None and output.exists():
        raise CloisterError(f"Expected a new file, found {output}: remove it, or write elsewhere.")
    text, source = draft(path, label, client, files)
    say(f"drafted from {source}\nnote: {WARNING}", err=True)
    if output is None:
        say(text.rstrip("\n"))
        return
    output.write_text(text, encoding="utf-8")
    say(f"schema: {output}")
