"""The command line: thin. It reads words, calls the library, and prints what comes back."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from cloister.cli import after
from cloister.cli.attack import attack
from cloister.cli.audit import audit
from cloister.cli.commands import Command, Commands
from cloister.cli.compare import compare
from cloister.cli.completion.command import completion
from cloister.cli.data import data_app
from cloister.cli.federation import federation_app
from cloister.cli.first_steps import first_steps
from cloister.cli.identity_keys import new as new_key
from cloister.cli.identity_keys import show as show_key
from cloister.cli.join import join
from cloister.cli.keys import RunCommand, keys
from cloister.cli.landscape import landscape
from cloister.cli.output import file_and_words, interruptible, new_folder, print_table, program, say, short_name, stdout
from cloister.cli.plan import PlanCommand, plan
from cloister.cli.publish import certificate, publish
from cloister.cli.report import report as write_report
from cloister.cli.reproduce import reproduce
from cloister.cli.serve import serve
from cloister.cli.show import show
from cloister.cli.studio import studio
from cloister.cli.theory import theory
from cloister.cli.tune import tune
from cloister.cli.verify import verify
from cloister.errors import CloisterError, Note

app = typer.Typer(
    name="cloister",
    cls=Commands,
    help="Differentially private federated learning: train, plan, resume, and show what was spent.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


app.add_typer(data_app)
app.add_typer(federation_app)
for _command in (serve, join, publish, certificate, verify):
    app.command(cls=Command)(_command)
app.command(cls=Command, context_settings={"allow_extra_args": True})(completion)
app.command("keys new", cls=Command)(new_key)
app.command("keys show", cls=Command)(show_key)
app.command(cls=Command)(after.predict)
app.command(cls=Command)(after.export)
_ANY_KEYS = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command(
    cls=RunCommand,
    options_metavar="[FILE.toml] [KEY=VALUE ...] [OPTIONS]",
    context_settings=_ANY_KEYS,
)
def run(
    ctx: typer.Context,
    folder: Annotated[Path | None, typer.Option(help="Where to keep the run [default: runs/METHOD-DATA-TIME].")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not show how far it is.")] = False,
) -> None:
    """Train, and certify what it cost.

    A run is described by flat keys in a TOML file; each can be given or overridden on the command line, as
    KEY=VALUE or as --KEY VALUE. On several GPUs or machines: torchrun ... -m cloister run ...
    """
    from cloister.runs import catalogue
    from cloister.runs.config_file import load
    from cloister.runs.resolution import resolve

    file, words = file_and_words(ctx.args)
    given = load(file, words)
    catalogue.refuse_slips(given, lambda known: resolve(known, given, more=known.run))
    from cloister.runs.config import build

    experiment = build(given)
    values = experiment.values
    name = "-".join(short_name(str(values[part])) for part in ("method", "data"))
    path = folder or new_folder(name)
    _run(experiment.start, path, config=experiment.toml, progress=not quiet)


@app.command(cls=Command)
def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of the run.")],
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not show how far it is.")] = False,
) -> None:
    """Continue a run that was interrupted; the result is the same as if it had not been."""
    from cloister.runs.folder import RunFolder

    run_folder = RunFolder.open(folder)
    if not (folder / "config.toml").is_file():
        raise CloisterError(
            f"Expected config.toml in {folder}, found none: the run was started from Python, so continue it there with "
            "cloister.run(..., folder=..., resume=True)."
        )
    if run_folder.finished:
        say(f"{folder} has already ended; `{program()} show {folder}` tells how.")
        return
    from cloister.runs.config import build
    from cloister.runs.config_file import load

    _run(build(load(folder / "config.toml")).start, folder, resume=True, progress=not quiet)


app.command(cls=PlanCommand, options_metavar="[FILE.toml] [KEY=VALUE ...] [OPTIONS]", context_settings=_ANY_KEYS)(plan)
app.command(cls=Command, options_metavar="[FILE.toml] [KEY=VALUE ...] [OPTIONS]", context_settings=_ANY_KEYS)(audit)
app.command(cls=Command, options_metavar="[METHOD] [KEY=VALUE ...]", context_settings=_ANY_KEYS)(keys)
app.command(cls=Command)(show)
app.command(cls=Command)(landscape)
app.command(cls=Command)(attack)
app.command(cls=Command)(theory)
app.command("report", cls=Command)(write_report)
app.command(cls=Command)(studio)
app.command(cls=Command, options_metavar="[NAME] [KEY=VALUE ...] [OPTIONS]", context_settings=_ANY_KEYS)(reproduce)


@app.command(cls=Command)
def methods(
    name: Annotated[str | None, typer.Argument(help="One method, with all its keys.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """All methods: whom they protect, who must be trusted, whose they are, and what is proven."""
    from cloister.runs import catalogue, report

    if name is not None and not as_json:
        keys = catalogue.ask(lambda known: known.method_keys(name))  # refuses a name that does not exist
        choice = catalogue.ask(lambda known: known.choice("method", name))
        say(choice.text + "\n")
        print_table(report.keys_table(keys))
        if choice.facts is not None and choice.facts.published:
            say(f"\nmode = as_published: {choice.facts.published}.")
        return
    known = {name: choice.facts for name, choice in catalogue.stored().choices["method"].items() if choice.facts}
    if as_json:
        say(json.dumps(known, indent=2, default=vars))
        return
    print_table(report.methods_table(known))
    say(
        "\nWhat is proven holds at the epsilon of a run's certificate. A secure sum is secure\n"
        "aggregation with noise from the clients (noise = distributed). With mode = as_published a\n"
        f"method does what its authors ran, and is priced as that. Keys of one: {program()} methods NAME"
    )


app.command(cls=Command, options_metavar="[FILE.toml] [KEY=VALUE ...] [OPTIONS]", context_settings=_ANY_KEYS)(compare)


app.command(
    cls=Command,
    options_metavar="[FILE.toml] KEY=LOW..HIGH KEY=A,B,C [KEY=VALUE ...] [OPTIONS]",
    context_settings=_ANY_KEYS,
)(tune)


@app.command(cls=Command)
def demo(
    folder: Annotated[Path | None, typer.Option(help="Where to keep the runs [default: runs/demo-TIME].")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the simulation.")] = 0,
) -> None:
    """Train on real handwritten digits of 300 clients: without privacy, at epsilon 8, at epsilon 2."""
    import torch

    from cloister.runs import figures, report
    from cloister.studies.demo import planned
    from cloister.studies.execution import run_cells

    torch.set_num_threads(1)  # enough for so small a model, and the same noise whatever the number of cores
    path = folder or new_folder("demo")
    with interruptible(path, f"`{program()} demo --seed {seed} --folder {path}` goes on from here"):
        folders = {run.label: run_folder for run, run_folder in run_cells(planned(seed), path, progress=True)}
    say("\nTest accuracy, and the most that a client can lose by taking part:\n")
    print_table(report.runs_table(folders))
    figures.write_demo(folders, path, f"cloister demo --seed {seed}")
    say("")
    for label, run_folder in folders.items():
        say(f"{label + ':':<12} {run_folder.path}")
    say(f"{'plot:':<12} {path / 'demo.png'}")
    say(f"\nWhat was promised, and what was not: {program()} show {path / 'epsilon-2'}")


@app.callback(invoke_without_command=True)
def _top(
    ctx: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    if version:
        from cloister import __version__

        say(__version__)
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        say(first_steps(program()))


def main() -> None:
    """Errors of ours are one line and status 2, whatever happens to the rest."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_notes(warnings.showwarning)
        try:
            app()
        except CloisterError as error:
            say(f"error: {error}", err=True)
            sys.exit(2)
        except OSError as error:
            say(f"error: Expected to read and write files, found {error}: check the path and the disk.", err=True)
            sys.exit(2)


def _show_notes(usual: Any) -> Any:
    """Our own warnings are a line; others' are shown as usual."""

    def show(message: Warning, category: type[Warning], *rest: Any, **more: Any) -> None:
        if issubclass(category, Note):
            say(f"note: {message}", err=True)
        else:
            usual(message, category, *rest, **more)

    return show


def _run(start: Any, path: Path, **options: Any) -> None:
    from cloister.runs import report
    from cloister.runs.folder import RunFolder

    with interruptible(path, f"continue it with `{program()} resume {path}`"):
        result = start(folder=path, **options)
    if os.environ.get("RANK", "0") != "0":  # one of several processes, and not the one that speaks
        return
    kept = RunFolder.open(path)
    rows, commands = report.summary_rows(result, kept), report.next_commands(result, kept, program())
    report.print_summary(stdout(), path.name, rows, commands)
    if result.recorded is not None:
        say(f"\n{report.measurements_text(result.recorded)}")
    if result.personalized is not None:
        say(f"\n{report.client_scores_text(result.personalized.before, result.personalized.after)}")
