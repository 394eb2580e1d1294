"""The papers' claims, judged by the cells of their own tables that were run: what results/what-holds-up.md says.

A claim of `results/claims.toml` names cells above and cells below. Cells that agree in their other axes are a setting
of the claim. Runs of one seed share the split, the initial model and often the noise, so that settings are no
repetitions of each other: only seeds are. For every seed there is one number, the mean difference over settings, and a
verdict needs two seeds at least.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from cloister.privacy.certificate_text import round_up
from cloister.studies.statistics import summary
from result_text import table

Record = dict[str, Any]
Setting = tuple[str, str]
"""The cell above and the cell below."""

HEAD = ("claim", "does it hold?", "difference", "in the paper", "settings", "seeds", "true epsilon", "note")
ABOVE = "as above"
"""In a claim's `otherwise`: what the claim before it says."""

ALIKE = 1.01
"""Epsilons that differ by less are the same."""

TEXT = """
The papers' claims, each as a comparison of rows of the paper's own table, run here; and where these have one seed for
each method, also of smaller comparisons of our own with several
([mnist-methods-cnn](comparisons/mnist-methods-cnn.md),
[mnist-samples-cnn](comparisons/mnist-samples-cnn.md)). The difference is in points of accuracy: a mean
over settings (such as two epsilons and three networks), with a 95 % interval over seeds; where only some settings
have several seeds, both are theirs alone, which are named. "In the paper" is the same difference of its printed
numbers. "Settings" says in how many of all it was above. A claim holds where the interval lies above zero, and does
not where it lies below. Two seeds make wide intervals, and one seed tells nothing, however many settings it has: runs
of a seed share the split of the data and the initial model, and where one machine and engine computed them also the
noise, so that they err together. Each interval stands by itself: of twenty, one misses by chance. Where epsilons
differ, the column says so, the row above first. What was run is at times less than what the paper ran, or something
else, which the notes below each table say: such a verdict is about that setting.
"""

_TOLD = ("data", "split", "model", "rounds", "local_epochs", "clients")
"""Of keys that were changed, those that a reader of a verdict must know; all of them are on the tables' pages."""


@dataclass(frozen=True)
class Verdict:
    """What is said of a claim."""

    word: str
    difference: str = ""
    settings: str = ""
    seeds: str = ""
    epsilon: str = ""
    otherwise: str = ""
    printed: str = ""
    """The same difference of the paper's own numbers."""


def sections(claims: Path, papers: Mapping[str, Record]) -> list[str]:
    """All claims of a file, a table for each paper, with notes below of what is not as in the paper."""
    by_paper: dict[str, list[tuple[str, Verdict]]] = {}
    before = ""
    for claim in tomllib.loads(claims.read_text())["claim"]:
        if claim.get("otherwise") == ABOVE:
            claim["otherwise"] = before
        before = claim.get("otherwise", "")
        by_paper.setdefault(claim["paper"], []).append((claim["says"], judged(claim, papers.get(claim["file"]))))
    text = []
    for paper, found in by_paper.items():
        notes = {
            note: number
            for number, note in enumerate(dict.fromkeys(one.otherwise for _, one in found if one.otherwise), 1)
        }
        rows = [
            [
                says,
                one.word,
                one.difference,
                one.printed,
                one.settings,
                one.seeds,
                one.epsilon,
                str(notes.get(one.otherwise, "")),
            ]
            for says, one in found
        ]
        told = [f"{number}. {note}" for note, number in notes.items()]
        text += ["", f"## {paper}", "", *table(HEAD, rows), *(["", "Not as in the paper:", "", *told] if told else [])]
    return text


def judged(claim: Record, found: Record | None) -> Verdict:
    """By the seeds that all repeated settings have; settings with one seed count in `settings` alone."""
    gaps: dict[Setting, dict[str, float]] = {}
    cells = {} if found is None else {cell["cell"]: cell for cell in found["cells"] if cell["quantity"] == "accuracy"}
    for above, below in _settings(claim, list(cells.values())):
        own = _differences(above, below)
        if own:
            gaps[above["cell"], below["cell"]] = own
    if not gaps:
        return Verdict("not run", otherwise=claim.get("otherwise", ""))
    up = sum(fmean(own.values()) > 0 for own in gaps.values())
    repeated = {setting: own for setting, own in gaps.items() if len(own) > 1}
    seeds = sorted(set.intersection(*(set(own) for own in repeated.values())), key=int) if repeated else []
    settings = f"{up} of {len(gaps)} up"
    if len(seeds) > 1 and len(repeated) < len(gaps):
        settings += f", {len(repeated)} with these seeds{_alone(cells, gaps, repeated)}"
    told = {"epsilon": _epsilons(cells, gaps), "otherwise": _otherwise(claim, cells, gaps)}
    if len(seeds) < 2:
        mean = fmean(fmean(own.values()) for own in gaps.values())
        every = sorted({seed for own in gaps.values() for seed in own}, key=int)
        told["printed"] = _printed(cells, gaps)
        return Verdict("cannot tell: one seed", f"{mean:+.2f}", settings, ", ".join(every), **told)
    told["printed"] = _printed(cells, repeated)
    by_seed = summary([fmean(own[seed] for own in repeated.values()) for seed in seeds])
    difference = f"{by_seed.mean:+.2f}"
    if by_seed.low is None or by_seed.high is None:
        return Verdict("cannot tell", difference, settings, ", ".join(seeds), **told)
    word = "yes" if by_seed.low > 0 else "no" if by_seed.high < 0 else "cannot tell"
    difference += f" ({by_seed.low:+.2f} to {by_seed.high:+.2f})"
    return Verdict(word, difference, settings, ", ".join(seeds), **told)


