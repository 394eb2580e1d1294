"""Scores at equal epsilon: a point for each group, with the interval of its mean over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from cloister.runs.metric_text import SHARES
from cloister.runs.report.comparison import neighbors_in_short
from cloister.runs.scores import score_at_epsilon
from cloister.studies.html.figures.style import Panel, Style, new_figure, words
from cloister.studies.html.gather import Group, level_name
from cloister.studies.html.over_seeds import Spread, short, spread

_ROW = 38
"""Pixels of a row: its name, and below it its point, so that long names need no room beside the plot."""


@dataclass(frozen=True)
class Block:
    """Groups that are compared with one another, because they spent the same."""

    title: str
    members: tuple[tuple[Group, Spread], ...]


def blocks(style: Style, groups: Sequence[Group]) -> list[Block]:
    """By the epsilon that groups were aimed at. An epsilon about other neighbors, or at another delta, is another one;
    where no two groups have one in common, they are compared at the smallest that any of them spent."""
    scored = [group for group in groups if group.scores]
    meanings = meanings_of(scored)
    found: list[Block] = []
    for meaning in meanings:
        own = [group for group in scored if group.spent is not None and _meaning(group) == meaning]
        words = _told_apart(meaning, meanings) if len(meanings) > 1 else ""
        by_level = {level: [group for group in own if group.epsilon == level] for level in style.study.levels}
        if len(own) > 1 and all(len(members) < 2 for members in by_level.values()):
            found += _within_the_smallest(own, words)
        found += [_block(level_name(level) + words, members) for level, members in by_level.items() if members]
    open_ended = [group for group in scored if group.spent is None]
    return [*found, *([_block(level_name(None), open_ended)] if open_ended else [])]


def meanings_of(groups: Sequence[Group]) -> list[tuple[str, str, float]]:
    """What the epsilons of these groups are about, each once: with several, equal numbers promise other things."""
    return list(dict.fromkeys(_meaning(group) for group in groups if group.spent is not None))


def _told_apart(meaning: tuple[str, str, float], among: Sequence[tuple[str, str, float]]) -> str:
    unit, adjacency, delta = meaning
    namesakes = {other[1] for other in among if other[0] == unit}
    neighbors = f" ({neighbors_in_short(adjacency)})" if len(namesakes) > 1 else ""
    return f", for one {unit}{neighbors}, at delta {delta:g}"


def _meaning(group: Group) -> tuple[str, str, float]:
    """What an epsilon is about: the unit, the neighbors, and delta."""
    certificate = group.first.certificate
    return certificate.unit, certificate.adjacency, certificate.prices[0].delta


def _block(title: str, members: Sequence[Group]) -> Block:
    return Block(title, tuple((group, spread(group.scores)) for group in members))


def _within_the_smallest(groups: Sequence[Group], words: str) -> list[Block]:
    """The last score of each run before it had spent more than the one that spent least."""
    least = min(group.spent for group in groups if group.spent is not None)
    members = []
    for group in groups:
        runs = [run for run in group.runs if run.adds_up]
        found = [score_at_epsilon(run.lines, least * (1 + 1e-9), run.metric) for run in runs]
        values = [one.value for one in found if one is not None]
        if values:
            members.append((group, spread(values)))
    title = f"within {level_name(least)}{words}, the last score before more was spent"
    return [Block(title, tuple(members))] if len(members) > 1 else []


def at_equal_epsilon(style: Style, found: Sequence[Block], metric: str) -> Panel:
    """A block for each epsilon, and in it a row for each group."""
    figure = new_figure(metric, "")
    place = 0.0
    for block in found:
        _heading(figure, block.title, place)
        place -= 0.9
        for group, of_seeds in block.members:
            _row(figure, style, group, of_seeds, place)
            place -= 1.0
        place -= 0.2
    if metric.removeprefix("test ") in SHARES:
        figure.update_xaxes(
            autorangeoptions={"clipmin": 0, "clipmax": 1}
        )  # a single point would stand between -1 and 2
    figure.update_yaxes(visible=False, range=[place + 0.5, 0.4], fixedrange=True)
    return Panel(figure, height=int(70 - _ROW * (place - 0.4)))


def _heading(figure: go.Figure, title: str, y: float) -> None:
    figure.add_annotation(text=f"<b>{words(title)}</b>", **_AT_THE_LEFT, y=y)


def _row(figure: go.Figure, style: Style, group: Group, of_seeds: Spread, y: float) -> None:
    width, mean = of_seeds.half_width, of_seeds.mean
    seeds = f"{of_seeds.count} seed{'' if of_seeds.count == 1 else 's'}"
    below = above = width
    if width is not None and group.first.metric in SHARES:  # no share lies below 0 or above 1
        below, above = min(width, mean), min(width, 1 - mean)
    interval = "" if below is None or above is None else f", {mean - below:.4f} to {mean + above:.4f}"
    ended = "" if all(run.finished for run in group.runs) else " (not ended)"
    figure.add_annotation(text=words(group.label) + ended, **_AT_THE_LEFT, y=y + 0.36)
    figure.add_scatter(
        x=[short(mean)],
        y=[y - 0.06],
        error_x=None
        if below is None or above is None
        else {"array": [short(above)], "arrayminus": [short(below)], "thickness": 2, "width": 5},
        mode="markers",
        name=words(group.name),
        marker={"color": style.color(group), "symbol": style.marker(group), "size": 10},
        hovertemplate=f"%{{fullData.name}}<br>%{{x:.4f}}{interval}, {seeds}<extra></extra>",
        meta=style.meta(group),
    )


_AT_THE_LEFT = {"x": 0, "xref": "paper", "xanchor": "left", "yanchor": "middle", "showarrow": False, "align": "left"}
