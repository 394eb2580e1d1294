"""The picture of a comparison: dots with bars over seeds, or lines with bands where one number was swept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloister.runs.report.style import line_colors, new_figure
from cloister.studies.rows import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDE = 20.0
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""


def comparison_plot(rows: Sequence[Row], path: Path) -> None:
    """The watched metric of every row; bars and bands are one standard deviation over seeds."""
    rows = [row for row in rows if row.about is not None]
    key = _swept_number(rows)
    picture, (axes,) = new_figure(1)
    if key is None:
        _dots(axes, rows)
        series = len({row.series for row in rows if row.private})
        picture.set_size_inches(7.0, 1.2 + 0.28 * max(series, 4))
    else:
        _lines(axes, rows, key)
        picture.set_size_inches(7.0, 3.6)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    swept = {name for row in rows for name in row.swept}
    settings = list(dict.fromkeys(name for row in rows for name in row.runs[0].settings if name not in swept))
    if settings:
        picture.supxlabel(f"not the same for all: {', '.join(settings)}", fontsize=7, wrap=True)
    picture.savefig(path)


def _dots(axes: Axes, rows: Sequence[Row]) -> None:
    """A line of its own for every series, a color for every epsilon; what is not private is a vertical line."""
    private = [row for row in rows if row.private]
    series = list(dict.fromkeys(row.series for row in private))
    targets = list(dict.fromkeys(_epsilon(row) for row in private))
    for color, target in zip(line_colors(len(targets)), targets, strict=True):
        here = [row for row in private if _epsilon(row) == target]
        places = [series.index(row.series) for row in here]
        axes.errorbar([_mean(row) for row in here], places, xerr=[_sd(row) for row in here], **_bars(color, target))
    for row in rows:
        if not row.private:
            axes.axvline(_mean(row), color="0.5", linestyle="--", linewidth=1, label=f"{row.series}, no privacy")
    axes.set_yticks(range(len(series)), series)
    axes.set_ylim(max(len(series), 1) - 0.5, -0.5)
    axes.grid(axis="x", color="0.92")
    axes.set(xlabel=f"test {_metric(rows)}{_over_seeds(rows)}")


def _lines(axes: Axes, rows: Sequence[Row], key: str) -> None:
    """The metric over the key that was swept, a line for every method and epsilon."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        rest = [f"{name} {value}" for name, value in row.swept.items() if name not in (key, "epsilon")]
        groups.setdefault(", ".join([row.label, *rest, _epsilon(row)]), []).append(row)
    for color, (name, own) in zip(line_colors(len(groups)), groups.items(), strict=True):
        own = sorted(own, key=lambda row: row.swept[key])
        x, y, sd = ([function(row) for row in own] for function in (lambda row: row.swept[key], _mean, _sd))
        axes.plot(x, y, "o-", color=color, label=name, markersize=4)
        low, high = ([a + sign * b for a, b in zip(y, sd, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)
    values = [row.swept[key] for row in rows]
    if min(values) > 0 and max(values) / min(values) >= _WIDE:
        axes.set_xscale("log")
    axes.set(xlabel=key, ylabel=f"test {_metric(rows)}\n{_over_seeds(rows).strip()}".strip())


def _swept_number(rows: Sequence[Row]) -> str | None:
    """The one key beside epsilon that every row has with a number, of which there are three or more."""
    keys = dict.fromkeys(key for row in rows for key in row.swept if key != "epsilon")
    numbers = [
        key
        for key in keys
        if all(isinstance(row.swept.get(key), (int, float)) and row.swept[key] is not True for row in rows)
        and len({row.swept[key] for row in rows}) > 2
    ]
    return numbers[0] if len(numbers) == 1 else None


def _bars(color: str, label: str) -> dict[str, Any]:
    return {"fmt": "o", "color": color, "label": label, "elinewidth": 1.2, "capsize": 2}


def _epsilon(row: Row) -> str:
    if row.target is not None:
        return f"epsilon {row.target:g}"
    return "epsilon of its own" if row.private else "no privacy"


def _mean(row: Row) -> float:
    assert row.about is not None
    return row.about.mean


def _sd(row: Row) -> float:
    return 0.0 if row.about is None or row.about.sd is None else row.about.sd


def _metric(rows: Sequence[Row]) -> str:
    names = dict.fromkeys(row.monitor for row in rows)
    return next(iter(names)) if len(names) == 1 else "score"


def _over_seeds(rows: Sequence[Row]) -> str:
    several = any(row.about is not None and row.about.n > 1 for row in rows)
    return " (one standard deviation over seeds)" if several else ""
