"""What the page of several runs shows: the tables and the figures of `cloister report`, of what can be read.

Every run is verified, which takes a moment, and is remembered until one of its files changes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloister.errors import CloisterError
from cloister.runs.metric_text import SHARES, figure
from cloister.studies.html.discover import rankings, run_folders
from cloister.studies.html.gather import RunData, Study, read_run, study_of
from cloister.studies.html.over_seeds import spread
from cloister.studies.html.tables import Table
from cloister.studio.listing import Stamp, stamps
from cloister.studio.places import DAMAGED, Places

_REMEMBERED = 2000
"""Runs; when there are more, all are read again."""


@dataclass(frozen=True)
class StudyView:
    """Runs that were read, and reasons why others were not."""

    study: Study
    broken: tuple[tuple[str, str], ...]


@dataclass
class Studies:
    """Reads the runs of studies."""

    places: Places
    _known: dict[Path, tuple[Stamp, RunData]] = field(default_factory=dict, init=False)

    def of(self, paths: Sequence[Path]) -> StudyView:
        """Of all runs in these folders; refused where none can be read."""
        found, broken = [], []
        for one in run_folders(paths):
            try:
                outside = self.places.outside(one.path)
                if outside is not None:
                    raise CloisterError(outside)
                found.append((one, self._run(one.path)))
            except (CloisterError, OSError) as error:
                broken.append((self.places.shown(one.path), str(error)))
            except DAMAGED as error:
                broken.append((self.places.shown(one.path), damaged(error)))
        if not found:
            name, reason = broken[0]
            raise CloisterError(f"{reason} ({name}, and no other run of these can be read.)")
        return StudyView(study_of(found, rankings(paths)), tuple(broken))

    def _run(self, path: Path) -> RunData:
        stamp = stamps(path)
        known = self._known.get(path)
        if known is None or known[0] != stamp:
            if len(self._known) > _REMEMBERED:
                self._known.clear()
            known = stamp, read_run(path)
            self._known[path] = known
        return known[1]


def damaged(error: Exception) -> str:
    """One sentence for what nobody foresaw."""
    return f"Expected the files of a run, found {type(error).__name__} ({error}): restore them from a backup."


def page_values(view: StudyView) -> dict[str, Any]:
    """What the template shows: tables, figures and their legends."""
    from cloister.studies.html import tables
    from cloister.studies.html.figures.style import DARK, LIGHT, Style
    from cloister.studies.html.render import figures_of, script_json
    from cloister.studies.html.sections import clipping, communication, norms, scores

    style = Style(view.study)
    found = [one for make in (scores, norms, clipping, communication) if (one := make(style)) is not None]
    return {
        "study": view.study,
        "summary": tables.summary(view.study),
        "intervals": _intervals(view.study),
        "settings": tables.settings(view.study),
        "sections": found,
        "legend": style.legend,
        "figures": script_json(figures_of(found)),
        "palettes": script_json({"light": LIGHT, "dark": DARK}),
        "marked": any(figure.mark for section in found for figure in section.figures),
        "broken": view.broken,
    }


def _intervals(study: Study) -> Table | None:
    """The interval of every mean, where there are several seeds."""
    rows, places = [], {label: place for place, label in enumerate(study.labels)}
    several = [group for group in study.groups if len(group.scores) > 1]
    for group in several:
        found, metric = spread(group.scores), group.first.metric
        half = found.half_width or 0.0
        least, most = (0.0, 1.0) if metric in SHARES else (-math.inf, math.inf)
        ends = (found.mean, max(least, found.mean - half), min(most, found.mean + half))
        rows.append((group.name, metric, *(figure(metric, value, 4) for value in ends), str(found.count)))
    head = ("", "metric", "mean", "from", "to", "seeds")
    notes = ("95 % intervals of the mean over seeds (Student's t).",)
    colors = tuple(places[group.label] for group in several)
    return Table(head, tuple(rows), colors, frozenset({2, 3, 4, 5}), notes) if rows else None


def reproduced(path: Path) -> tuple[Table, list[str]] | None:
    """What `cloister reproduce` wrote into a folder: the paper's numbers beside ours, and what is said of them."""
    file = path / "reproduce.md"
    if not file.is_file():
        return None
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    cells = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines if line.startswith("|")]
    rows = [row for row in cells if not all(set(cell) <= set("-: ") for cell in row)]
    notes = [line.removeprefix("- ") for line in lines if line and not line.startswith(("|", "#"))]
    if not rows or len({len(row) for row in rows}) != 1:
        return None
    return Table(rows[0], tuple(rows[1:])), notes


def study_command(path: Path) -> str:
    """How a study was made, where its file says so."""
    file = path / "results.json"
    try:
        found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (ValueError, RecursionError, OSError):
        return ""
    return str(found.get("command") or "") if isinstance(found, dict) else ""
