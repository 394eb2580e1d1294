"""Attacks on runs: clients' images beside what was made of their messages, and how well members are told apart."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from cloister.studies.attacks.found import Attacks, Inverted
from cloister.studies.html.figures.style import SHADES, Drawn, Panel, Style, new_figure, words
from cloister.studies.html.gather import Group

_GAP, _HIGH = 2, 180
Matrix = list[list[float | None]]


def inversions(style: Style, groups: Sequence[Group]) -> Drawn | None:
    """A panel for each run: images above, what was found below."""
    panels = []
    for group in groups:
        found = _attacks(group)
        if found is not None and found.inversion:
            mean = sum(one.correlation for one in found.inversion) / len(found.inversion)
            panels.append(Panel(_images(found.inversion), f"{group.name}: {mean:.2f}", height=_HIGH))
    if not panels:
        return None
    caption = (
        "Above, the one image that a client has; below, what an attacker makes of its update in the first round, who "
        "knows the model and everybody else's update (Geiping et al. 2020). The number is the mean correlation "
        "of both: 1 is the image itself, 0 is nothing of it."
    )
    return Drawn("inversion", "Gradient inversion of one client's update", caption, tuple(panels), True, legend=False)


def memberships(style: Style, groups: Sequence[Group]) -> Drawn | None:
    """One curve for each run, and what its guarantee allows at most."""
    figure = new_figure("false positive rate", "true positive rate")
    least, others, areas = 1.0, set(), []
    for group in groups:
        found = _attacks(group)
        if found is None or not found.membership:
            continue
        others.add(found.others)
        areas.append(f"{group.name} {found.membership[-1].area:.3f}")
        for curve, width in zip(reversed(found.membership), (2.5, 1), strict=False):
            least = min(least, 1 / curve.others)
            both = zip(curve.false_positives, curve.true_positives, strict=True)
            pairs = [(x, y) for x, y in both if x > 0 and y > 0]
            figure.add_scatter(
                x=[x for x, _ in pairs],
                y=[y for _, y in pairs],
                mode="lines",
                name=words(f"{group.name}, {curve.attack}"),
                line=style.line(group, width=width),
                hovertemplate=f"{curve.attack}, area {curve.area:.3f}<br>%{{y:.3g}} at %{{x:.3g}}<extra></extra>",
                meta=style.meta(group),
            )
        if found.epsilon is not None:
            x = [10 ** (-4 * place / 60) for place in range(61)]
            figure.add_scatter(
                x=x,
                y=[found.allowed(one) for one in x],
                mode="lines",
                name=words(f"{group.name}, allowed at most"),
                line={"color": style.color(group), "dash": "1px,5px", "width": 1.5},
                hovertemplate=f"at most, epsilon {found.epsilon:.3g}<br>%{{y:.3g}} at %{{x:.3g}}<extra></extra>",
                meta=style.meta(group),
            )
    if not figure.data:
        return None
    figure.add_scatter(
        x=[least, 1], y=[least, 1], name="chance", mode="lines", line={"color": "#8a8a8a", "width": 1}, hoverinfo="skip"
    )
    span = [math.log10(least), 0.05]
    figure.update_xaxes(type="log", range=span)
    figure.update_yaxes(type="log", range=span)
    caption = (
        "Thick: a sample is guessed to be a training sample if it is likelier under models that saw it than under "
        "others (LiRA, Carlini et al. 2022). Thin, or thick where no shadow models were trained: if its loss is small "
        "(Yeom et al. 2018). Dots are the most that the certified epsilon and delta allow any attacker who tells one "
        "sample of a client from another; the gray line is chance. Non-members are "
        f"{' or '.join(sorted(others))}. Areas under the thick curves: {', '.join(areas)}."
    )
    return Drawn("membership", "Membership inference", caption, (Panel(figure, height=420),), True)


def _attacks(group: Group) -> Attacks | None:
    return next((run.attacks for run in group.runs if run.attacks is not None), None)


def _images(found: Sequence[Inverted]) -> go.Figure:
    """All of them as one picture, with gaps between them."""
    rows: Matrix = []
    for name in ("image", "found"):
        pictures: list[Matrix] = [[list(row) for row in getattr(one, name)] for one in found]
        for line in range(len(pictures[0])):
            row: list[float | None] = []
            for place, picture in enumerate(pictures):
                row += [*([None] * _GAP if place else []), *picture[line]]
            rows.append(row)
        if name == "image":
            rows += [[None] * len(rows[0])] * _GAP
    figure = new_figure("", "", margin={"l": 0, "r": 0, "t": 4, "b": 4})  # no axes, which would need room
    figure.add_heatmap(z=rows, colorscale=SHADES, showscale=False, hovertemplate="%{z}<extra></extra>")
    figure.update_xaxes(visible=False, constrain="domain", constraintoward="left")
    figure.update_yaxes(visible=False, autorange="reversed", scaleanchor="x", constrain="domain", constraintoward="top")
    return figure
