"""The loss around trained models: contours side by side, one of them as a surface, and a line through each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cloister.studies.html.figures.lines import add_curve
from cloister.studies.html.figures.style import Drawn, Panel, Style, new_figure
from cloister.studies.html.gather import Group
from cloister.studies.html.landscape_file import Grid, Landscape
from cloister.studies.html.over_seeds import Curve, short

_SCALE = "Cividis"
_LEVELS = 14
_MANY_TIMES = 5
"""Where the loss rises by more than this, levels go up by a factor: else all of them lie far from the model."""


@dataclass(frozen=True)
class Shown:
    """The landscape of one model."""

    group: Group
    land: Landscape
    grid: Grid


@dataclass(frozen=True)
class Levels:
    """From where to where colors go, the same in all panels."""

    least: float
    most: float
    logarithmic: bool

    @classmethod
    def over(cls, shown: Sequence[Shown], of: str) -> Levels:
        values = sorted(value for one in shown for row in one.grid for value in row if value is not None)
        least, most = values[0], values[-1]
        return cls(least, most, of == "loss" and least > 0 and most > _MANY_TIMES * least)

    def at(self, value: float | None) -> float | None:
        if value is None:
            return None
        return short(math.log10(value)) if self.logarithmic else short(value)

    @property
    def colors(self) -> dict[str, Any]:
        """A color bar with the values themselves."""
        plain = {"thickness": 10, "outlinewidth": 0}
        if not self.logarithmic:
            return plain
        low, high = math.log10(self.least), math.log10(self.most)
        ticks = [low + (high - low) * part / 4 for part in range(5)]
        return {**plain, "tickvals": [short(tick) for tick in ticks], "ticktext": [f"{10**tick:.3g}" for tick in ticks]}


def landscapes(style: Style, groups: Sequence[Group], of: str) -> list[Drawn]:
    """The loss, or the accuracy, around the first model of each group that has one."""
    shown = [one for group in groups if (one := _first(group, of)) is not None]
    planes = [one for one in shown if len(one.land.beta) > 1]
    found = [_contours(planes, of), *([_surface(planes, of)] if of == "loss" else [])] if planes else []
    if of == "loss" and shown:
        found.append(_lines(style, shown))
    return found


def _first(group: Group, of: str) -> Shown | None:
    land = next((run.landscape for run in group.runs if run.landscape is not None), None)
    grid = None if land is None else land.loss if of == "loss" else land.accuracy
    there = grid is not None and any(value is not None for row in grid for value in row)
    return Shown(group, land, grid) if land is not None and grid is not None and there else None


def _caption(shown: Sequence[Shown], of: str, more: str) -> str:
    samples = ", ".join(dict.fromkeys(f"{one.land.samples} {one.land.of} samples" for one in shown))
    plane = "at the model plus alpha and beta times two random directions, each filter as long as the model's"
    return f"The {of} on {samples} {plane}, exact: no epsilon covers it. {more}".strip()


def _mark(shown: Sequence[Shown]) -> bool:
    return any(one.land.of != "test" for one in shown)


def _contours(shown: Sequence[Shown], of: str) -> Drawn:
    levels = Levels.over(shown, of)
    panels = tuple(_contour(one, levels, of) for one in shown)
    caption = _caption(shown, of, "The cross is the model. Colors are the same in all panels.")
    return Drawn(f"contours-{of}", f"Contours of the {of}", caption, panels, mark=_mark(shown), legend=False)


def _contour(one: Shown, levels: Levels, of: str) -> Panel:
    low, high = levels.at(levels.least), levels.at(levels.most)
    assert low is not None
    assert high is not None
    figure = new_figure("alpha", "beta")
    figure.add_contour(
        x=[short(value) for value in one.land.alpha],
        y=[short(value) for value in one.land.beta],
        z=[[levels.at(value) for value in row] for row in one.grid],
        customdata=_numbers(one.grid),
        colorscale=_SCALE,
        zmin=low,
        zmax=high,
        contours={"start": low, "end": high, "size": short(max(high - low, 1e-9) / _LEVELS)},
        line={"width": 0.5, "color": "#ffffff"},
        colorbar=levels.colors,
        hovertemplate=f"alpha %{{x:.3g}}, beta %{{y:.3g}}<br>{of} %{{customdata:.4g}}<extra></extra>",
    )
    cross = {"symbol": "cross", "size": 9, "color": "#ffffff", "line": {"color": "#000000", "width": 1}}
    figure.add_scatter(x=[0], y=[0], mode="markers", marker=cross, hoverinfo="skip")
    return Panel(figure, one.group.name, height=300)


def _surface(shown: Sequence[Shown], of: str) -> Drawn:
    levels = Levels.over(shown, of)
    figure = new_figure("", "")
    frames = [{0: _heights(one, levels)} for one in shown]
    figure.add_surface(
        **frames[0][0],
        colorscale=_SCALE,
        cmin=levels.at(levels.least),
        cmax=levels.at(levels.most),
        colorbar=levels.colors,
        hovertemplate=f"alpha %{{x:.3g}}, beta %{{y:.3g}}<br>{of} %{{customdata:.4g}}<extra></extra>",
    )
    ticks = {name: value for name, value in levels.colors.items() if name.startswith("tick")}
    height = {"title": {"text": of}, "range": [levels.at(levels.least), levels.at(levels.most)], **ticks}
    axes = {"xaxis": {"title": {"text": "alpha"}}, "yaxis": {"title": {"text": "beta"}}, "zaxis": height}
    camera = {"eye": {"x": 1.7, "y": 1.7, "z": 0.9}, "center": {"x": 0, "y": 0, "z": -0.15}}
    figure.update_layout(scene={**axes, "aspectmode": "cube", "camera": camera})
    names = tuple(one.group.name for one in shown)
    panel = Panel(figure, frames=tuple(frames), height=460)
    caption = _caption(shown, of, "Heights are logarithmic." if levels.logarithmic else "")
    return Drawn(
        f"surface-{of}", f"The {of} as a surface", caption, (panel,), _mark(shown), legend=False, choices=names
    )


def _heights(one: Shown, levels: Levels) -> dict[str, Any]:
    return {
        "x": [short(value) for value in one.land.alpha],
        "y": [short(value) for value in one.land.beta],
        "z": [[levels.at(value) for value in row] for row in one.grid],
        "customdata": _numbers(one.grid),
    }


def _lines(style: Style, shown: Sequence[Shown]) -> Drawn:
    figure = new_figure("alpha", "loss")
    for one in shown:
        x, y = zip(*one.land.line.items(), strict=True) if one.land.line else ((), ())
        curve = Curve([short(value) for value in x], [short(value) for value in y], None)
        add_curve(figure, style, one.group, curve if x else None, "alpha")
    words = "Along the first direction alone: a flat line is a flat minimum."
    return Drawn("landscape-lines", "The loss along a line", words, (Panel(figure),), mark=_mark(shown))


def _numbers(grid: Grid) -> Grid:
    return [[None if value is None else short(value) for value in row] for row in grid]
