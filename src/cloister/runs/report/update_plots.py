"""Pictures of what updates have in common, of signal and noise in their mean, and of what they leave out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cloister.runs.report.plot_parts import Curves, save, those_with, xy
from cloister.runs.report.style import line_colors, new_figure


def cosine(runs: Mapping[str, Curves], path: Path) -> None:
    """Cosines of pairs, of updates with their mean, and of the released mean with the exact one."""
    runs = those_with(runs, "cosine", "cosine")
    picture, axes = new_figure(3)
    for color, (label, curves) in zip(line_colors(len(runs)), runs.items(), strict=True):
        axes[0].plot(*xy(curves.by_round("cosine/pairwise")), color=color, label=label or None)
        axes[1].plot(*xy(curves.by_round("cosine/with_mean/mean")), color=color)
        low, high = (curves.by_round(f"cosine/with_mean/quantiles/{share}") for share in ("0.05", "0.95"))
        axes[1].fill_between(list(low), xy(low)[1], xy(high)[1], color=color, alpha=0.15, linewidth=0)
        axes[2].plot(*xy(curves.by_round("cosine/released")), color=color)
    names = ("mean cosine of two updates", "cosine with the mean (mean, 90 %)", "cosine of released and exact mean")
    for one, name in zip(axes, names, strict=True):
        one.axhline(0, color="0.7", linewidth=1, zorder=0)
        one.set(xlabel="round", ylabel=name)
        one.set_ylim(min(one.get_ylim()[0], -0.05), 1.02)
    save(picture, path, marked=True, legends=(axes[0],))


def signal(runs: Mapping[str, Curves], path: Path) -> None:
    """Norms in the mean update, and signal over noise. Several runs are told apart by color."""
    runs = those_with(runs, "signal", "signal/signal")
    picture, (left, right) = new_figure(2)
    shown = {"signal": "-", "noise": ":", "clipping_bias": "--"}
    if len(runs) == 1:
        (curves,) = runs.values()
        colors = dict(zip(("signal", "noise", "expected_noise", "clipping_bias"), line_colors(4), strict=True))
        words = ("exact mean", "noise", "noise, expected", "clipping bias")
        for (name, color), label in zip(colors.items(), words, strict=True):
            values = curves.by_round(f"signal/{name}")
            if values:
                dashed = "--" if name == "expected_noise" else "-"
                left.plot(*xy(values), color=color, linestyle=dashed, label=label)
    else:
        for color, (_, curves) in zip(line_colors(len(runs)), runs.items(), strict=True):
            for name, style in shown.items():
                left.plot(*xy(curves.by_round(f"signal/{name}")), color=color, linestyle=style)
        for label, style in zip(("exact mean", "noise", "clipping bias"), shown.values(), strict=True):
            left.plot([], [], color="0.4", linestyle=style, label=label)
    for color, (label, curves) in zip(line_colors(len(runs)), runs.items(), strict=True):
        right.plot(*xy(curves.by_round("signal/ratio")), color=color, label=label if len(runs) > 1 else None)
    left.set(xlabel="round", ylabel="norm in the mean update")
    left.set_ylim(bottom=0)
    right.set(xlabel="round", ylabel="signal over noise")
    right.set_ylim(0, max(1.1, right.get_ylim()[1]))
    right.axhline(1, color="0.7", linewidth=1, zorder=0)
    save(picture, path, marked=True, legends=(left, right))


def sparsity(runs: Mapping[str, Curves], path: Path) -> None:
    """Shares of coordinates that are zero, and how much of the others two clients share."""
    runs = those_with(runs, "sparsity", "sparsity/updates")
    picture, (left, right) = new_figure(2)
    several = len(runs) > 1
    for color, (label, curves) in zip(line_colors(len(runs)), runs.items(), strict=True):
        left.plot(*xy(curves.by_round("sparsity/updates")), color=color, label=label if several else "zero in updates")
        left.plot(
            *xy(curves.by_round("sparsity/messages")),
            color=color if several else line_colors(2)[1],
            linestyle="--",
            label=None if several else "zero in messages, or not sent",
        )
        right.plot(*xy(curves.by_round("sparsity/overlap")), color=color, label=None if several else "overlap")
        chance = None if several else "by chance"
        right.plot(*xy(curves.by_round("sparsity/by_chance")), color="0.6", linestyle=":", label=chance)
    ends = " (dashed: in messages)" if several else ""
    left.set(xlabel="round", ylabel=f"share of the coordinates{ends}", ylim=(-0.02, 1.02))
    right.set(xlabel="round", ylabel="overlap of what two clients send that is not zero", ylim=(-0.02, 1.05))
    save(picture, path, marked=True, legends=(left, right))
