"""What all figures share: a color for each label, a dash for each epsilon, and plain axes."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import plotly.graph_objects as go

from cloister.studies.html.gather import Group, Study, level_name

# Okabe & Ito's palette, told apart by color-blind readers too; darkened where it would be too faint on white, and with
# an indigo in place of its second blue. The dark page has the same hues, lighter.
LIGHT = ("#0072b2", "#d55e00", "#00805d", "#b3568a", "#9a6700", "#3d2f94", "#5b5b5b")
DARK = ("#5ab1ea", "#ff8a4c", "#2fc29a", "#e79ac4", "#e8b339", "#b0a3f5", "#b4b4b4")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
NO_PRIVACY = "longdashdot"
MARKERS = ("circle", "square", "diamond", "triangle-up", "cross")
SHADES = ((0.0, "#0072b200"), (1.0, "#0072b2"))
"""From nothing to much, on either page."""
BAND, FAINT_BAND = "2e", "1a"
"""The opacity of a band, as hexadecimal digits behind its color; fainter where many lie over one another."""
_MANY_GROUPS = 4


@dataclass(frozen=True)
class Drawn:
    """A figure with its words. `mark` says whether it shows what no certificate covers."""

    id: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    mark: bool = False
    legend: bool = True
    frames: tuple[str, ...] = ()
    """What a slider goes through, in words; every panel then has as many frames."""
    start: int = 0
    """The frame that is drawn at first."""
    choices: tuple[str, ...] = ()
    """What a menu chooses from; every panel then has as many frames."""


@dataclass(frozen=True)
class Panel:
    """One plot, the whole figure or one of several that stand side by side."""

    figure: go.Figure
    title: str = ""
    frames: tuple[Mapping[int, Mapping[str, Any]], ...] = ()
    """For each frame, by the number of a trace, what it has instead."""
    height: int = 380

    @property
    def json(self) -> dict[str, Any]:
        """Plain values, as plotly.js takes them."""
        found: dict[str, Any] = json.loads(self.figure.to_json())
        found["layout"].pop("template", None)
        return {**found, "frames": [{str(n): dict(new) for n, new in frame.items()} for frame in self.frames]}


@dataclass(frozen=True)
class Style:
    """Which color, dash and marker a group has, on the whole page."""

    study: Study
    _labels: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_labels", {label: place for place, label in enumerate(self.study.labels)})

    def color(self, group: Group) -> str:
        return LIGHT[self._labels[group.label] % len(LIGHT)]

    def marker(self, group: Group) -> str:
        """Colors come again after a few labels, and then with another marker."""
        return MARKERS[self._labels[group.label] // len(LIGHT) % len(MARKERS)]

    def dash(self, group: Group) -> str:
        return dash_of(self.study.levels.index(group.epsilon), group.epsilon)

    def line(self, group: Group, **more: Any) -> dict[str, Any]:
        return {"color": self.color(group), "dash": self.dash(group), "width": 2, **more}

    def meta(self, group: Group) -> dict[str, int]:
        """By which the page's legend finds the traces of a label or of an epsilon."""
        return {"label": self._labels[group.label], "level": self.study.levels.index(group.epsilon)}

    def legend(self, drawn: Drawn) -> dict[str, list[dict[str, Any]]]:
        """The labels and the epsilons that a figure shows, for a legend outside of the plot."""
        found = [trace.meta for panel in drawn.panels for trace in panel.figure.data if trace.meta]
        labels, levels = ({meta.get(kind) for meta in found} for kind in ("label", "level"))
        return {
            "labels": [_of_label(place, name) for place, name in enumerate(self.study.labels) if place in labels],
            "levels": [_of_level(place, one) for place, one in enumerate(self.study.levels) if place in levels],
        }


def _of_label(place: int, name: str) -> dict[str, Any]:
    marker = MARKERS[place // len(LIGHT) % len(MARKERS)]
    return {"place": place, "name": name, "color": place % len(LIGHT), "marker": marker}


def _of_level(place: int, epsilon: float | None) -> dict[str, Any]:
    return {"place": place, "name": level_name(epsilon), "dash": SWATCHES[dash_of(place, epsilon)]}


SWATCHES = {"solid": "", "dash": "7 4", "dot": "2 3", "dashdot": "7 3 2 3", "longdash": "12 5", NO_PRIVACY: "10 3 2 3"}
"""The dashes of a legend's lines, as SVG has them."""


def dash_of(place: int, epsilon: float | None) -> str:
    """Of the epsilon at this place among all."""
    return NO_PRIVACY if epsilon is None else DASHES[place % len(DASHES)]


def words(label: str) -> str:
    """A label inside a plot, where plotly would take tags for its own.

    >>> words("<b>")
    '&lt;b&gt;'
    """
    return html.escape(label, quote=False)


def new_figure(x: str, y: str, **layout: Any) -> go.Figure:
    """An empty plot with named axes; the page's style sets fonts and colors."""
    figure = go.Figure()
    figure.update_layout(template=go.layout.Template(), showlegend=False, hovermode="closest", **layout)
    figure.update_xaxes(title_text=words(x), automargin=True)
    figure.update_yaxes(title_text=words(y), automargin=True)
    return figure


def add_band(figure: go.Figure, style: Style, group: Group, x: Sequence[float], low: Any, high: Any) -> None:
    """An area between two curves, which says nothing when it is pointed at."""
    figure.add_scatter(
        x=[*x, *reversed(x)],
        y=[*high, *reversed(list(low))],
        mode="lines",
        line={"width": 0},
        fill="toself",
        fillcolor=style.color(group) + (BAND if len(style.study.groups) <= _MANY_GROUPS else FAINT_BAND),
        hoverinfo="skip",
        meta={**style.meta(group), "band": True},
    )
