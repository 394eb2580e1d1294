"""A number over rounds or over epsilon: a line for each group, the mean over seeds, and a band of one deviation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from cloister.studies.html.figures.style import Panel, Style, add_band, new_figure, words
from cloister.studies.html.gather import ByRound, Group
from cloister.studies.html.over_seeds import Curve, curve, short

_FEW = 12
"""With fewer points than this, each is marked."""
_EDGE = 0.02
"""Of an axis that ends at 0 and 1, so that lines there can be seen."""


def over_rounds(style: Style, groups: Sequence[Group], name: str, y: str, share: bool = False) -> Panel | None:
    """Over the rounds; None where no group has the number. A share's axis ends at 0 and 1, whatever its band."""
    figure = new_figure("round", y)
    if share:
        figure.update_yaxes(autorangeoptions={"minallowed": -_EDGE, "maxallowed": 1 + _EDGE})
    drawn = [add_curve(figure, style, group, curve(group.by_round(name)), "round") for group in groups]
    return Panel(figure) if any(drawn) else None


def over_epsilon(style: Style, groups: Sequence[Group], name: str, y: str) -> Panel | None:
    """Over what had been spent by then, at each run's own delta."""
    figure = new_figure("epsilon spent", y)
    figure.update_xaxes(rangemode="tozero")
    drawn = [add_curve(figure, style, group, _along_epsilon(group, name), "epsilon") for group in groups]
    return Panel(figure) if any(drawn) else None


def _along_epsilon(group: Group, name: str) -> Curve | None:
    there = [run for run in group.runs if run.by_round(name)]
    spent: list[Mapping[int, float]] = [run.epsilons for run in there]
    if not there or not all(spent):
        return None
    numbers: list[ByRound] = [run.by_round(name) for run in there]
    return curve(numbers, spent)


def add_curve(figure: go.Figure, style: Style, group: Group, found: Curve | None, of: str) -> bool:
    """Draw a group's curve, if there is one."""
    if found is None:
        return False
    if found.deviation is not None:
        pairs = list(zip(found.mean, found.deviation, strict=True))
        low, high = [short(m - d) for m, d in pairs], [short(m + d) for m, d in pairs]
        add_band(figure, style, group, found.x, low, high)
    second = style.marker(group) != "circle"
    marked = len(found.x) <= _FEW or second
    figure.add_scatter(
        x=found.x,
        y=found.mean,
        customdata=found.deviation,
        name=words(group.name),
        mode="lines+markers" if marked else "lines",
        line=style.line(group),
        marker={"symbol": style.marker(group), "size": 6, "maxdisplayed": 0 if len(found.x) <= _FEW else _FEW},
        hovertemplate=f"%{{fullData.name}}<br>{of} %{{x:.4g}}: %{{y:.4g}}{_deviation(found)}<extra></extra>",
        meta=style.meta(group),
    )
    return True


def _deviation(found: Curve) -> str:
    return "" if found.deviation is None else " ± %{customdata:.2g}"
