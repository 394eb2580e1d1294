"""`cloister tune`: which settings are best, at a price that is known."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloister.cli import interrupts
from cloister.cli.output import file_and_words, new_folder, print_whole, program, say

if TYPE_CHECKING:
    from cloister.runs.progress_line import ProgressLine
    from cloister.studies.tuning import Trial, Tuned


def tune(
    ctx: typer.Context,
    on: Annotated[str | None, typer.Option(help="public, simulated or private: on which data, at which price.")] = None,
    trials: Annotated[int, typer.Option(help="Candidates; on private data how many there are on average.")] = 30,
    seeds: Annotated[int, typer.Option(help="Runs of every candidate, whose scores are averaged.")] = 1,
    hold_out: Annotated[float, typer.Option(help="Share of the training data by which candidates are judged.")] = 0.2,
    public_data: Annotated[str | None, typer.Option(help="Another data set, which is public, to tune on.")] = None,
    distribution: Annotated[
        str, typer.Option(help="Of the number of private trials: geometric, logarithmic, poisson, or a shape.")
    ] = "geometric",
    final: Annotated[
        bool | None,
        typer.Option(
            "--final/--no-final",
            help="Train with the best settings on all training data, and test once [default: on simulated data].",
        ),
    ] = None,
    folder: Annotated[Path | None, typer.Option(help="Where to keep it [default: runs/tune-TIME].")] = None,
) -> None:
    """Search settings: ranges (lr=0.03..0.3) and lists (lr=0.1,0.3,1) of any keys of a run.

    With the folder of a search that was interrupted, it goes on. What it costs depends on the data:

    \b
    --on public     public samples (public_samples=2000), or --public-data NAME:
                    free
    --on simulated  nobody's data, or a benchmark: judged on held-out training
                    data, tested once at the end; not charged, and the
                    certificate says so
    --on private    charged as a whole: epsilon and delta are for all trials and
                    the choice among them. Candidates are drawn at random, as
                    many as a random draw says (Papernot & Steinke 2022), and
                    nothing of any but the best is kept

    \b
    cloister tune experiments/digits.toml clip_norm=0.1..3 lr=0.1,0.3,1 \\
        --on simulated --trials 30
    """
    from cloister.runs import catalogue
    from cloister.runs.config_file import load
    from cloister.studies.tuning.on import expect_on
    from cloister.studies.tuning.space import space_of, split_words

    file, words = file_and_words(ctx.args)
    searched, fixed = split_words(words, catalogue.stored())
    values: dict[str, Any] = load(file, fixed)
    catalogue.refuse_slips(values, lambda known: space_of(known, values, searched))
    expect_on(on)
    path = folder or new_folder("tune")
    from cloister.runs.progress_line import ProgressLine
    from cloister.studies.tuning import tune as tuning

    shape: str | float = float(distribution) if distribution.replace(".", "", 1).isdigit() else distribution
    options: dict[str, Any] = {"on": on, "trials": trials, "folder": path, "seeds": seeds, "hold_out": hold_out}
    shown = ProgressLine(False if on == "private" else None, trials, unit="trial")  # how many are private is drawn
    try:
        with interrupts.working(), shown:
            found = tuning(
                values,
                searched,
                **options,
                public_data=public_data,
                distribution=shape,
                final=final,
                told=_tell(searched, shown),
            )
    except KeyboardInterrupt:
        goes_on = f"the same command with --folder {path} goes on from here"
        say(f"interrupted; {goes_on if path.exists() else 'nothing was written yet'}", err=True)
        raise typer.Exit(interrupts.INTERRUPTED) from None
    _show(found, path)


def _tell(searched: dict[str, str], line: ProgressLine) -> Any:
    from cloister.runs.progress_line import Part
    from cloister.studies.tuning.result import shown

    def told(trial: Trial) -> None:
        settings = " ".join(f"{name}={shown(trial.settings[name])}" for name in searched)
        result = trial.error if trial.score is None else f"{trial.score:.4f}"
        count = f"trial {trial.number + 1}/{trial.of}"
        say(f"{count}: {settings}: {result}", err=True)
        line.update(trial.number + 1, [Part(count, weight=9)])

    return told


def _show(found: Tuned, path: Path) -> None:
    from cloister.runs.report.style import new_table
    from cloister.studies.tuning.result import ranked, shown

    keys = list(found.settings)
    if found.trials:
        spreads = any(one.spread is not None for one in found.trials)
        table = new_table("trial", *keys, f"{found.metric}, held out", *(["sd over seeds"] if spreads else []))
        for one in ranked(found.trials, found.larger_is_better)[:_SHOWN]:
            spread = ["-" if one.spread is None else f"{one.spread:.4f}"] if spreads else []
            score = "failed" if one.score is None else f"{one.score:.4f}"
            table.add_row(str(one.number + 1), *(shown(one.settings[key]) for key in keys), score, *spread)
        print_whole(table)
        if found.importance:
            shares = ", ".join(f"{name} {share:.0%}" for name, share in found.importance.items())
            say(f"\nof the variation of the score: {shares}")
    say("\nbest: " + " ".join(f"{name}={shown(value)}" for name, value in found.settings.items()))
    if found.certificate is not None:
        noise = "" if found.noise is None else f", noise of standard deviation {found.noise:.2g} included"
        say(f"{found.metric} by private validation: {found.score:.4f}{noise}\n\n{found.certificate}\n")
    elif found.final is not None:
        scores = ", ".join(f"{name} {'-' if one is None else f'{one:.4f}'}" for name, one in found.final.scores.items())
        say(f"on all training data, tested once: {scores}, epsilon {_epsilon(found.final)}")
    say(found.note)
    say(f"settings: {path / 'best.toml'}")
    if found.certificate is not None:
        say(f"model: {path / 'selected'} ({program()} predict {path / 'selected'} ...)")
    else:
        say(f"candidates: {path / 'trials.md'}, trials.csv; plot: {path / 'tuning.png'}")


def _epsilon(run: Any) -> str:
    from cloister.privacy.certificate_text import round_up

    return round_up(run.epsilon)


_SHOWN = 10
