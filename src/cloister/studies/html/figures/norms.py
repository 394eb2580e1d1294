"""How norms are distributed in a round, with the threshold to which they are clipped; a panel for each label."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from cloister.studies.html.figures.style import Drawn, Panel, Style, new_figure, words
from cloister.studies.html.gather import Group, RunData, level_name
from cloister.studies.html.over_seeds import short, thinned

_FRAMES = 25
"""Rounds of a slider."""
_FILL = "38"

Histogram = dict[float, float]
"""By the lower edge of a bin, the share of all norms in it, and 0 at the upper edge of the last. Edges go up by a
constant factor, and are the same in all rounds and runs."""


def distributions(style: Style, groups: Sequence[Group], of: str, title: str, caption: str) -> Drawn | None:
    """Histograms of recorded norms, round by round, pooled over seeds."""
    there = [group for group in groups if _rounds(group, of)]
    if not there:
        return None
    rounds = thinned(sorted(set().union(*(_rounds(group, of) for group in there))), _FRAMES)
    found = {group: [_histogram(group, of, number) for number in rounds] for group in there}
    limits = {group: [_limit(group, of, number) for number in rounds] for group in there}
    frame = _frame(found, limits)
    start = max((n for n in range(len(rounds)) if all(own[n] for own in found.values())), default=len(rounds) - 1)
    labels = dict.fromkeys(group.label for group in there)
    panels = []
    for label in labels:
        own = [group for group in there if group.label == label]
        panels.append(_panel(style, own, found, limits, frame, label, start))
    names = tuple(f"round {number}" for number in rounds)
    return Drawn(f"distribution-of-{of}", title, caption, tuple(panels), mark=True, frames=names, start=start)


def _rounds(group: Group, of: str) -> set[int]:
    """Those in which every run that recorded has a histogram."""
    found = [set(run.by_round(f"{of}/histogram")) for run in group.runs if run.by_round(f"{of}/histogram")]
    return set.intersection(*found) if found else set()


def _histogram(group: Group, of: str, number: int) -> Histogram:
    """Of all seeds together; empty where there is none in this round."""
    counts: dict[float, float] = {}
    total = 0
    for run in group.runs:
        known: Any = run.by_round(f"{of}/histogram").get(number)
        if known is None:
            continue
        total += sum(known["counts"]) + known["zeros"]
        for edge, count in zip(known["edges"], [*known["counts"], 0], strict=False):
            counts[edge] = counts.get(edge, 0) + count
    return {edge: count / total for edge, count in sorted(counts.items())} if total else {}


def _limit(group: Group, of: str, number: int) -> float | None:
    """The clipping threshold of a round, the mean over seeds where it follows the training."""
    found = [value for run in group.runs if (value := limit_of(run, of).get(number))]
    return sum(found) / len(found) if found else None


def limit_of(run: RunData, of: str) -> dict[int, float]:
    """By round, the norm to which updates, or gradients, were clipped in a run."""
    thresholds = run.by_round("thresholds/clip_norm")
    if of == "norms":
        own = run.by_round("norms/clip_norm")
        return {**(thresholds if run.description.method.unit != "sample" else {}), **own}
    return thresholds if run.description.method.unit == "sample" else {}


def _frame(found: Mapping[Group, list[Histogram]], limits: Mapping[Group, list[float | None]]) -> dict[str, Any]:
    """The same axes for all panels and rounds, so that they can be compared."""
    edges = [edge for own in found.values() for one in own for edge in one]
    edges += [limit for own in limits.values() for limit in own if limit is not None]
    most = max((share for own in found.values() for one in own for share in one.values()), default=1.0)
    low, high = min(edges, default=0.1), max(edges, default=1.0)
    return {"x": [math.log10(low) - 0.05, math.log10(high) + 0.05], "most": most * 1.08}


def _panel(
    style: Style,
    own: Sequence[Group],
    found: Mapping[Group, list[Histogram]],
    limits: Mapping[Group, list[float | None]],
    frame: Mapping[str, Any],
    label: str,
    start: int,
) -> Panel:
    figure = new_figure("norm", "share")
    figure.update_xaxes(type="log", range=frame["x"], **_octaves(frame["x"]))
    figure.update_yaxes(range=[0, frame["most"]], tickformat=".0%")
    changes: list[dict[int, dict[str, Any]]] = [{} for _ in next(iter(found.values()))]
    for group in own:
        traces = [_traces(one, limit, frame["most"]) for one, limit in zip(found[group], limits[group], strict=True)]
        number = len(figure.data)
        name = words(level_name(group.epsilon))
        figure.add_scatter(
            **traces[start][0],
            name=name,
            mode="lines",
            line=style.line(group, shape="hv"),
            fill="tozeroy",
            fillcolor=style.color(group) + _FILL,
            hovertemplate=f"{name}<br>from %{{x:.3g}}: %{{y:.1%}}<extra></extra>",
            meta=style.meta(group),
        )
        figure.add_scatter(
            **traces[start][1],
            name=f"{name}, clipped to",
            mode="lines",
            line=style.line(group, width=3),
            hovertemplate=f"{name}<br>clipped to %{{x:.3g}}<extra></extra>",
            meta={**style.meta(group), "clip": True},
        )
        for change, (histogram, clip) in zip(changes, traces, strict=True):
            change |= {number: histogram, number + 1: clip}
    return Panel(figure, label, tuple(changes), height=250)


def _octaves(limits: Sequence[float]) -> dict[str, Any]:
    """Ticks at powers of two, not more than a narrow screen has room for."""
    powers = list(range(math.ceil(limits[0] / math.log10(2)), math.floor(limits[1] / math.log10(2)) + 1))
    every = math.ceil(len(powers) / 7)
    ticks = [2.0**power for power in powers if power % every == 0]
    return {"tickvals": ticks, "ticktext": [f"{tick:.3g}" for tick in ticks]} if len(ticks) > 1 else {}


def _traces(histogram: Histogram, limit: float | None, most: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """The steps of a histogram, up from zero, and the line at the threshold."""
    steps: dict[str, Any] = {"x": [], "y": []}
    if len(histogram) > 1:
        x, y = zip(*_with_gaps(histogram).items(), strict=True)
        steps = {"x": [short(value) for value in (x[0], *x)], "y": [0, *(short(value) for value in y)]}
    clip = {"x": [], "y": []} if limit is None else {"x": [short(limit)] * 2, "y": [0, short(most)]}
    return steps, clip


def _with_gaps(histogram: Histogram) -> Histogram:
    """With bins of none between the others."""
    edges = list(histogram)
    step = min(math.log2(high / low) for low, high in pairwise(edges))
    places = {round(math.log2(edge) / step): share for edge, share in histogram.items()}
    return {2 ** (place * step): places.get(place, 0.0) for place in range(min(places), max(places) + 1)}
