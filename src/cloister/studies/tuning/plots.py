"""Pictures of a search: the best score so far, and the score over every tuned key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cloister.studies.tuning.result import Tuned, shown

_MOST_PANELS = 6


def draw_trials(tuned: Tuned, path: Path) -> None:
    """The candidates, over time and key by key; the best is marked."""
    from matplotlib.ticker import MaxNLocator

    from cloister.runs.report.style import line_colors, new_figure

    done = [one for one in tuned.trials if one.score is not None]
    keys = sorted(tuned.settings, key=lambda key: -tuned.importance.get(key, 0.0))[:_MOST_PANELS]
    figure, axes = new_figure(1 + len(keys))
    blue, red = line_colors(2)
    scores: list[Any] = [one.score for one in done]
    better = max if tuned.larger_is_better else min
    best = next(one for one in done if one.score == tuned.score)
    axes[0].plot([one.number + 1 for one in done], scores, ".", color=blue, alpha=0.6, label="candidate")
    so_far = [better(scores[: place + 1]) for place in range(len(scores))]
    axes[0].step([one.number + 1 for one in done], so_far, where="post", color=red, label="best so far")
    axes[0].set(xlabel="trial", ylabel=f"{tuned.metric}, held out")
    axes[0].xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].legend(frameon=False)
    for axis, key in zip(axes[1:], keys, strict=True):
        values = [one.settings[key] for one in done]
        numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
        places = values if numbers else [str(value) for value in values]
        axis.plot(places, scores, ".", color=blue, alpha=0.6)
        mark = best.settings[key] if numbers else str(best.settings[key])
        axis.plot([mark], [tuned.score], "o", color=red, fillstyle="none", markersize=9)
        if numbers and min(values) > 0 and max(values) >= 10 * min(values):
            axis.set_xscale("log")
            axis.xaxis.set_minor_formatter(lambda value, place: "")
        share = f", {tuned.importance[key]:.0%} of the variation" if key in tuned.importance else ""
        axis.set(xlabel=f"{key} (best {shown(best.settings[key])}{share})")
    figure.savefig(path)
