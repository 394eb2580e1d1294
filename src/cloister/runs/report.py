"""What people read: tables on the terminal and pictures in files."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloister.errors import CloisterError, expect
from cloister.privacy.accounts import Account, Spending
from cloister.privacy.certificate import STRICT_DELTA
from cloister.privacy.certificate_text import round_up
from cloister.privacy.unit import sample_account
from cloister.runs.client_scores import NOT_PRIVATE, ClientScores, summed_up
from cloister.runs.folder import RunFolder
from cloister.runs.metric_catalogue import CATALOGUE, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table

    from cloister.methods import MethodInfo
    from cloister.runs.keys import Key

# Okabe & Ito's palette, told apart by color-blind readers too.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def runs_table(folders: Mapping[str, RunFolder]) -> Table:
    """Runs side by side, as their folders tell. It fits a terminal of 80 columns."""
    return figures_table(run_figures(folders))


def run_figures(folders: Mapping[str, RunFolder]) -> list[dict[str, Any]]:
    """The figures of runs as plain values; an epsilon without bound is None."""
    found = []
    for label, folder in folders.items():
        certificate, lines = folder.certificate(), folder.metrics()
        tested = _kept(folder, lines)
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


def _kept(folder: RunFolder, lines: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The lines up to the model that is kept: the newest, or the best in validation."""
    kept = folder.load("cpu").kept
    return lines if kept.best is None else lines[: kept.round]


def watched_in(lines: Sequence[Mapping[str, Any]]) -> tuple[str, float | None]:
    """The metric that a run watched, and its last value; where lines name none, it is accuracy."""
    name = next((line["monitor"] for line in reversed(lines) if "monitor" in line), "accuracy")
    return name, last_of(lines, name)


