"""What runs tell, as plain data: groups of runs that differ only in their seed, and what they have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloister.errors import CloisterError
from cloister.privacy.certificate import Certificate
from cloister.privacy.certificate_text import round_up
from cloister.privacy.description import RunDescription, json_hash
from cloister.runs import measurement_file
from cloister.runs.communication import Communication, communication_of
from cloister.runs.config_file import load
from cloister.runs.folder import RunFolder
from cloister.runs.recorded import Recorded
from cloister.runs.report.runs import kept_lines
from cloister.runs.scores import score_at_epsilon, watched_in
from cloister.studies.attacks.found import Attacks, read_attacks
from cloister.studies.html.discover import Found, rankings, run_folders
from cloister.studies.html.landscape_file import Landscape, read_landscape
from cloister.studies.rows import uses_up

ByRound = dict[int, float]
"""One number over the rounds of a run."""

WITHOUT_EFFECT = ("seed", "record", "log", "engine", "device", "memory", "checkpoint_every")
"""Keys in which runs of one group may differ: the seed, and what changes nothing that is learned."""
_NOT_IN_LABELS = (*WITHOUT_EFFECT, "method", "epsilon", "noise_multiplier")


@dataclass(frozen=True, eq=False)
class RunData:
    """One run, as its folder tells, with all files found to agree."""

    path: Path
    keys: Mapping[str, Any]
    """The keys it was made from; empty where it was started from Python."""
    description: RunDescription
    certificate: Certificate
    lines: Sequence[Mapping[str, Any]]
    metric: str
    score: float | None
    """Of the model that is kept."""
    recorded: Recorded | None
    communication: Communication | None
    landscape: Landscape | None
    attacks: Attacks | None
    finished: bool
    adds_up: bool
    """Whether what a line says of epsilon holds for a run that ends there."""

    def by_round(self, name: str) -> ByRound:
        """A metric over the rounds in which there is one; what was recorded has a slash in its name."""
        if "/" in name:
            return {} if self.recorded is None else self.recorded.by_round(name)
        found = {line["round"]: line.get(name) for line in self.lines}
        return {number: value for number, value in found.items() if isinstance(value, (int, float))}

    @property
    def epsilons(self) -> ByRound:
        """What had been spent after each round; empty where that does not add up, or nothing is promised."""
        spent = {line["round"]: float(line["epsilon"]) for line in self.lines} if self.adds_up else {}
        return {number: value for number, value in spent.items() if math.isfinite(value)}


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that differ only in their seed."""

    label: str
    """The method, and what else tells it from others: it has one color wherever it is drawn."""
    epsilon: float | None
    """At which it was aimed, or what it cost; None without a promise."""
    runs: tuple[RunData, ...]
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further columns of the table of the study, such as what a paper reports."""

    @property
    def name(self) -> str:
        """Its label and its epsilon."""
        return f"{self.label}, {level_name(self.epsilon)}"

    @property
    def spent(self) -> float | None:
        """The largest epsilon that any of its runs is certified for; None where one of them has no bound."""
        found = [run.certificate.epsilon for run in self.runs]
        return max(found) if all(map(math.isfinite, found)) else None

    @property
    def first(self) -> RunData:
        return self.runs[0]

    @property
    def scores(self) -> list[float]:
        """Of every run that has one."""
        return [run.score for run in self.runs if run.score is not None]

    def by_round(self, name: str) -> list[ByRound]:
        """A number over the rounds, of the runs that have it."""
        return [found for run in self.runs if (found := run.by_round(name))]


@dataclass(frozen=True)
class Study:
    """All runs of a page."""

    groups: tuple[Group, ...]
    rankings: tuple[Mapping[str, Any], ...] = ()
    """For each epsilon, which method is best and how sure that is, where a study says so."""

    @property
    def labels(self) -> list[str]:
        """Every label once; its place decides its color."""
        return list(dict.fromkeys(group.label for group in self.groups))

    @property
    def levels(self) -> list[float | None]:
        """Every epsilon once, the largest first, and none last; its place decides how lines are dashed."""
        finite = {group.epsilon for group in self.groups if group.epsilon is not None}
        return [*sorted(finite, reverse=True), *([None] if any(g.epsilon is None for g in self.groups) else [])]

    @property
    def runs(self) -> list[RunData]:
        return [run for group in self.groups for run in group.runs]

    @property
    def metrics(self) -> list[str]:
        """What was watched, a name for each metric."""
        return list(dict.fromkeys(run.metric for run in self.runs))

    def having(self, test: Callable[[RunData], object]) -> list[Group]:
        """Groups of which some run has what is asked for."""
        return [group for group in self.groups if any(test(run) for run in group.runs)]


def level_name(epsilon: float | None) -> str:
    """An epsilon as legends have it: never less than it is.

    >>> level_name(8.0), level_name(0.88615), level_name(None)
    ('epsilon 8', 'epsilon 0.887', 'no privacy')
    """
    if epsilon is None:
        return "no privacy"
    short = f"{epsilon:.4g}"
    return f"epsilon {short if float(short) >= epsilon else round_up(epsilon)}"


def gather(paths: Sequence[Path]) -> Study:
    """Read the runs in these folders, and put those together that differ only in their seed."""
    return study_of([(one, read_run(one.path)) for one in run_folders(paths)], rankings(paths))


def study_of(found: Sequence[tuple[Found, RunData]], ranked: Sequence[Mapping[str, Any]] = ()) -> Study:
    """Runs that were read, those together that differ only in their seed."""
    members = _together(found)
    labels = _labels(members)
    more = [own[0][0].more for own in members]
    groups = [
        Group(label, _level(own), tuple(own), columns)
        for label, own, columns in zip(labels, _runs(members), more, strict=True)
    ]
    return Study(tuple(_in_order(groups)), tuple(ranked))


def _together(found: Sequence[tuple[Found, RunData]]) -> list[list[tuple[Found, RunData]]]:
    """Runs of one setting, of each seed one: a second run of a seed has the same draws, and says nothing about spread.

    It stands by itself. Where randomness is secure, there is no seed to have in common."""
    by_setting: dict[str, list[tuple[Found, RunData]]] = {}
    times: dict[str, int] = {}
    for one, run in found:
        same = json_hash([one.label, setting_of(run)])
        drawn = f"{same} {run.path if run.description.secure_rng else run.description.seed}"
        times[drawn] = times.get(drawn, 0) + 1
        by_setting.setdefault(f"{same} {times[drawn]}", []).append((one, run))
    return list(by_setting.values())


def _in_order(groups: Sequence[Group]) -> list[Group]:
    """Labels as they come, and of one label the largest epsilon first."""
    labels = list(dict.fromkeys(group.label for group in groups))
    return sorted(groups, key=lambda group: (labels.index(group.label), -(group.epsilon or 0.0)))


def _runs(members: Sequence[Sequence[tuple[Found, RunData]]]) -> list[list[RunData]]:
    return [sorted((run for _, run in own), key=lambda run: run.description.seed) for own in members]


def read_run(path: Path) -> RunData:
    """One run, verified."""
    folder = RunFolder.open(path)
    verified = folder.verified()
    certificate = verified.certificate or folder.certificate()
    lines = verified.metrics.public()
    metric, score = watched_in(kept_lines(folder, lines))
    config = path / "config.toml"
    description = folder.description()
    return RunData(
        path=path,
        keys=load(config) if config.is_file() else {},
        description=description,
        certificate=certificate,
        lines=lines,
        metric=metric,
        score=score,
        recorded=measurement_file.read(path),
        communication=communication_of(description, lines) if lines else None,
        landscape=read_landscape(path),
        attacks=read_attacks(path),
        finished=folder.finished,
        adds_up=_adds_up(lines, certificate, verified.at.stop is not None),
    )


def _adds_up(lines: Sequence[Mapping[str, Any]], certificate: Certificate, stopped: bool) -> bool:
    try:
        score_at_epsilon(lines, 1.0, None, certificate, stopped)
    except CloisterError:
        return False
    return not stopped


def setting_of(run: RunData) -> dict[str, Any]:
    """All that a run has in common with others which differ only in their seed."""
    if run.keys:
        return {key: value for key, value in run.keys.items() if key not in WITHOUT_EFFECT}
    known = run.description.to_json()
    method = {**known["method"], "mechanism": {**known["method"]["mechanism"], "noise_multiplier": None}}
    noise = [] if known["budgets"] else [known["method"]["mechanism"]["noise_multiplier"]]
    budgets = sorted({json_hash(budget) for budget in known["budgets"].values()})
    task = {name: known["task"][name] for name in ("name", "clients", "loss")}
    same = {name: known[name] for name in ("cohort", "rounds", "delta", "trust", "secure_rng", "dtype", "precision")}
    shapes = known["model"]["shapes"]
    return {"method": method, "noise": noise, "budgets": budgets, "task": task, "shapes": shapes, **same}


def _level(runs: Sequence[RunData]) -> float | None:
    """The epsilon that was asked for, where noise follows from it; else what was spent."""
    certificates = [run.certificate for run in runs]
    if not all(one.private and math.isfinite(one.epsilon) for one in certificates):
        return None
    asked = runs[0].keys.get("epsilon")
    budget = certificates[0].budget
    aimed = asked if isinstance(asked, (int, float)) else budget["epsilon"] if budget else None
    spent = max(one.epsilon for one in certificates)
    if runs[0].keys.get("noise_multiplier") is not None and not uses_up(spent, aimed):  # no budget was aimed at
        return spent
    return float(aimed) if aimed is not None and spent <= aimed * (1 + 1e-9) else spent


def _labels(members: Sequence[Sequence[tuple[Found, RunData]]]) -> list[str]:
    """A label for each group: the study's, else the method's name, and the keys by which namesakes differ."""
    firsts = [own[0] for own in members]
    names = [one.label or str(run.keys.get("method", run.description.method.name)) for one, run in firsts]
    labels = []
    for (_, run), name in zip(firsts, names, strict=True):
        namesakes = [other.keys for (_, other), its in zip(firsts, names, strict=True) if its == name]
        keys = dict.fromkeys(key for each in namesakes for key in each if key not in _NOT_IN_LABELS)
        own = [key for key in keys if any(each.get(key) != namesakes[0].get(key) for each in namesakes)]
        labels.append(", ".join([name, *(f"{key} {run.keys[key]}" for key in own if key in run.keys)]))
    return _told_apart(labels, [_level([run for _, run in own]) for own in members], [one.path for one, _ in firsts])


def _told_apart(labels: Sequence[str], levels: Sequence[float | None], paths: Sequence[Path]) -> list[str]:
    """Groups that nothing else tells apart have the names of their folders."""
    pairs = list(zip(labels, levels, strict=True))
    return [
        f"{label} ({path.name})" if pairs.count((label, level)) > 1 else label
        for label, level, path in zip(labels, levels, paths, strict=True)
    ]
