"""What runs recorded, as pictures. What is not private carries the mark above everything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from cloister.errors import CloisterError, expect_one_of
from cloister.runs.recorded import Recorded
from cloister.runs.report import update_plots
from cloister.runs.report.plot_parts import (
    CLIP,
    Curves,
    all_bins,
    bins_by_round,
    clip_lines,
    quantiles,
    save,
    those_with,
    xy,
)
from cloister.runs.report.style import expect_plot, line_colors, new_figure


def recorded_plot(recorded: Recorded, path: Path, of: str) -> None:
    """As `measurements_plot`, of one run without its lines."""
    measurements_plot({"": Curves((), recorded)}, path, of)


def measurements_plot(runs: Mapping[str, Curves], path: Path, of: str) -> None:
    """Draw one kind of measurement of some runs."""
    expect_one_of("of", of, tuple(PLOTS))
    expect_plot(path)
    PLOTS[of](runs, path)


def _norms(runs: Mapping[str, Curves], path: Path) -> None:
    """How norms of updates are distributed, and how they go over the rounds."""
    runs = those_with(runs, "norms", "norms/mean")
    picture, (left, right) = new_figure(2)
    clips = any(curves.by_round("norms/clip_norm") for curves in runs.values())
    label = f"norm of an update{' before clipping' if clips else ''}"
    if len(runs) == 1:
        (curves,) = runs.values()
        bins_by_round(picture, left, curves, "norms", label)
        quantiles(right, curves, "norms", label)
        clip_lines(left, right, curves.by_round("norms/clip_norm"))
    else:
        colors = line_colors(len(runs))
        all_bins(left, runs, colors)
        for color, (name, curves) in zip(colors, runs.items(), strict=True):
            right.plot(*xy(curves.by_round("norms/mean")), color=color, label=name)
            right.plot(*xy(curves.by_round("norms/clip_norm")), color=color, linestyle="--", linewidth=1)
        left.set(xlabel=label, ylabel="share of the updates of all rounds")
        right.set(xlabel="round", ylabel=f"mean norm{' (dashed: clip norm)' if clips else ''}")
    right.set_ylim(bottom=0)
    save(picture, path, marked=True, legends=(right,) if len(runs) == 1 else (left, right))


def _clipping(runs: Mapping[str, Curves], path: Path) -> None:
    """The mean clip factor with its spread, and how many are clipped at all."""
    runs = those_with(runs, "clipping", "clipping/mean")
    kinds = {kind for curves in runs.values() for kind in curves.by_round("clipping/of").values()} - {"nothing"}
    if not kinds:
        raise CloisterError("Expected a run that clips something, found none: choose another picture.")
    picture, (left, right) = new_figure(2)
    for color, (label, curves) in zip(line_colors(len(runs)), runs.items(), strict=True):
        rounds, mean = xy(curves.by_round("clipping/mean"))
        spread = np.array(xy(curves.by_round("clipping/spread"))[1])
        left.plot(rounds, mean, color=color, label=label or "mean")
        above = np.minimum(mean + spread, 1.0)
        left.fill_between(rounds, mean - spread, above, color=color, alpha=0.2, linewidth=0)
        right.plot(*xy(curves.by_round("clipping/clipped")), color=color, label=label or None)
    of = " and ".join(sorted(kinds))
    left.set(xlabel="round", ylabel="clip factor: mean and spread", ylim=(0, 1.05))
    right.set(xlabel="round", ylabel=f"clipped, of {of}", ylim=(0, 1.05))
    save(picture, path, marked=True, legends=(left,))


def _gradients(runs: Mapping[str, Curves], path: Path) -> None:
    """Norms of samples' gradients: the mean of each client, and of all together."""
    runs = those_with(runs, "gradients", "gradients/mean")
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
        left.plot(*xy(means), color=color, linewidth=1, marker=".", markersize=3, label=label)
    shown = "" if len(few) == len(clients) else f" ({len(few)} of {len(clients)} clients)"
    left.set(xlabel="round", ylabel=f"mean gradient norm of a client{shown}", ylim=(0, None))
    quantiles(right, curves, "gradients", "norm of a sample's gradient")
    thresholds = curves.by_round("thresholds/clip_norm")
    by_client = curves.by_round("gradients/by_client").values()
    clipped = any("mean_clip_factor" in row for rows in by_client for row in rows.values())
    if thresholds and clipped:  # a clip of whole updates is none of gradients
        right.plot(*xy(thresholds), color=CLIP, linestyle="--", linewidth=1, label="threshold (mean)")
    right.set_ylim(bottom=0)
    save(picture, path, marked=True, legends=(left, right))


