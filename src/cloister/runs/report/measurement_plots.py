"""What runs recorded, as pictures. What is not private carries the mark above everything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cloister.errors import CloisterError, expect_one_of
from cloister.runs.recorded import NOT_PRIVATE, Recorded
from cloister.runs.report.style import expect_plot, line_colors, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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


def recorded_plot(recorded: Recorded, path: Path, of: str) -> None:
    """As `measurements_plot`, of one run without its lines."""
    measurements_plot({"": Curves((), recorded)}, path, of)


def measurements_plot(runs: Mapping[str, Curves], path: Path, of: str) -> None:
    """Draw one kind of measurement of some runs."""
    expect_one_of("of", of, tuple(PLOTS))
    expect_plot(path)
    PLOTS[of](runs, path)


def _norms(runs: Mapping[str, Curves], path: Path) -> None:
    """How norms before clipping are distributed, and how they go over the rounds."""
    runs = _those_with(runs, "norms", "norms/mean")
    picture, (left, right) = new_figure(2)
    if len(runs) == 1:
        (curves,) = runs.values()
        _bins_by_round(picture, left, curves, "norms", "norm of an update before clipping")
        _quantiles(right, curves, "norms", "norm of an update before clipping")
        _clip_lines(left, right, curves.by_round("norms/clip_norm"))
    else:
        for color, (label, curves) in zip(line_colors(len(runs)), runs.items(), strict=True):
            _all_bins(left, curves, label, color)
            right.plot(*_xy(curves.by_round("norms/mean")), color=color, label=label)
            right.plot(*_xy(curves.by_round("norms/clip_norm")), color=color, linestyle="--", linewidth=1)
        left.set(xlabel="norm of an update before clipping", ylabel="updates in all rounds")
        right.set(xlabel="round", ylabel="mean norm (dashed: clip norm)")
    right.set_ylim(bottom=0)
    _save(picture, path, marked=True, legends=(right,) if len(runs) == 1 else (left, right))


def _clipping(runs: Mapping[str, Curves], path: Path) -> None:
    """The mean clip factor with its spread, and how many are clipped at all."""
    runs = _those_with(runs, "clipping", "clipping/mean")
    picture, (left, right) = new_figure(2)
    for color, (label, curves) in zip(line_colors(len(runs)), runs.items(), strict=True):
        rounds, mean = _xy(curves.by_round("clipping/mean"))
        spread = np.array(_xy(curves.by_round("clipping/spread"))[1])
        left.plot(rounds, mean, color=color, label=label or "mean")
        above = np.minimum(mean + spread, 1.0)
        left.fill_between(rounds, mean - spread, above, color=color, alpha=0.2, linewidth=0)
        right.plot(*_xy(curves.by_round("clipping/clipped")), color=color, label=label or None)
    left.set(xlabel="round", ylabel="clip factor: mean and spread", ylim=(0, 1.05))
    right.set(xlabel="round", ylabel="share of what is clipped", ylim=(0, 1.05))
    _save(picture, path, marked=True, legends=(left,))


def _gradients(runs: Mapping[str, Curves], path: Path) -> None:
    """Norms of samples' gradients: the mean of each client, and of all together."""
    runs = _those_with(runs, "gradients", "gradients/mean")
    if len(runs) > 1:
        raise CloisterError(f"Expected one run to draw gradients of, found {len(runs)}: name one.")
    (curves,) = runs.values()
    picture, (left, right) = new_figure(2)
    clients: dict[str, dict[int, float]] = {}
    for round, rows in curves.by_round("gradients/by_client").items():
        for name, row in rows.items():
            if "mean" in row:
                clients.setdefault(name, {})[round] = row["mean"]
    few = list(clients.items())[:_MOST_LINES]
    colors = line_colors(len(few)) if len(few) <= _MANY_LINES else ["0.6"] * len(few)
    for color, (name, means) in zip(colors, few, strict=True):
        label = f"client {name}" if len(few) <= _MANY_LINES else None
        left.plot(*_xy(means), color=color, linewidth=1, marker=".", markersize=3, label=label)
    shown = "" if len(few) == len(clients) else f" ({len(few)} of {len(clients)} clients)"
    left.set(xlabel="round", ylabel=f"mean gradient norm of a client{shown}", ylim=(0, None))
    _quantiles(right, curves, "gradients", "norm of a sample's gradient")
    thresholds = curves.by_round("thresholds/clip_norm")
    by_client = curves.by_round("gradients/by_client").values()
    clipped = any("mean_clip_factor" in row for rows in by_client for row in rows.values())
    if thresholds and clipped:  # a clip of whole updates is none of gradients
        right.plot(*_xy(thresholds), color=_CLIP, linestyle="--", linewidth=1, label="threshold (mean)")
    right.set_ylim(bottom=0)
    _save(picture, path, marked=True, legends=(left, right))