def last_of(lines: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """The last value of a metric that is a number."""
    return next((line[name] for line in reversed(lines) if isinstance(line.get(name), (int, float))), None)


_NO_METRICS = ("round", "cohort", "dropped", "epsilon", "nonfinite_updates", "seconds", "monitor", "validation", "loss")


def scores_text(folder: RunFolder) -> str | None:
    """All metrics of the model that is kept, where there are more than the one in the table."""
    tested = _kept(folder, folder.metrics())
    last: Mapping[str, Any] = next((line for line in reversed(tested) if "loss" in line), {})
    named = {name: value for name, value in last.items() if name not in (*_NO_METRICS, "mean_client_accuracy")}
    shown = {name: value for name, value in named.items() if value is not None or name != "accuracy"}
    if len(shown) < 2:
        return None
    return ", ".join(f"{name} {figure(name, value)}" for name, value in shown.items()) + " on the test samples"


def _finite(epsilon: float | None) -> float | None:
    return None if epsilon is None or math.isinf(epsilon) else epsilon


def figures_table(figures: Sequence[Mapping[str, Any]]) -> Table:
    """The same as a table."""
    monitors = {row.get("monitor", "accuracy") for row in figures} or {"accuracy"}
    head = next(iter(monitors)) if len(monitors) == 1 else "score"
    table = _table("run", head, "epsilon", "at delta", "at 1e-5", "noise", "rounds")
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


def clients_table(folder: RunFolder) -> Table:
    """What each client's samples have lost, as the ledger tells: for methods that protect samples.

    Where a sample may lie with several clients, that includes what the others released about it.
    """
    description, accounts = folder.description(), folder.accounts()
    if description.method.unit != "sample":
        raise CloisterError(
            f"Expected a run that protects single samples, found one of {description.method.name}, in which all "
            "clients have one account: its certificate says what any of them has lost."
        )
    delta = description.delta or STRICT_DELTA
    table = _table("client", "samples", "noise", "rounds", "steps", f"spent at {delta:g}", "budget")
    copies = description.task.copies
    spending = Spending(accounts, copies, description.noise_schedule)
    spent: dict[tuple[object, ...], str] = {}
    for client, samples in enumerate(description.task.sizes or ()):
        account = accounts.get(sample_account(client), Account(sample_account(client), None))
        history = (account.budget, frozenset(account.events.items()))
        if history not in spent:
            spent[history] = round_up(spending.lost(account, delta))
        noises = description.noise_multipliers
        table.add_row(
            description.task.client_names[client] if description.task.client_names else str(client),
            str(samples),
            f"{noises[client]:.3f}" if noises else f"{description.method.mechanism.noise_multiplier:.3f}",
            str(len(account.rounds - {0})),  # what was asked before the first is no round
            str(account.releases),
            spent[history],
            f"{account.budget.epsilon:g}" if account.budget else "none",
        )
    if copies > 1:
        table.caption = (
            f"A sample may lie with up to {copies} clients. What is spent is the most that any sample of a client has "
            "lost, by what all of them released about it; steps are counted once for each."
        )
    return table


def client_scores_table(before: ClientScores, after: ClientScores | None) -> Table:
    """The watched metric client by client, the worst first, and after personalization where there was any."""
    more = ("personalized",) if after is not None else ()
    table = _table("client", "test samples", before.metric, *more)
    sign = 1 if CATALOGUE[before.metric].larger_is_better else -1
    order = sorted(before.scores.items(), key=lambda item: (item[1] is None, sign * (item[1] or 0.0)))
    for name, score in order:
        own = [score] if after is None else [score, after.scores.get(name)]
        table.add_row(name, str(before.samples[name]), *(figure(before.metric, value) for value in own))
    return table


def client_scores_text(before: ClientScores, after: ClientScores | None) -> str:
    """How far apart clients are, and that nothing of this is private."""
    lines = [summed_up(before.metric, before.summary)]
    if after is not None:
        lines.append(f"personalized, {summed_up(after.metric, after.summary)}")
    return "\n".join([*lines, NOT_PRIVATE])


def runs_plot(folders: Mapping[str, RunFolder], path: Path) -> None:
    """The watched metric over rounds, and what had been spent by then."""
    picture, (left, right) = _figure(2)
    names: dict[str, None] = {}
    for color, (label, folder) in zip(_cycle(len(folders)), folders.items(), strict=True):
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


def methods_table(known: Mapping[str, MethodInfo]) -> Table:
    """What is known of every method."""
    table = _table("method", "protects", "paper", "must be trusted", "what is proven")
    for column in table.columns:
        column.justify = "left"
    table.columns[0].no_wrap = True
    for name, info in known.items():
        table.add_row(name, info.unit, info.paper, info.trust, info.proven)
    return table


def keys_table(keys: Sequence[Key]) -> Table:
    """Keys with their defaults and what they mean."""
    table = _table("key", "default", "meaning")
    table.columns[0].no_wrap = True
    table.columns[1].justify = table.columns[2].justify = "left"
    for key in keys:
        default = (
            "required" if key.default is inspect.Parameter.empty else "" if key.default is None else str(key.default)
        )
        table.add_row(key.name, default, key.help)
    return table


@dataclass(frozen=True)
class Compared:
    """One run of a comparison."""

    label: str
    target: float | None
    accuracy: float | None
    epsilon: float | None
    delta: float
    noise_multiplier: float | None
    rounds: int
    upload_bytes: int
    seconds: float
    settings: Mapping[str, Any]
    """Those in which the runs of the comparison differ."""
    monitor: str = "accuracy"
    score: float | None = None
    """Of the metric that was watched."""


def compared(label: str, target: float | None, folder: RunFolder, settings: Mapping[str, Any]) -> Compared:
    """A run as its folder tells."""
    certificate, lines = folder.certificate(), folder.metrics()
    return Compared(
        label,
        target,
        last_of(_kept(folder, lines), "accuracy"),
        certificate.prices[0].epsilon_pld,
        certificate.prices[0].delta,
        certificate.noise_multiplier,
        certificate.rounds_charged,
        folder.description().upload_bytes,
        sum(line["seconds"] for line in lines),
        settings,
        *watched_in(lines),
    )


def in_words(row: Compared) -> str:
    """A run in half a sentence."""
    score = f"no {row.monitor}" if row.score is None else f"{row.monitor} {figure(row.monitor, row.score)}"
    return f"{score}, epsilon {round_up(row.epsilon)} after {row.rounds} rounds, {row.seconds:.1f} s"


def comparison_table(rows: Sequence[Compared]) -> Table:
    """Methods below each other, epsilons side by side."""
    targets = sorted({row.target for row in rows if row.target is not None}, reverse=True)
    name = _monitor_of(rows)
    heads = [f"{name} at {t:g}" for t in targets] or [name]
    table = _table("method", *heads, *(f"spent of {t:g}" for t in targets), "upload")
    table.columns[0].no_wrap = True
    for label in dict.fromkeys(row.label for row in rows):
        own = {row.target: row for row in rows if row.label == label}
        first = next(iter(own.values()))
        if None in own:
            cells = [
                figure(own[None].monitor, own[None].score),
                *[""] * (len(targets) - 1),
                *["infinity"] * len(targets),
            ]
        else:
            there = [own.get(t) for t in targets]  # a comparison that was interrupted has some of them
            cells = ["" if row is None else figure(row.monitor, row.score) for row in there]
            cells += ["" if row is None else round_up(row.epsilon) for row in there]
        table.add_row(label, *cells, f"{first.upload_bytes / 1000:.1f} kB")
    return table


def settings_text(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """A line for every setting in which the methods of a comparison differ: the usual value, and who has another."""
    keys = list(next(iter(settings.values()), {}))
    if not keys:
        return "\nAll settings that the methods share are the same."
    lines = ["\nSettings in which the methods differ (- where a method has none):"]
    for key in keys:
        by_value: dict[str, list[str]] = {}
        for label, own in settings.items():
            by_value.setdefault("-" if own[key] is None else str(own[key]), []).append(label)
        usual, *others = sorted(by_value.items(), key=lambda item: -len(item[1]))
        rest = "; ".join(f"{value}: {', '.join(labels)}" for value, labels in others)
        lines.append(f"  {key} {usual[0]}, but {rest}")
    return "\n".join(lines)


def _monitor_of(rows: Sequence[Compared]) -> str:
    """The metric that the runs of a comparison watched."""
    names = dict.fromkeys(row.monitor for row in rows)
    return next(iter(names)) if len(names) == 1 else "score"


def comparison_plot(rows: Sequence[Compared], path: Path) -> None:
    """The watched metric of every method, a dot for each epsilon; what is not private is a line."""
    labels = list(dict.fromkeys(row.label for row in rows if row.target is not None))
    targets = sorted({row.target for row in rows if row.target is not None})
    picture, (axes,) = _figure(1)
    picture.set_size_inches(7.0, 1.2 + 0.28 * max(len(labels), 4))
    for color, target in zip(_cycle(len(targets)), targets, strict=True):
        here = {row.label: row.score for row in rows if row.target == target and row.score is not None}
        places = [labels.index(label) for label in here]
        axes.plot(list(here.values()), places, "o", color=color, label=f"epsilon {target:g}")
    for row in rows:
        if row.target is None and row.score is not None:
            axes.axvline(row.score, color="0.5", linestyle="--", linewidth=1, label=f"{row.label}, no privacy")
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.grid(axis="x", color="0.92")
    axes.set(xlabel=f"test {_monitor_of(rows)}")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    if rows and rows[0].settings:
        picture.supxlabel(f"not the same for all: {', '.join(rows[0].settings)}", fontsize=7, wrap=True)
    picture.savefig(path)


def expect_plot(path: Path) -> None:
    """Refuse a picture that could not be written, before the work whose result it would show."""
    from matplotlib.backend_bases import FigureCanvasBase

    suffixes = sorted(f".{kind}" for kind in FigureCanvasBase.get_supported_filetypes())
    expect(path.suffix.lower() in suffixes, f"a picture that ends in {', '.join(suffixes)}", str(path), "rename it")
    expect(path.parent.is_dir(), "a picture in a folder that exists", str(path), "create the folder, or choose another")
    expect(not path.is_dir(), "a picture", f"the folder {path}", "choose another name")


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, name in enumerate(columns):
        table.add_column(name, justify="right" if index else "left", overflow="fold")
    return table


def _figure(panels: int) -> tuple[Figure, Sequence[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * panels, 3.6), dpi=140, layout="constrained")
    axes: Any = figure.subplots(1, panels, squeeze=False)[0]
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(axis="y", color="0.92")
    return figure, axes


def _cycle(count: int) -> list[str]:
    return [_COLORS[index % len(_COLORS)] for index in range(count)]


table_of, figure_of, line_colors = _table, _figure, _cycle  # for other reports
