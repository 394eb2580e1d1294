"""Landscapes as pictures: a row for each model, all on the same axes and in the same colors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cloister.runs.recorded import NOT_PRIVATE
from cloister.runs.report.style import expect_plot, line_colors
from cloister.studies.landscape import Landscape

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLORS = "viridis_r"


def landscape_plot(found: Mapping[str, Landscape], path: Path) -> None:
    """Contours, the surface, and the line through the middle of each."""
    from matplotlib.figure import Figure

    expect_plot(path)
    rows = len(found)
    flat = all(len(one.beta) == 1 for one in found.values())
    picture = Figure(figsize=(5.2 if flat else 13.5, 3.9 * rows), dpi=110, layout="constrained")
    losses = np.concatenate([np.ravel(one.loss) for one in found.values()])
    losses = losses[np.isfinite(losses)]
    low, high = (float(losses.min()), float(losses.max())) if len(losses) else (0.0, 1.0)
    levels = _levels(low, high)
    for row, (label, one) in enumerate(found.items()):
        place = (rows, 1 if flat else 3)
        if not flat and len(one.beta) > 1:
            _contours(picture, picture.add_subplot(*place, 3 * row + 1), one, label, levels)
            _surface(picture.add_subplot(*place, 3 * row + 2, projection="3d"), one, levels)
        _line(picture.add_subplot(*place, place[1] * (row + 1)), one, (low, high), label if flat else "")
    if any(one.of == "train" for one in found.values()):
        picture.suptitle(NOT_PRIVATE, color="#B00000", fontsize=8)
    picture.savefig(path)


def _levels(low: float, high: float) -> Any:
    """Even steps, or even factors where the loss rises by more than a few times."""
    if low > 0 and high > 5 * low:
        return np.geomspace(low * 0.999, high * 1.001, 21)
    return np.linspace(low, high if high > low else low + 1, 21)


def _norm(levels: Any) -> Any:
    from matplotlib.colors import LogNorm, Normalize

    even = np.allclose(np.diff(levels), levels[1] - levels[0])
    return (Normalize if even else LogNorm)(levels[0], levels[-1])


def _contours(picture: Figure, axes: Axes, one: Landscape, label: str, levels: Any) -> None:
    grid = np.clip(np.array(one.loss).T, levels[0], levels[-1])
    drawn = axes.contourf(one.alpha, one.beta, grid, levels=levels, cmap=_COLORS, norm=_norm(levels))
    lines = axes.contour(one.alpha, one.beta, grid, levels=levels[::2], colors="white", linewidths=0.6)
    axes.clabel(lines, fontsize=7, fmt="%.2g")
    axes.plot(0, 0, marker="+", color="#D55E00", markersize=9, markeredgewidth=2)
    ticks = levels[::4]
    bar = picture.colorbar(drawn, ax=axes, label=f"{one.of} loss", ticks=ticks)
    bar.ax.set_yticklabels([f"{tick:.2g}" for tick in ticks])
    bar.ax.minorticks_off()
    axes.set(xlabel="alpha", ylabel="beta", aspect="equal")
    axes.set_title(label, fontsize=10, loc="left")


def _surface(axes: Any, one: Landscape, levels: Any) -> None:
    along, across = np.meshgrid(one.alpha, one.beta)
    norm, grid = _norm(levels), np.clip(np.array(one.loss).T, levels[0], levels[-1])
    axes.plot_surface(along, across, grid, cmap=_COLORS, norm=norm, linewidth=0, rstride=1, cstride=1)
    axes.set(xlabel="alpha", ylabel="beta", zlim=(levels[0], levels[-1]))
    axes.set(xticks=[one.alpha[0], 0, one.alpha[-1]], yticks=[one.beta[0], 0, one.beta[-1]])
    axes.view_init(elev=32, azim=-60)
    axes.tick_params(labelsize=8)


def _line(axes: Axes, one: Landscape, limits: tuple[float, float], label: str) -> None:
    blue, red = line_colors(2)
    axes.plot(one.alpha, one.line() or [], color=blue, marker=".", markersize=3)
    axes.set_ylabel(f"{one.of} loss where beta is 0", color=blue)
    axes.set(xlabel="alpha", ylim=(limits[0] - 0.05 * (limits[1] - limits[0]), limits[1] * 1.02))
    axes.spines["top"].set_visible(False)
    axes.grid(axis="y", color="0.92")
    accuracy = one.line("accuracy")
    if accuracy is not None:
        beside = axes.twinx()
        beside.plot(one.alpha, accuracy, color=red, linestyle="--")
        beside.set_ylabel("accuracy (dashed)", color=red)
        beside.set_ylim(0, 1.02)
        beside.spines["top"].set_visible(False)
    words = f"rise at {list(one.sharpness.rise)[-1]}: {list(one.sharpness.rise.values())[-1]:.3g}"
    top = "" if one.sharpness.hessian is None else f", Hessian {one.sharpness.hessian:.3g}"
    axes.set_title(f"{label + ': ' if label else ''}{words}{top}", fontsize=9, loc="left")
