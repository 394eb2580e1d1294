"""Attacks as a picture: images and what was made of them, and how well members are told from others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cloister.errors import expect
from cloister.runs.recorded import NOT_PRIVATE
from cloister.runs.report.style import expect_plot, line_colors
from cloister.studies.attacks.found import Attacks, most_true_positives


def attacks_plot(found: Mapping[str, Attacks], path: Path, dpi: int = 130) -> None:
    """A row of images for what clients have, one for what is made of it in each run, and curves of all runs."""
    from matplotlib.figure import Figure

    expect_plot(path)
    inverted = {name: one for name, one in found.items() if one.inversion}
    guessed = {name: one for name, one in found.items() if one.membership is not None}
    expect(bool(inverted or guessed), "attacks to draw", "none", "choose a kind")
    columns = max((len(one.inversion) for one in inverted.values()), default=0)
    rows = 1 + len(inverted) if inverted else 3
    wide = 1.15 * columns + 1.6 if inverted else 0.0
    size = (wide + (4.6 if guessed else 0), max(1.15 * rows + 0.5, 3.8 if guessed else 0))
    figure = Figure(figsize=size, dpi=dpi, layout="constrained")
    left: Any = figure if inverted else None
    right: Any = figure if guessed else None
    if inverted and guessed:
        halves: Any = figure.subfigures(1, 2, width_ratios=[wide, 4.6])
        left, right = halves
    if left is not None:
        shown = next(iter(inverted.values())).inversion
        every = left.subplots(rows, columns, squeeze=False)
        for axes in every.reshape(-1):
            axes.set_axis_off()
        for place, one in enumerate(shown):
            every[0][place].imshow(one.image, cmap="gray_r", vmin=0, vmax=1)
            every[0][place].set_title(f"client {one.client}", fontsize=7)
        _beside(every[0][0], "its image")
        for row, (name, attacks) in enumerate(inverted.items(), start=1):
            for place, one in enumerate(attacks.inversion):
                every[row][place].imshow(one.found, cmap="gray_r", vmin=0, vmax=1)
                every[row][place].set_title(f"correlation {one.correlation:.2f}", fontsize=7)
            _beside(every[row][0], name)
        left.suptitle("Gradient inversion of one client's update", fontsize=9)
    if right is not None:
        axes = right.subplots()
        x = np.logspace(-4, 0, 200)
        axes.plot(x, x, color="0.75", lw=1, label="chance")
        for (name, attacks), color in zip(guessed.items(), line_colors(len(guessed)), strict=True):
            curve = attacks.membership
            assert curve is not None
            axes.plot(curve.false_positives, curve.true_positives, color=color, label=f"{name}, area {curve.area:.3f}")
            if attacks.epsilon is not None and attacks.delta is not None:
                most = [most_true_positives(one, attacks.epsilon, attacks.delta) for one in x]
                axes.plot(x, most, color=color, ls="--", lw=1, label=f"{name}: allowed at most")
        least = min(1 / one.membership.others for one in guessed.values() if one.membership is not None)
        axes.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1.05))
        axes.set(xlabel="false positive rate", ylabel="true positive rate")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="0.93")
        axes.legend(frameon=False, fontsize=7, loc="lower right")
        right.suptitle("Membership inference by the loss", fontsize=9)
    figure.supxlabel(NOT_PRIVATE, color="#B00000", fontsize=7)
    path.touch(mode=0o600)
    path.chmod(0o600)  # training images: for their owner's eyes, as attacks.json is
    figure.savefig(path)


def _beside(axes: object, words: str) -> None:
    from matplotlib.axes import Axes

    assert isinstance(axes, Axes)
    axes.text(-0.15, 0.5, words, transform=axes.transAxes, ha="right", va="center", fontsize=7)