def _thresholds(runs: Mapping[str, Curves], path: Path) -> None:
    """Noise multipliers over rounds and over what was spent, and clipping thresholds over rounds."""
    runs = those_with(runs, "thresholds", "thresholds/noise_multiplier")
    names = ("thresholds/noise_multiplier", "thresholds/clip_norm")
    if not any(value for curves in runs.values() for name in names for value in curves.by_round(name).values()):
        raise CloisterError(
            "Expected a run that adds noise or clips, found none, and nothing to draw: choose another picture."
        )
    spent = {label: {line["round"]: float(line["epsilon"]) for line in c.lines} for label, c in runs.items()}
    picture, axes = new_figure(3 if any(spent.values()) else 2)
    for color, (label, curves) in zip(line_colors(len(runs)), runs.items(), strict=True):
        noise, clip = curves.by_round("thresholds/noise_multiplier"), curves.by_round("thresholds/clip_norm")
        axes[0].plot(*xy(noise), color=color, label=label or None)
        axes[1].plot(*xy(clip), color=color, label=label or None)
        least, most = curves.by_round("thresholds/least"), curves.by_round("thresholds/most")
        if least:
            words = f"{label}, least to most of its clients".strip(", ")
            below, above = xy(least)[1], xy(most)[1]
            axes[1].fill_between(list(least), below, above, color=color, alpha=0.2, linewidth=0, label=words)
        if spent[label]:
            known = [(spent[label][round], value) for round, value in noise.items() if round in spent[label]]
            axes[2].plot(*zip(*known, strict=True), color=color, label=label or None)
    axes[0].set(xlabel="round", ylabel="noise multiplier", ylim=(0, None))
    axes[1].set(xlabel="round", ylabel="clipping threshold", ylim=(0, None))
    if any(spent.values()):
        axes[2].set(xlabel="epsilon spent", ylabel="noise multiplier", ylim=(0, None))
    exact = [c for c in runs.values() if c.recorded is not None and not c.recorded.was_paid_for("thresholds")]
    save(picture, path, marked=bool(exact), legends=(axes[1],))


def _loss(runs: Mapping[str, Curves], path: Path) -> None:
    """Loss and accuracy on the test samples, and on those that were trained on where that was recorded."""
    picture, axes = new_figure(2)
    trained = False
    for color, (label, curves) in zip(line_colors(len(runs)), runs.items(), strict=True):
        for one, name, gap, sign in zip(axes, ("loss", "accuracy"), ("loss_gap", "accuracy_gap"), (1, -1), strict=True):
            train, apart = curves.by_round(f"train/{name}"), curves.by_round(f"train/{gap}")
            test = curves.tested(name) or {r: train[r] + sign * apart[r] for r in train if r in apart}
            if test:
                one.plot(*xy(test), color=color, label=f"{label} test".strip())
            if train:
                one.plot(*xy(train), color=color, linestyle="--", label=f"{label} train".strip())
                trained = True
    for one, name in zip(axes, ("loss", "accuracy"), strict=True):
        one.set(xlabel="round", ylabel=name if trained else f"test {name}")
        if not one.lines:
            one.text(0.5, 0.5, f"no {name} was computed", ha="center", transform=one.transAxes)
    save(picture, path, marked=trained, legends=[one for one in axes if one.lines])


PLOTS: dict[str, Callable[[Mapping[str, Curves], Path], None]] = {
    "norms": _norms,
    "clipping": _clipping,
    "gradients": _gradients,
    "cosine": update_plots.cosine,
    "signal": update_plots.signal,
    "sparsity": update_plots.sparsity,
    "thresholds": _thresholds,
    "loss": _loss,
}
_MANY_LINES, _MOST_LINES = 6, 40
