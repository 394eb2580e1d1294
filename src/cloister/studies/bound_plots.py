"""The papers' bounds beside measurements, as pictures of the plain data in `measured_bounds.py`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cloister.errors import expect
from cloister.runs.recorded import NOT_PRIVATE
from cloister.runs.report.style import expect_plot, line_colors
from cloister.theory.plots import panel_grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_RUNS = 4
_GRAY = "0.35"


def bounds_plot(
    runs: Mapping[str, Mapping[str, Any]], utility: Mapping[str, Any] | None, path: Path, dpi: int = 110
) -> None:
    """Draw what `of_run` found of some runs, and what `utility` found of many, as far as there is something."""
    expect_plot(path)
    expect(
        bool(runs) or utility is not None, "something to draw", "nothing", "give a run that recorded norms, clipping"
    )
    expect(len(runs) <= _MOST_RUNS, f"at most {_MOST_RUNS} recorded runs in a picture", len(runs), "name fewer")
    panels: list[Callable[[Axes], None]] = []
    if runs:
        panels += [partial(draw, runs=runs) for draw in (_by_round, _over_clips, _factors, _theorem_3)]
    if utility is not None:
        panels += [partial(draw, found=utility) for draw in (_accuracy, _apart, _utility)]
    columns = 2 if len(panels) == 4 else min(3, len(panels))
    picture, every = panel_grid(len(panels), columns, (4.9, 3.9), dpi)
    for axes, panel in zip(every, panels, strict=True):
        panel(axes)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(
                frameon=False, fontsize=8, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.16), columnspacing=1.2
            )
    if runs:
        picture.suptitle(NOT_PRIVATE, color="#B00000", fontsize=8)
    picture.savefig(path)


def _title(axes: Axes, title: str, x: str, y: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_title(title, fontsize=10, loc="left")
    axes.set(xlabel=x, ylabel=y)
    if x == "round":  # there is no round 2.5
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _colored(runs: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, Mapping[str, Any]]]:
    return [(color, label, run) for color, (label, run) in zip(line_colors(len(runs)), runs.items(), strict=True)]


def _by_round(axes: Axes, runs: Mapping[str, Mapping[str, Any]]) -> None:
    styles = {"clipping": "-", "noise": "--"}
    for color, _, run in _colored(runs):
        eq2 = run["eq2"]
        for name, style in styles.items():
            axes.plot(eq2["round"], eq2[name], color=color, linestyle=style, linewidth=1.6)
            measured = [(r, v) for r, v in zip(eq2["round"], eq2[f"{name}_measured"], strict=True) if v]
            if measured:
                marker, face = ("o", color) if name == "clipping" else ("s", "white")
                axes.plot(
                    *zip(*measured, strict=True), color=color, linestyle="", marker=marker, markerfacecolor=face,
                    markersize=3.5,
                )  # fmt: skip
    axes.plot([], [], color=_GRAY, label="clipping, eq. 2")
    axes.plot([], [], color=_GRAY, linestyle="", marker="o", markersize=3.5, label="measured in the mean")
    axes.plot([], [], color=_GRAY, linestyle="--", label="noise, eq. 2")
    axes.plot([], [], color=_GRAY, linestyle="", marker="s", markerfacecolor="white", markersize=3.5, label="measured")
    _runs_in_legend(axes, runs)
    axes.set_yscale("log")
    _title(axes, "BLUR eq. 2 with recorded norms", "round", "squared error a coordinate")


def _over_clips(axes: Axes, runs: Mapping[str, Mapping[str, Any]]) -> None:
    least = math.inf
    for color, label, run in _colored(runs):
        over = run["over_clips"]
        axes.plot(over["clip_norm"], over["total"], color=color, linewidth=1.8, label=label or "clipping + noise")
        for name, style in (("clipping", "-"), ("noise", "--")):
            axes.plot(over["clip_norm"], over[name], color=color, linestyle=style, linewidth=0.8, alpha=0.6)
        axes.axvline(over["used"], color=color, linestyle=":", linewidth=1.2)
        axes.plot(over["best"], min(over["total"]), color=color, marker="v", markersize=7)
        least = min(least, min(over["total"]))
    axes.plot([], [], color=_GRAY, linestyle=":", label="clip of the run")
    axes.plot([], [], color=_GRAY, linestyle="", marker="v", label="least")
    axes.set(xscale="log", yscale="log")
    axes.set_ylim(bottom=least / 30)
    _title(axes, "eq. 2 over the clip, norms of all rounds", "clip S", "squared error a coordinate")


def _factors(axes: Axes, runs: Mapping[str, Mapping[str, Any]]) -> None:
    for color, label, run in _colored(runs):
        found = run["clip_factors"]
        rounds, bar, tilde = found["round"], np.array(found["alpha_bar"]), np.array(found["alpha_tilde"])
        axes.plot(rounds, bar, color=color, label=f"{label}: alpha-bar" if label else "alpha-bar")
        axes.fill_between(rounds, bar - tilde, np.minimum(bar + tilde, 1), color=color, alpha=0.2, linewidth=0)
    axes.fill_between([], [], [], color=_GRAY, alpha=0.2, label="+- alpha-tilde")
    axes.set_ylim(0, 1.05)
    _title(axes, "clip factors min(1, C / norm)", "round", "factor")


def _theorem_3(axes: Axes, runs: Mapping[str, Mapping[str, Any]]) -> None:
    styles = {"fedsam": ":", "clipping": "-", "noise": "--"}
    for color, _, run in _colored(runs):
        found = run["clip_factors"]
        for name, style in styles.items():
            if any(found["theorem_3"][name]):
                axes.plot(found["round"], found["theorem_3"][name], color=color, linestyle=style, linewidth=1.6)
    for name, style in styles.items():
        axes.plot([], [], color=_GRAY, linestyle=style, label={"fedsam": "FedSAM"}.get(name, name))
    _runs_in_legend(axes, runs)
    axes.set(xscale="log", yscale="log")
    axes.xaxis.set_minor_formatter(lambda value, place: f"{value:g}" if str(int(value))[0] in "25" else "")
    axes.xaxis.set_major_formatter(lambda value, place: f"{value:g}")
    _title(axes, "DP-FedSAM Theorem 3, constants taken for 1", "rounds T", "term")


def _runs_in_legend(axes: Axes, runs: Mapping[str, Mapping[str, Any]]) -> None:
    if len(runs) > 1:
        for color, label, _ in _colored(runs):
            axes.plot([], [], color=color, linewidth=4, label=label)


def _ticks(axes: Axes, clients: list[int]) -> None:
    axes.set_xscale("log")
    axes.set_xticks(clients, [str(k) for k in clients])
    axes.minorticks_off()


def _accuracy(axes: Axes, found: Mapping[str, Any]) -> None:
    blue, red = line_colors(2)
    axes.plot(found["clients"], found["accuracy"], color=blue, label="mean")
    for k, several in zip(found["clients"], found["accuracies"], strict=True):
        axes.plot([k] * len(several), several, color=blue, linestyle="", marker="o", markersize=4, alpha=0.6)
    axes.plot([], [], color=blue, linestyle="", marker="o", markersize=4, alpha=0.6, label="runs")
    axes.axhline(found["ideal"], color=red, linestyle="--", label="ideal")
    _ticks(axes, found["clients"])
    _title(axes, "accuracy over clients", "clients k", "test accuracy")


def _apart(axes: Axes, found: Mapping[str, Any]) -> None:
    blue, red = line_colors(2)
    axes.plot(found["clients"], found["apart"], color=blue, marker="o", label="measured")
    axes.plot(found["clients"], found["predicted"], color=red, linestyle="--", label="as 1/sqrt(k) from the fewest")
    _ticks(axes, found["clients"])
    axes.set_ylim(bottom=0)
    _title(axes, "distance from the ideal risk", "clients k", "root of the mean square")


def _utility(axes: Axes, found: Mapping[str, Any]) -> None:
    blue, red = line_colors(2)
    axes.plot(found["clients"], found["utility"], color=blue, marker="o", label="share of runs")
    axes.plot(found["clients"], found["bound"], color=red, linestyle="--", marker=".", label="Theorem 3, at least")
    _ticks(axes, found["clients"])
    axes.set_ylim(-0.03, 1.05)
    _title(axes, f"PFL Theorem 3: l-utility, l = {found['distance']:g}", "clients k", "utility")