def _printed(cells: Mapping[str, Record], settings: Mapping[Setting, object]) -> str:
    """The mean difference of the paper's numbers over the same settings; nothing where some are not printed."""
    gaps = []
    for setting in settings:
        one, other = ((cells[name].get("paper") or {}).get("mean") for name in setting)
        if one is None or other is None:
            return ""
        gaps.append(one - other)
    return f"{fmean(gaps):+.2f}"


def _alone(cells: Mapping[str, Record], gaps: Mapping[Setting, object], repeated: Mapping[Setting, object]) -> str:
    """In what the settings that make the interval differ from others: labels that they alone have."""

    def labels(settings: Mapping[Setting, object]) -> dict[str, dict[str, None]]:
        found: dict[str, dict[str, None]] = {}
        for above, _ in settings:
            for axis, label in cells[above]["axes"].items():
                found.setdefault(axis, {})[str(label)] = None
        return found

    every, own = labels(gaps), labels(repeated)
    fewer = [", ".join(own[axis]) for axis in own if len(own[axis]) < len(every[axis])]
    return f" ({'; '.join(fewer)})" if fewer else ""


def _settings(claim: Record, cells: Sequence[Record]) -> Iterator[tuple[Record, Record]]:
    """Cells whose other axes are the same."""
    named = {key for side in ("above", "below") for key in claim[side]}
    for one in _matching(cells, claim["above"]):
        for other in _matching(cells, claim["below"]):
            here, there = ({k: v for k, v in cell["axes"].items() if k not in named} for cell in (one, other))
            if all(here[axis] == there[axis] for axis in here.keys() & there.keys()):
                yield one, other


def _matching(cells: Sequence[Record], wanted: Mapping[str, str | list[str]]) -> list[Record]:
    """Cells with these labels, or one of them where several are named."""

    def fits(cell: Record) -> bool:
        at = {"method": cell["method"], **{axis: str(value) for axis, value in cell["axes"].items()}}
        return all(at.get(key) in ([one] if isinstance(one, str) else one) for key, one in wanted.items())

    return [cell for cell in cells if fits(cell)]


def _differences(above: Record, below: Record) -> dict[str, float]:
    """By seed."""
    found = {}
    for seed in above["runs"].keys() & below["runs"].keys():
        one, other = (cell["runs"][seed]["scores"][cell["metric"]] for cell in (above, below))
        if one is not None and other is not None:
            found[seed] = one - other
    return found


def _epsilons(cells: Mapping[str, Record], settings: Mapping[Setting, object]) -> str:
    """What the runs cost: one number where both cost the same."""
    found: dict[str, None] = {}
    for setting in settings:
        one, other = (cells[name]["true_epsilon"] for name in setting)
        if one is None or other is None:
            text = "none" if one is other else " against ".join(map(_epsilon, (one, other)))
        elif max(one, other) <= ALIKE * min(one, other):
            text = _epsilon(max(one, other))
        else:
            text = f"{_epsilon(one)} against {_epsilon(other)}"
        found[text] = None
    return ", ".join(found)


def _epsilon(value: float | None) -> str:
    return "infinity" if value is None else round_up(value)


def _otherwise(claim: Record, cells: Mapping[str, Record], settings: Mapping[Setting, object]) -> str:
    """What the claim's entry says, and what was changed in some of the cells: `rounds 300 -> 100`."""
    changed = {key: one for setting in settings for name in setting for key, one in cells[name]["changed"].items()}
    said = [claim["otherwise"]] if "otherwise" in claim else []
    return "; ".join([*said, *(change(key, one) for key, one in changed.items() if key in _TOLD)])


def change(key: str, values: Record) -> str:
    """A key that has another value here, or one where the paper's setting has none."""
    paper, here = values["paper"], values["here"]
    return f"{key} {here}" if paper is None else f"{key} {paper} -> {'none' if here is None else here}"


def read_papers(folder: Path) -> dict[str, Record]:
    """Every table that was run, by its name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
