"""The loss around trained models: contours side by side, and one of them as a surface."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cloister.studies.html.figures.style import Drawn, Panel, new_figure
from cloister.studies.html.gather import Group
from cloister.studies.html.landscape_file import Grid, Landscape
from cloister.studies.html.over_seeds import short

_SCALE = "Cividis"
_LEVELS = 14


def landscapes(groups: Sequence[Group], of: str) -> list[Drawn]:
    """The loss, or the accuracy, of the first run of each group that recorded one."""
    there = [(group.name, _first(group)) for group in groups]
    grids = [(name, land, _of(land, of)) for name, land in there if land is not None]
    found = [(name, land, grid) for name, land, grid in grids if grid is not None]
    if not found:
        return []
    values = [value for _, _, grid in found for row in grid for value in row if value is not None]
    least, most = min(values), max(values)
    most = min(most, _shown(values))
    contours = [_contour(name, land, grid, least, most, of) for name, land, grid in found]
    words = f"{of} at the model plus alpha and beta times two random directions, scaled filter by filter"
    flat = Drawn(
        f"contours-{of}",
        f"Contours of the {of}",
        f"The {words}. The cross is the model. Levels are the same in all panels.",
        tuple(contours),
        mark=True,
        legend=False,
    )
    return [flat, _surface(found, least, most, of, words)] if of == "loss" else [flat]


def _first(group: Group) -> Landscape | None:
    return next((run.landscape for run in group.runs if run.landscape is not None), None)


def _of(land: Landscape, of: str) -> Grid | None:
    return land.loss if of == "loss" else land.accuracy


def _shown(values: Sequence[float]) -> float:
    """Where colors end: far away the loss may be a hundred times that of the model, and would hide everything else."""
    ordered = sorted(values)
    return ordered[math.ceil(0.95 * len(ordered)) - 1]


def _contour(name: str, land: Landscape, grid: Grid, least: float, most: float, of: str) -> Panel:
    figure = new_figure("alpha", "beta")
    figure.add_contour(
        x=[short(value) for value in land.alpha],
        y=[short(value) for value in land.beta],
        z=_numbers(grid),
        colorscale=_SCALE,
        zmin=short(least),
        zmax=short(most),
        contours={"start": short(least), "end": short(most), "size": short(max(most - least, 1e-9) / _LEVELS)},
        line={"width": 0.6},
        colorbar={"thickness": 10, "outlinewidth": 0},
        hovertemplate=f"alpha %{{x:.3g}}, beta %{{y:.3g}}<br>{of} %{{z:.4g}}<extra></extra>",
    )
    figure.add_scatter(x=[0], y=[0], mode="markers", marker={"symbol": "cross", "size": 9}, hoverinfo="skip")
    figure.data[-1].marker.color = "#ffffff"
    return Panel(figure, name, height=300)


def _surface(found: Sequence[tuple[str, Landscape, Grid]], least: float, most: float, of: str, words: str) -> Drawn:
    figure = new_figure("", "")
    frames = [{0: _surface_data(land, grid, most)} for _, land, grid in found]
    figure.add_surface(
        **frames[0][0],
        colorscale=_SCALE,
        cmin=short(least),
        cmax=short(most),
        colorbar={"thickness": 10, "outlinewidth": 0},
        hovertemplate=f"alpha %{{x:.3g}}, beta %{{y:.3g}}<br>{of} %{{z:.4g}}<extra></extra>",
    )
    axes = {"xaxis": {"title": {"text": "alpha"}}, "yaxis": {"title": {"text": "beta"}}}
    figure.update_layout(scene={**axes, "zaxis": {"title": {"text": of}, "range": [short(least), short(most)]}})
    caption = f"The {words}, cut off where nineteen in twenty values of all models lie below."
    panel = Panel(figure, frames=tuple(frames), height=460)
    names = tuple(name for name, _, _ in found)
    return Drawn(f"surface-{of}", f"The {of} as a surface", caption, (panel,), mark=True, legend=False, choices=names)


def _surface_data(land: Landscape, grid: Grid, most: float) -> dict[str, Any]:
    cut = [[None if value is None else min(value, most) for value in row] for row in _numbers(grid)]
    return {"x": [short(v) for v in land.alpha], "y": [short(v) for v in land.beta], "z": cut}


def _numbers(grid: Grid) -> Grid:
    return [[None if value is None else short(value) for value in row] for row in grid]
