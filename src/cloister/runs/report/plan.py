"""A plan as people read it: a few lines, a table and a picture."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloister.privacy.certificate import STRICT_DELTA
from cloister.privacy.certificate_text import exposed, large_delta, round_up
from cloister.runs.planned import ClientPlan, Plan
from cloister.runs.report.style import line_colors, new_figure, new_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table

_MANY_ROWS = 30
"""More clients than this are shown by their smallest, middle and largest."""
_MANY_LINES = 6
"""More lines than this get no color and no name of their own in a picture ..."""
_MOST_LINES = 30
"""... and of more than this only some are drawn."""


def text(plan: Plan, width: int = 100) -> str:
    """The whole plan, for a terminal or a notebook of so many columns."""
    from io import StringIO

    from rich.console import Console

    written = StringIO()
    console = Console(file=written, width=width, color_system=None, force_jupyter=False)
    for table in plan_tables(plan):
        console.print(table)
    return "\n".join([*_lines(plan, width), "", *(line.rstrip() for line in written.getvalue().splitlines())])


def _lines(plan: Plan, width: int) -> list[str]:
    """The summary, wrapped."""
    lines = []
    for name, words in plan_summary(plan):
        first = f"{name + ':':<18} "
        lines += textwrap.wrap(words, width, initial_indent=first, subsequent_indent=" " * len(first))
    return lines


def plan_summary(plan: Plan) -> list[tuple[str, str]]:
    """The plan in a few lines; a warning, if there is one, comes last."""
    target = "" if plan.target is None else f"; target {_range(plan.target)}"
    both = plan.has_pld and plan.price.epsilon_rdp is not None
    by = " (PLD)" + (f", {round_up(plan.price.epsilon_rdp)} (RDP)" if both else "") if plan.has_pld else " (RDP)"
    by = " (what a Renyi filter allows)" if plan.spending.order is not None else by
    lines = [
        ("method", f"{plan.method.name}, which protects {'any one sample' if plan.protects_samples else 'a client'}"),
        ("rounds", f"{plan.rounds:,}" + (" at most, within epsilon" if plan.solved == "rounds" else "")),
        ("noise multiplier", _noise(plan)),
        ("epsilon", f"{round_up(plan.epsilon)}{by} at delta {plan.delta:g}{target}"),
        ("adjacency", plan.relation),
        ("delta", delta_means(plan)),
        ("signal / noise", _signal(plan)),
    ]
    if plan.needed is not None:
        what = "samples of every client" if plan.protects_samples else "clients, at the same rate of participation"
        lines.append(("needed", f"{plan.needed:,} {what}, for as much signal as noise over the run"))
    if divided_by := plan.method.divided_by(plan.expected):
        lines.append(("denominator", divided_by))
    lines += [("note", note) for note in plan.notes]
    return [*lines, ("WARNING", warning(plan))] if plan.too_small else lines


def warning(plan: Plan) -> str:
    """What is wrong with a federation that is too small, and what to do: one sentence."""
    number = f"{plan.signal.run:.2g}"
    if plan.protects_samples:
        more = "samples" if plan.needed is None else f"samples ({plan.needed:,} of every client)"
        remedy = f"get more {more}, train a smaller model, or raise epsilon"
    else:
        more = "clients" if plan.needed is None else f"clients ({plan.needed:,})"
        remedy = f"protect samples instead of clients (method=pfl), get more {more}, or raise epsilon"
    return (
        f"this federation is too small to learn anything, because signal / noise over the whole run is {number} at "
        f"best, below 1: {remedy}."
    )


def _range(target: float | Sequence[float]) -> str:
    if not isinstance(target, Sequence):
        return f"{target:g}"
    return f"{min(target):g} to {max(target):g}, by client"


def _noise(plan: Plan) -> str:
    if plan.protects_samples:
        least = min((row.noise_multiplier for row in plan.rows), default=plan.noise_multiplier)
        between = f"{least:.4f} to " if least < plan.noise_multiplier else ""
        if plan.method.local.sample_l2 is not None:
            return f"{plan.noise_multiplier:.4f} x clip, on the sum of all clients' batches in a round"
        where = "in every step" if plan.method.local.private is not None else "on every message"
        return f"{between}{plan.noise_multiplier:.4f} x clip, {where} of a client"
    return f"{plan.noise_multiplier:.4f} x clip, on the sum of {plan.expected:g} updates (expected)"


def _signal(plan: Plan) -> str:
    numbers, over = f"{plan.parameters} parameters", f"{plan.signal.run:.2g} over the run, if all are alike"
    if plan.protects_samples:
        return f"{plan.signal.round:.2g} in a round of {numbers}, if all gradients are alike; {over}"
    return (
        f"{plan.signal.unrelated:.2g} (updates unrelated) to {plan.signal.round:.2g} (all alike) in a round of "
        f"{numbers}, if every update has the clip's norm; {over}"
    )


def delta_means(plan: Plan) -> str:
    """What delta promises to so many units: to all clients, or to the samples of the largest client (of all clients, in
    a secure sum)."""
    summed = plan.method.mechanism.settings.get("trust") == "sum"
    units = exposed(plan.terms.sizes, summed) if plan.protects_samples else plan.clients
    whose = "all clients" if summed else "the largest client"
    one, many = ("sample", f"samples of {whose}") if plan.protects_samples else ("client", "clients")
    chance = plan.delta * units
    if large_delta(plan.delta, units):
        return (
            f"weak: delta {plan.delta:g} is not below 1/{units} = {1 / units:g}, and publishing one random {one}"
            f"{'' if plan.protects_samples else chr(39) + 's data'} whole would satisfy it; choose at most "
            f"{min(STRICT_DELTA, 0.1 / units):.0e}"
        )
    return (
        f"the guarantee may fail with probability {plan.delta:g} for a {one}; times {units} {many} that "
        f"is {chance:.2g}" + (", which is a lot: choose a smaller delta" if chance > 0.1 else "")
    )


def plan_tables(plan: Plan) -> list[Table]:
    """Where samples are protected, the clients; otherwise epsilon over rounds."""
    return [clients_table(plan)] if plan.protects_samples else [plan_table(plan)]


def plan_table(plan: Plan) -> Table:
    """Epsilon over rounds."""
    columns = [f"epsilon at {delta:g}" for delta in plan.deltas]
    table = new_table("round", *columns, "")
    top = max(point.epsilons[0] for point in plan.curve) or 1.0
    for point in plan.curve:
        bar = "█" * max(1, round(24 * point.epsilons[0] / top))
        table.add_row(str(point.round), *map(round_up, point.epsilons), bar)
    table.columns[0].justify = "right"
    table.columns[-1].justify = "left"
    return table


def clients_table(plan: Plan) -> Table:
    """A row for each client; of very many, for some of every size."""
    names = (
        "client",
        "samples",
        "in a batch",
        "steps a round",
        "steps",
        "noise",
        "epsilon",
        "target",
        "signal / noise",
    )
    table = new_table(*names)
    rows = plan.rows if len(plan.rows) <= _MANY_ROWS else _some(plan.rows, 9)
    for row in rows:
        table.add_row(
            row.name,
            f"{row.samples:,}",
            f"{row.sampling_rate:.3g}",
            str(row.steps_per_round),
            f"{row.steps:,}",
            f"{row.noise_multiplier:.3f}",
            round_up(row.epsilon),
            "-" if row.target is None else f"{row.target:g}",
            f"{row.signal:.2g}",
        )
    if len(rows) < len(plan.rows):
        table.caption = f"{len(rows)} of {len(plan.rows):,} clients, from the smallest to the largest"
    return table


def _some(rows: Sequence[ClientPlan], count: int) -> list[ClientPlan]:
    """As many, from the smallest to the largest."""
    ordered = sorted(rows, key=lambda row: row.samples)
    return [ordered[round(place * (len(ordered) - 1) / (count - 1))] for place in range(count)]


def plan_plot(plan: Plan, path: Path) -> None:
    """Epsilon over rounds: at every delta, or, where samples are protected, of every client that differs."""
    figure, (axes,) = new_figure(1)
    if plan.protects_samples:
        _client_lines(plan, axes)
        title = f"{plan.method.name}, {plan.clients} clients, delta {plan.delta:g}"
    else:
        rounds = [point.round for point in plan.curve]
        for index, (color, delta) in enumerate(zip(line_colors(len(plan.deltas)), plan.deltas, strict=True)):
            epsilons = [point.epsilons[index] for point in plan.curve]
            axes.plot(rounds, epsilons, color=color, marker="o", markersize=4, label=f"delta {delta:g}")
        title = f"{plan.clients} clients, {plan.expected:g} expected in a round, noise multiplier "
        title = f"{plan.method.name}, {title}{plan.noise_multiplier:.3f}"
    if plan.target is not None and not isinstance(plan.target, Sequence):
        axes.axhline(plan.target, color="0.5", linestyle="--", linewidth=1, label=f"target {plan.target:g}")
    axes.set(xlabel="round", ylim=(0, None), xlim=(0, None))
    axes.set_ylabel(f"epsilon ({plan.relation})", fontsize=8)
    axes.set_title(title, fontsize=9)
    axes.legend(frameon=False, loc="best", fontsize=8)
    figure.savefig(path)


def _client_lines(plan: Plan, axes: Axes) -> None:
    """A line for each client that differs; of many, thin ones, and three with a name."""
    different: dict[tuple[object, ...], list[ClientPlan]] = {}
    for row in sorted(plan.rows, key=lambda row: row.samples):
        different.setdefault((row.epsilon, row.noise_multiplier, row.steps, row.sampling_rate), []).append(row)
    lines = list(different.values())
    few = len(lines) <= _MANY_LINES
    named = lines if few else [lines[0], lines[len(lines) // 2], lines[-1]]

    def draw(clients: list[ClientPlan], **style: Any) -> None:
        points = plan.curve_of(clients[0].account, 10 if few else 5, [plan.delta])
        axes.plot([point.round for point in points], [point.epsilons[0] for point in points], **style)

    if not few:
        for clients in lines[:: -(-len(lines) // _MOST_LINES)]:
            draw(clients, color="0.8", linewidth=0.8)
    # Clients with one target lie on one another: the first lines are wide, so that they show below the others.
    for place, (clients, color) in enumerate(zip(named, line_colors(len(named)), strict=True)):
        draw(clients, color=color, linewidth=1.5 + few * (len(named) - 1 - place), label=_label(clients))


def _label(alike: Sequence[ClientPlan]) -> str:
    least, most = min(row.samples for row in alike), max(row.samples for row in alike)
    samples = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    who = f"client {alike[0].name}" if len(alike) == 1 else f"{len(alike)} clients"
    return f"{who}, {samples} samples, noise {alike[0].noise_multiplier:.2f}"
