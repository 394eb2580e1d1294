"""What pictures of measurements share: a run's curves, quantiles and histograms over rounds, the mark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cloister.errors import CloisterError
from cloister.runs.recorded import NOT_PRIVATE, Recorded
from cloister.runs.report.style import line_colors
from cloister.runs.summaries import common_edges, counts_between

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLIP = "#D55E00"
_LONG = 16
"""Letters of a label of which there is room for two beside each other."""


@dataclass(frozen=True)
class Curves:
    """A run as pictures need it: its lines, and what it recorded, if anything."""

    lines: Sequence[Mapping[str, Any]]
    recorded: Recorded | None = None

    def by_round(self, name: str) -> dict[int, Any]:
        return {} if self.recorded is None else self.recorded.by_round(name)

    def tested(self, name: str) -> dict[int, float]:
        """A score on the test samples, by round."""
        return {line["round"]: line[name] for line in self.lines if isinstance(line.get(name), (int, float))}


def those_with(runs: Mapping[str, Curves], record: str, name: str) -> dict[str, Curves]:
    """The runs that recorded something."""
    found = {label: curves for label, curves in runs.items() if curves.by_round(name)}
    if not found:
        raise CloisterError(f"Expected a run that recorded {record}, found none: run it with record = {record}.")
    return found


def xy(values: Mapping[int, float]) -> tuple[Any, Any]:
    return np.array(list(values)), np.array(list(values.values()), dtype=float)


def quantiles(axes: Axes, curves: Curves, name: str, label: str) -> None:
    """The median, and between which values a half and nine tenths lie."""
    by_share = {share: xy(curves.by_round(f"{name}/quantiles/{share}")) for share in _SHARES}
    color = line_colors(1)[0]
    for low, high, alpha, words in (("0.05", "0.95", 0.15, "90 %"), ("0.25", "0.75", 0.3, "50 %")):
        (rounds, below), (_, above) = by_share[low], by_share[high]
        axes.fill_between(rounds, below, above, color=color, alpha=alpha, linewidth=0, label=words)
    axes.plot(*by_share["0.5"], color=color, label="median")
    axes.set(xlabel="round", ylabel=label)


_SHARES = ("0.05", "0.25", "0.5", "0.75", "0.95")


def bins_by_round(picture: Figure, axes: Axes, curves: Curves, name: str, label: str) -> None:
    """A histogram for every round, one above the other, between the same edges."""
    found = {round: one for round, one in curves.by_round(f"{name}/histogram").items() if one["counts"]}
    if found:
        edges, rounds = common_edges(found.values()), range(min(found), max(found) + 1)
        shares = np.zeros((len(rounds), len(edges) - 1))
        for round, one in found.items():
            shares[round - rounds[0]] = counts_between(one, edges) / sum(one["counts"])
        where = np.arange(rounds[0], rounds[-1] + 2) - 0.5
        drawn = axes.pcolormesh(edges, where, shares, cmap="Blues", vmin=0)
        picture.colorbar(drawn, ax=axes, label="share of the round's updates")
    axes.grid(visible=False)
    axes.set_facecolor("#f7fbff")  # as where there is no update
    axes.set(xlabel=label, ylabel="round")
    plain_ticks(axes)


def all_bins(axes: Axes, runs: Mapping[str, Curves], colors: Sequence[str]) -> None:
    """Of each run the histograms of all rounds together, between the same edges."""
    found = {
        label: [one for one in c.by_round("norms/histogram").values() if one["counts"]] for label, c in runs.items()
    }
    edges = common_edges(one for several in found.values() for one in several)
    for color, (label, several) in zip(colors, found.items(), strict=True):
        counts = sum((counts_between(one, edges) for one in several), np.zeros(len(edges) - 1))
        axes.stairs(counts / max(counts.sum(), 1), edges, color=color, label=label, fill=len(found) == 1)
    axes.set_axisbelow(True)
    axes.set_ylim(bottom=0)
    plain_ticks(axes)


def plain_ticks(axes: Axes) -> None:
    """Numbers of a few norms within one or two powers of ten, not powers alone."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def clip_lines(left: Axes, right: Axes, limits: Mapping[int, float]) -> None:
    """To which norm updates are clipped: a line where it is the same in all rounds, otherwise a curve."""
    if not limits:
        return
    style: dict[str, Any] = {"color": CLIP, "linestyle": "--", "linewidth": 1, "label": "clip norm"}
    if len(set(limits.values())) == 1:
        (limit,) = set(limits.values())
        left.axvline(limit, **style)
        right.axhline(limit, **style)
        return
    left.plot(list(limits.values()), list(limits), **style)
    right.plot(*xy(limits), **style)


def save(picture: Figure, path: Path, marked: bool, legends: Sequence[Axes]) -> None:
    """Into a file; what is not private says so above everything else."""
    from matplotlib.ticker import MaxNLocator

    for axes in picture.axes:  # there is no round 2.5
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_label_text() == "round":
                axis.set_major_locator(MaxNLocator(integer=True))
    for axes in legends:
        words = axes.get_legend_handles_labels()[1]
        if words:  # above the panel, where it crosses no curve
            wide = 2 if max(map(len, words)) > _LONG else 4
            axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=wide, fontsize=9)
    if marked:
        picture.suptitle(NOT_PRIVATE, color="#B00000", fontsize=8)
    picture.savefig(path)
