"""`cloister plan`: what a run would cost, before anything is run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cloister.cli.commands import Command, keys_page, page_width
from cloister.cli.output import file_and_words, say, working


class PlanCommand(Command):
    """`cloister plan`, whose help lists the keys of a plan; the list is made only when somebody asks for it."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from cloister.runs.catalogue import stored

        more = {"keys (beside those of the method and its cohort: cloister keys METHOD)": stored().plan_help}
        formatter.write("\n" + "\n".join(keys_page(more, page_width())) + "\n")


def plan(
    ctx: typer.Context,
    plot: Annotated[Path, typer.Option(help="Where to draw epsilon over rounds.")] = Path("plan.png"),
) -> None:
    """From epsilon to the noise it takes, from noise to epsilon, or from both to the rounds they allow.

    Keys are those of `cloister run`; nothing is trained. Without data give clients, or sizes where the method protects
    samples. Where nothing is said of the cohort, everyone takes part in every round.

    \b
    cloister plan method=pfl sizes=[303,294,123] rounds=50 epsilon=2 delta=1e-5
    cloister plan clients=3400 sampling_rate=0.04 rounds=1000 epsilon=2 delta=1e-5
    cloister plan experiments/digits.toml epsilon=1
    """
    from cloister.runs import catalogue
    from cloister.runs.config_file import load
    from cloister.runs.plan_keys import plan_of, question_of
    from cloister.runs.report import expect_plot

    file, words = file_and_words(ctx.args)
    values = load(file, words)
    catalogue.refuse_slips(values, lambda known: question_of(known, values).check(known))
    expect_plot(plot)
    from cloister.runs.report import plan as plan_report

    with working("pricing"):
        planned = plan_of(values)
        page = plan_report.text(planned, page_width())
    say(page)
    with working("drawing"):
        plan_report.plan_plot(planned, plot)
    say(f"\nplot: {plot}")