def _thresholds(runs: Mapping[str, Curves], path: Path) -> None:
    """Noise multipliers over rounds and over what was spent, and clipping thresholds over rounds."""
    runs = _those_with(runs, "thresholds", "thresholds/noise_multiplier")
    spent = {label: {line["round"]: float(line["epsilon"]) for line in c.lines} for label, c in runs.items()}
    picture, axes = new_figure(3 if any(spent.values()) else 2)
    for color, (label, curves) in zip(line_colors(len(runs)), runs.items(), strict=True):
        noise, clip = curves.by_round("thresholds/noise_multiplier"), curves.by_round("thresholds/clip_norm")
        axes[0].plot(*_xy(noise), color=color, label=label or None)
        axes[1].plot(*_xy(clip), color=color, label=label or None)
        least, most = curves.by_round("thresholds/least"), curves.by_round("thresholds/most")
        if least:
            words = f"{label}, least to most of its clients".strip(", ")
            below, above = _xy(least)[1], _xy(most)[1]
            axes[1].fill_between(list(least), below, above, color=color, alpha=0.2, linewidth=0, label=words)
        if spent[label]:
            known = [(spent[label][round], value) for round, value in noise.items() if round in spent[label]]
            axes[2].plot(*zip(*known, strict=True), color=color, label=label or None)
    axes[0].set(xlabel="round", ylabel="noise multiplier", ylim=(0, None))
    axes[1].set(xlabel="round", ylabel="clipping threshold", ylim=(0, None))
    if any(spent.values()):
        axes[2].set(xlabel="epsilon spent", ylabel="noise multiplier", ylim=(0, None))
    exact = [c for c in runs.values() if c.recorded is not None and not c.recorded.was_paid_for("thresholds")]
    _save(picture, path, marked=bool(exact), legends=(axes[1],))


def _loss(runs: Mapping[str, Curves], path: Path) -> None:
    """Loss and accuracy on the test samples, and on those that were trained on where that was recorded."""
    picture, axes = new_figure(2)
    trained = False
    for color, (label, curves) in zip(line_colors(len(runs)), runs.items(), strict=True):
        for one, name, gap, sign in zip(axes, ("loss", "accuracy"), ("loss_gap", "accuracy_gap"), (1, -1), strict=True):
            train, apart = curves.by_round(f"train/{name}"), curves.by_round(f"train/{gap}")
            test = curves.tested(name) or {r: train[r] + sign * apart[r] for r in train if r in apart}
            if test:
                one.plot(*_xy(test), color=color, label=f"{label} test".strip())
            if train:
                one.plot(*_xy(train), color=color, linestyle="--", label=f"{label} train".strip())
                trained = True
    for one, name in zip(axes, ("loss", "accuracy"), strict=True):
        one.set(xlabel="round", ylabel=name if trained else f"test {name}")
        if not one.lines:
            one.text(0.5, 0.5, f"no {name} was computed", ha="center", transform=one.transAxes)
    _save(picture, path, marked=trained, legends=[one for one in axes if one.lines])


PLOTS: dict[str, Callable[[Mapping[str, Curves], Path], None]] = {
    "norms": _norms,
    "clipping": _clipping,
    "gradients": _gradients,
    "thresholds": _thresholds,
    "loss": _loss,
}
_CLIP = "#D55E00"
_MANY_LINES, _MOST_LINES = 6, 40


def _those_with(runs: Mapping[str, Curves], record: str, name: str) -> dict[str, Curves]:
    """The runs that recorded something."""
    found = {label: curves for label, curves in runs.items() if curves.by_round(name)}
    if not found:
        raise CloisterError(f"Expected a run that recorded {record}, found none: run it with record = {record}.")
    return found


