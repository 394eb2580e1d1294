"""Runs side by side: what they reached, and what they spent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloister.privacy.certificate_text import round_up
from cloister.runs.communication import communication_of
from cloister.runs.folder import RunFolder
from cloister.runs.metric_text import figure
from cloister.runs.report.style import line_colors, new_figure, new_table
from cloister.runs.scores import best_of, last_of, nonfinite_share, score_at_epsilon, watched_in

if TYPE_CHECKING:
    from rich.table import Table


def runs_table(folders: Mapping[str, RunFolder]) -> Table:
    """Runs side by side, as their folders tell. It fits a terminal of 80 columns."""
    return figures_table(run_figures(folders))


def run_figures(folders: Mapping[str, RunFolder]) -> list[dict[str, Any]]:
    """The figures of runs as plain values; an epsilon without bound is None."""
    found = []
    for label, folder in folders.items():
        certificate, lines = folder.certificate(), folder.metrics()
        tested = kept_lines(folder, lines)
        monitor, score = watched_in(tested)
        named = {} if monitor == "accuracy" else {"monitor": monitor, "score": score}
        own, strict = certificate.prices[0], certificate.prices[-1]
        found.append(
            {
                "run": label,
                "accuracy": last_of(tested, "accuracy"),
                **named,
                "epsilon": _finite(own.epsilon_pld),
                "delta": own.delta if certificate.private else None,
                "epsilon at 1e-5": _finite(strict.epsilon_pld),
                "noise": certificate.noise_multiplier or None,
                "rounds": len(lines),  # done; more may have been charged
                "planned": certificate.rounds_planned,
            }
        )
    return found


def kept_lines(folder: RunFolder, lines: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The lines up to the model that is kept: the newest, or the best in validation."""
    return lines[: folder.checkpoint().best_round]


_NO_METRICS = ("round", "cohort", "dropped", "epsilon", "nonfinite_updates", "seconds", "monitor", "validation", "loss")


def scores_text(folder: RunFolder) -> str | None:
    """What the table does not say of the model that is kept: further metrics, and the best of all rounds, marked."""
    lines = folder.metrics()
    tested = kept_lines(folder, lines)
    last: Mapping[str, Any] = next((line for line in reversed(tested) if "loss" in line), {})
    named = {name: value for name, value in last.items() if name not in (*_NO_METRICS, "mean_client_accuracy")}
    shown = {name: value for name, value in named.items() if value is not None or name != "accuracy"}
    found = []
    if len(shown) > 1:
        found.append(
            ", ".join(f"{name} {figure(name, value)}" for name, value in shown.items()) + " on the test samples"
        )
    clients, best = last.get("mean_client_accuracy"), best_of(lines)
    if clients is not None:
        found.append(f"mean client accuracy {figure('accuracy', clients)}, each client counting the same")
    if best is not None and best.value != watched_in(tested)[1]:
        found.append(f"best {best.metric} {figure(best.metric, best.value)}, in round {best.round}: {best.mark}")
    lost = nonfinite_share(lines)
    if lost:
        share = f"{lost:.0%}" if lost >= 0.01 else "some"
        found.append(f"{share} of the updates were not finite, and counted as zero: a smaller learning rate may help")
    return "\n".join(found) or None


def epsilons_table(folders: Mapping[str, RunFolder], asked: Sequence[float]) -> Table:
    """The last score of each run before it had spent more than each of these epsilons."""
    table = new_table("run", "at epsilon", "spent", "round", "metric", "score")
    for label, folder in folders.items():
        verified, lines = folder.verified(), folder.metrics()
        certificate = folder.certificate()
        for epsilon in asked:
            found = score_at_epsilon(lines, epsilon, None, certificate, verified.at.stop is not None)
            if found is None:
                table.add_row(label, f"{epsilon:g}", "-", "-", watched_in(lines)[0], "-")
                continue
            spent, score = round_up(found.epsilon), figure(found.metric, found.value)
            table.add_row(label, f"{epsilon:g}", spent, str(found.round), found.metric, score)
    return table


def communication_text(folder: RunFolder) -> str | None:
    """What clients sent so far, in a line; nothing before the first round."""
    lines = folder.metrics()
    return str(communication_of(folder.description(), lines)) if lines else None


def _finite(epsilon: float | None) -> float | None:
    return None if epsilon is None or math.isinf(epsilon) else epsilon


def figures_table(figures: Sequence[Mapping[str, Any]]) -> Table:
    """The same as a table."""
    monitors = {row.get("monitor", "accuracy") for row in figures} or {"accuracy"}
    head = next(iter(monitors)) if len(monitors) == 1 else "score"
    table = new_table("run", head, "epsilon", "at delta", "at 1e-5", "noise", "rounds")
    for column in table.columns[1:]:
        column.no_wrap = True  # a long name is broken rather than the figures
    for row in figures:
        name = row.get("monitor", "accuracy")
        score = figure(name, row["score" if "monitor" in row else "accuracy"])
        table.add_row(
            row["run"],
            score if len(monitors) == 1 else f"{name} {score}",
            round_up(row["epsilon"], 2),
            "-" if row["delta"] is None else f"{row['delta']:g}",
            round_up(row["epsilon at 1e-5"], 2),
            "none" if row["noise"] is None else f"{row['noise']:.3f}",
            f"{row['rounds']}/{row['planned']}",
        )
    return table


def runs_plot(folders: Mapping[str, RunFolder], path: Path) -> None:
    """The watched metric over rounds, and what had been spent by then."""
    picture, (left, right) = new_figure(2)
    names: dict[str, None] = {}
    for color, (label, folder) in zip(line_colors(len(folders)), folders.items(), strict=True):
        lines = folder.metrics()
        name, _ = watched_in(lines)
        names[name] = None
        scored = [line for line in lines if isinstance(line.get(name), (int, float))]
        left.plot([m["round"] for m in scored], [m[name] for m in scored], color=color, label=label)
        spent = [(m["round"], float(m["epsilon"])) for m in lines if float(m["epsilon"]) < float("inf")]
        if spent:
            right.plot(*zip(*spent, strict=True), color=color, label=label)
    left.set(xlabel="round", ylabel=f"test {' or '.join(names or ['accuracy'])}")
    right.set(xlabel="round", ylabel="epsilon spent", ylim=(0, None))
    left.legend(frameon=False, loc="lower right")
    if right.lines:
        right.legend(frameon=False, loc="upper left")
    else:
        right.text(0.5, 0.5, "no run with a guarantee", ha="center", transform=right.transAxes)
    picture.savefig(path)
