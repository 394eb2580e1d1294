"""`cloister audit`: what a method spends at least, found by attack, beside what is certified at most."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.output import file_and_words, print_table, say, say_wrapped
from cloister.errors import CloisterError, expect_one_of

if TYPE_CHECKING:
    from cloister.auditing import Audit

_KINDS = ("worst_case", "one_run", "one_shot", "all")


def audit(
    ctx: typer.Context,
    trials: Annotated[int, typer.Option(help="Short runs, half with the canary; or canaries in one run.")] = 10_000,
    confidence: Annotated[float, typer.Option(help="That a lower bound is not above the true epsilon.")] = 0.95,
    kind: Annotated[str, typer.Option(help="worst_case, one_run, one_shot, several (a,b), or all.")] = "worst_case",
    plot: Annotated[Path, typer.Option(help="Where to draw both bounds.")] = Path("audit.png"),
    output: Annotated[Path, typer.Option(help="Where to write all figures, as JSON.")] = Path("audit.json"),
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not show how far it is.")] = False,
) -> None:
    """Attack a method's own code, and say how much epsilon it spends at least.

    Keys are those of `cloister plan`. A canary that uses all that a guarantee allows takes part, or does not, in many
    short runs at once; somebody who sees every release guesses. What that proves stands beside what is certified. If
    it is more, the guarantee is false: the command says so and ends with status 1.

    \b
    cloister audit method=dp_fedavg epsilon=4                      one release
    cloister audit experiments/digits.toml epsilon=2 --kind all    a run's own terms, in every way
    cloister audit method=pfl sizes=600 rounds=5 epsilon=4 --trials 4000

    \b
    worst_case  many short runs, the attacker's own data and model (after Nasr et al. 2023)
    one_run     many canaries in one run, on your data if given, by coins (Steinke et al. 2023)
    one_shot    the same with Gaussians that are fitted: an estimate (Andrew et al. 2024)
    """
    from cloister.runs import catalogue
    from cloister.runs.config_file import load
    from cloister.runs.plan_keys import question_of

    file, words = file_and_words(ctx.args)
    for word in words:
        name = word.partition("=")[0].strip()
        if name in ("trials", "confidence", "kind", "plot", "output"):
            raise CloisterError(f"Expected {name} as an option, found {word!r} among the keys: write --{name} VALUE.")
    kinds = kind.replace(" ", "").split(",")
    for one in kinds:
        expect_one_of("--kind", one, _KINDS)
    kinds = list(_KINDS[:3]) if "all" in kinds else kinds
    values = load(file, words)
    catalogue.refuse_slips(values, lambda known: question_of(known, values).check(known))
    _expect_json(output)
    from cloister.auditing.found import save
    from cloister.auditing.keys import audit_of
    from cloister.auditing.plots import bounds_plot
    from cloister.auditing.text import bar, bounds_table
    from cloister.runs.report import expect_plot

    expect_plot(plot)
    with bar(not quiet) as progress:
        found: Audit = audit_of(values, trials=trials, confidence=confidence, kinds=kinds, progress=progress)
    print_table(bounds_table([found]))
    for bound in found.bounds:
        say_wrapped(f"{bound.kind} presumes {bound.assumes}.")
    say("")
    say_wrapped(found.verdict)
    save([found], output)
    bounds_plot([found], plot)
    say(f"\nplot: {plot}; figures: {output}")
    if found.exposed:
        raise typer.Exit(1)


def _expect_json(path: Path) -> None:
    if path.suffix != ".json" or not path.absolute().parent.is_dir():
        raise CloisterError(f"Expected a .json file in a folder that exists, found {str(path)!r}: choose another.")
