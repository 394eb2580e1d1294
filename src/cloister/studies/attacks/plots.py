"""Attacks as a picture: images and what was made of them, and how well members are told from others."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cloister.errors import expect
from cloister.runs.recorded import NOT_PRIVATE
from cloister.runs.report.style import expect_plot, line_colors
from cloister.studies.attacks.found import Attacks

_DASHES: tuple[Any, ...] = ("-", (0, (1, 1.2)))
"""The strongest attack, then others."""
_BOUNDS: tuple[Any, ...] = ((0, (6, 2)), (0, (6, 2, 1, 2)))
_CELL, _CURVES = 1.15, 5.0  # inches


def attacks_plot(found: Mapping[str, Attacks], path: Path, dpi: int = 130) -> None:
    """A row of images for what clients have, one for what is made of it in each run, and curves of all runs."""
    from matplotlib.figure import Figure

    expect_plot(path)
    inverted = {name: one for name, one in found.items() if one.inversion}
    guessed = {name: one for name, one in found.items() if one.membership}
    expect(bool(inverted or guessed), "attacks to draw", "none", "choose a kind")
    columns = max((len(one.inversion) for one in inverted.values()), default=0)
    rows = 1 + len(inverted) if inverted else 3
    wide = _CELL * columns + 1.9 if inverted else 0.0
    lines = sum(len(one.membership) + (one.epsilon is not None) for one in guessed.values())
    high = max(_CELL * rows + 0.5, 3.8 + 0.17 * lines if guessed else 0)
    figure = Figure(figsize=(wide + (_CURVES if guessed else 0), high), dpi=dpi, layout="constrained")
    left: Any = figure if inverted else None
    right: Any = figure if guessed else None
    if inverted and guessed:
        halves: Any = figure.subfigures(1, 2, width_ratios=[wide, _CURVES])
        left, right = halves
    if left is not None:
        _images(left, inverted)
    if right is not None:
        _curves(right, guessed)
    letters = int(18 * figure.get_figwidth())  # of this size that the picture is wide
    figure.supxlabel(textwrap.fill(NOT_PRIVATE, letters), color="#B00000", fontsize=7)
    path.touch(mode=0o600)
    path.chmod(0o600)  # training images: for their owner's eyes, as attacks.json is
    figure.savefig(path)


def _images(figure: Any, found: Mapping[str, Attacks]) -> None:
    columns = max(len(one.inversion) for one in found.values())
    every = figure.subplots(1 + len(found), columns, squeeze=False)
    for axes in every.reshape(-1):
        axes.set_axis_off()
    for place, one in enumerate(next(iter(found.values())).inversion):
        every[0][place].imshow(one.image, cmap="gray_r", vmin=0, vmax=1)
        every[0][place].set_title(f"client {one.client}", fontsize=7)
    _beside(every[0][0], "client's image")
    for row, (name, attacks) in enumerate(found.items(), start=1):
        for place, one in enumerate(attacks.inversion):
            every[row][place].imshow(one.found, cmap="gray_r", vmin=0, vmax=1)
            every[row][place].set_title(f"correlation {round(one.correlation, 2) + 0.0:.2f}", fontsize=7)
        _beside(every[row][0], "from its update,\n" + name)
    figure.suptitle("Gradient inversion of one client's update", fontsize=9)


def _curves(figure: Any, found: Mapping[str, Attacks]) -> None:
    axes = figure.subplots()
    least = min(1 / one.others for attacks in found.values() for one in attacks.membership)
    x = np.logspace(np.log10(least), 0, 200)
    axes.plot(x, x, color="0.75", lw=1, label="chance")
    bounds: dict[tuple[float | None, ...], str] = {}  # runs may share one
    for (name, attacks), color in zip(found.items(), line_colors(len(found)), strict=True):
        for curve, dashes in zip(reversed(attacks.membership), _DASHES, strict=False):
            label = f"{name}: {curve.attack}, area {curve.area:.3f}"
            axes.plot(curve.false_positives, curve.true_positives, color=color, ls=dashes, lw=1.6, label=label)
        most = tuple(attacks.allowed(float(one)) for one in x)
        if attacks.epsilon is not None:
            bounds.setdefault(most, f"epsilon {attacks.epsilon:.3g}: allowed at most")
    for (most, label), bound in zip(bounds.items(), itertools.cycle(_BOUNDS), strict=False):
        axes.plot(x, most, color="0.3", ls=bound, lw=1, label=label)
    axes.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1.3))
    axes.set_xlabel("false positive rate", fontsize=8)
    axes.set_ylabel("true positive rate", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.93")
    # below the axes: inside, it would lie on curves
    axes.legend(frameon=False, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.13))
    figure.suptitle("Membership inference from the final model", fontsize=9)


def _beside(axes: Any, words: str) -> None:
    axes.text(-0.12, 0.5, words, transform=axes.transAxes, ha="right", va="center", fontsize=7)