def _xy(values: Mapping[int, float]) -> tuple[Any, Any]:
    return np.array(list(values)), np.array(list(values.values()), dtype=float)


def _quantiles(axes: Axes, curves: Curves, name: str, label: str) -> None:
    """The median, and between which values a half and nine tenths lie."""
    by_share = {share: _xy(curves.by_round(f"{name}/quantiles/{share}")) for share in _SHARES}
    color = line_colors(1)[0]
    for low, high, alpha, words in (("0.05", "0.95", 0.15, "90 %"), ("0.25", "0.75", 0.3, "50 %")):
        (rounds, below), (_, above) = by_share[low], by_share[high]
        axes.fill_between(rounds, below, above, color=color, alpha=alpha, linewidth=0, label=words)
    axes.plot(*by_share["0.5"], color=color, label="median")
    axes.set(xlabel="round", ylabel=label)


_SHARES = ("0.05", "0.25", "0.5", "0.75", "0.95")


def _bins_by_round(picture: Figure, axes: Axes, curves: Curves, name: str, label: str) -> None:
    """A histogram for every round, one above the other: edges are powers of the same number in all of them."""
    found = {round: one for round, one in curves.by_round(f"{name}/histogram").items() if one["counts"]}
    edges = sorted({edge for one in found.values() for edge in one["edges"]})
    rounds = list(range(min(found), max(found) + 1)) if found else []
    shares = np.zeros((len(rounds), max(len(edges) - 1, 0)))
    for round, one in found.items():
        first = edges.index(one["edges"][0])
        counts = np.array(one["counts"], dtype=float)
        shares[round - rounds[0], first : first + len(counts)] = counts / counts.sum()
    if found:
        where = np.arange(rounds[0], rounds[-1] + 2) - 0.5
        drawn = axes.pcolormesh(edges, where, shares, cmap="Blues", vmin=0)
        picture.colorbar(drawn, ax=axes, label="share of the round's updates")
    axes.grid(visible=False)
    axes.set_facecolor("#f7fbff")  # as where there is no update
    axes.set(xlabel=label, ylabel="round")
    _plain_ticks(axes)


def _all_bins(axes: Axes, curves: Curves, label: str, color: str) -> None:
    """The histograms of all rounds, added up."""
    total: dict[float, int] = {}
    ends: set[float] = set()
    for one in curves.by_round("norms/histogram").values():
        ends |= set(one["edges"])
        for edge, count in zip(one["edges"], one["counts"], strict=False):
            total[edge] = total.get(edge, 0) + count
    edges = sorted(ends)
    axes.stairs([total.get(edge, 0) for edge in edges[:-1]], edges, color=color, label=label)
    axes.set_axisbelow(True)
    _plain_ticks(axes)


def _plain_ticks(axes: Axes) -> None:
    """Numbers of a few norms within one or two powers of ten, not powers alone."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _clip_lines(left: Axes, right: Axes, limits: Mapping[int, float]) -> None:
    """To which norm updates are clipped: a line where it is the same in all rounds, otherwise a curve."""
    if not limits:
        return
    style: dict[str, Any] = {"color": _CLIP, "linestyle": "--", "linewidth": 1, "label": "clip norm"}
    if len(set(limits.values())) == 1:
        (limit,) = set(limits.values())
        left.axvline(limit, **style)
        right.axhline(limit, **style)
        return
    left.plot(list(limits.values()), list(limits), **style)
    right.plot(*_xy(limits), **style)


def _save(picture: Figure, path: Path, marked: bool, legends: Sequence[Axes]) -> None:
    """Into a file; what is not private says so above everything else."""
    from matplotlib.ticker import MaxNLocator

    for axes in picture.axes:  # there is no round 2.5
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_label_text() == "round":
                axis.set_major_locator(MaxNLocator(integer=True))
    for axes in legends:
        if axes.get_legend_handles_labels()[1]:
            axes.legend(frameon=False)
    if marked:
        picture.suptitle(NOT_PRIVATE, color="#B00000", fontsize=8)
    picture.savefig(path)
