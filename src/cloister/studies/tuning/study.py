"""Tuning: which settings are best, found in a way whose price is known.

public      on public samples, or on another data set that is public: free
simulated   on held-out training data of a simulation or a benchmark: not charged, and the certificate says so
private     charged: the best of a random number of private trials (`private.py`)
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cloister.data.task import Task
from cloister.errors import CloisterError, expect, expect_package, expect_type
from cloister.privacy.description import plain
from cloister.privacy.selection import TrialCount
from cloister.runs.config_file import load, toml_text
from cloister.runs.files import alone_in, read_json, write_atomically, write_json
from cloister.runs.result import Run
from cloister.studies.tuning.on import On
from cloister.studies.tuning.private import tune_privately
from cloister.studies.tuning.question import Question
from cloister.studies.tuning.result import Trial, Tuned, markdown, ranked
from cloister.studies.tuning.search import search

DISTRIBUTIONS: dict[str, float | None] = {"geometric": 1.0, "logarithmic": 0.0, "poisson": None}


def tune(
    keys: Mapping[str, Any] | str | Path,
    space: Mapping[str, Any],
    *,
    on: On | None = None,
    trials: int = 30,
    folder: str | Path | None = None,
    seeds: int = 1,
    hold_out: float = 0.2,
    public_data: str | None = None,
    distribution: str | float = "geometric",
    final: bool | None = None,
    task: Task | None = None,
    told: Callable[[Trial], None] = lambda trial: None,
) -> Tuned:
    """The best settings for some keys of a run.

    Args:
        keys: those of a run, as `cloister run` takes them; or the path of a TOML file.
        space: for every tuned key a pair (low, high), or a list of values; or text, as "0.03..0.3" or "0.1,0.3,0.5".
        on: "public", "simulated" or "private"; there is no default, for it decides what the result promises.
        trials: candidates to try; on private data how many there are on average.
        folder: where to keep it. A search that was interrupted goes on there. Private tuning needs one.
        seeds: runs of every candidate, whose scores are averaged (not on private data).
        hold_out: share of the training data by which candidates are judged (on private data see validation_fraction).
        public_data: the name of another data set, which is public, to tune on.
        distribution: of the number of private trials: geometric, logarithmic, poisson, or the shape of a truncated
            negative binomial distribution.
        final: train once more with the best settings on all training data, and test that once; by default on
            simulated data.
        task: the data, where they do not come from keys.
        told: hears of every candidate as it is finished (not on private data).
    """
    values = dict(keys) if isinstance(keys, Mapping) else dict(load(Path(keys)))
    expect_type("folder", folder, (str, Path, type(None)), "the path of a folder", "give a text or a pathlib.Path")
    path = None if folder is None else Path(folder)
    more = {"trials": trials, "seeds": seeds, "hold_out": hold_out, "public_data": public_data, "task": task}
    question = Question.of(values, dict(space), on, **more)
    if question.on != "private":
        expect(distribution == "geometric", "distribution beside on = private", distribution, "leave it out")
        return _tune_freely(question, path, question.on == "simulated" if final is None else final, told)
    expect(not final, "no final run after private tuning", final, "the selected trial's model is the result")
    if path is None:
        raise CloisterError("Expected a folder for the ledger of a private tuning, found none: give folder.")
    return tune_privately(question, count_of(trials, distribution), path)


def count_of(trials: float, distribution: str | float) -> TrialCount:
    """How the number of private trials is distributed."""
    if isinstance(distribution, str):
        expect(distribution in DISTRIBUTIONS, f"one of {', '.join(DISTRIBUTIONS)}", distribution, "choose one")
        return TrialCount(float(trials), DISTRIBUTIONS[distribution])
    return TrialCount(float(trials), float(distribution))


def _tune_freely(question: Question, folder: Path | None, final: bool, told: Callable[[Trial], None]) -> Tuned:
    expect_package("optuna", "to tune on public or simulated data", "tune")
    task = question.trial_task()
    if folder is None:
        return _searched(question, task, None, final, told)
    _expect_same(question, task, folder)
    with alone_in(folder):  # two at once would take each other's trials for interrupted ones
        return _searched(question, task, folder, final, told)


def _searched(question: Question, task: Task, folder: Path | None, final: bool, told: Callable[[Trial], None]) -> Tuned:
    metric = question.metric(task)
    found, importance = search(question, task, folder, told)
    best = ranked(found, metric.larger_is_better)[0]
    if best.score is None:
        raise CloisterError(f"Expected a candidate that can be run, found none in {len(found)}: {best.error}")
    values = {**question.values, **best.settings}
    if question.on == "simulated":
        values["tuned"] = list(question.space)
    run = _final(question, values, folder) if final else None
    note = _NOT_CHARGED.format(keys=", ".join(question.space)) if question.on == "simulated" else _FREE
    tuned = Tuned(
        question.on,
        best.settings,
        values,
        metric.name,
        metric.larger_is_better,
        best.score,
        folder,
        note,
        found,
        importance,
        run,
    )
    if folder is not None:
        _write(question, task, tuned, folder)
    return tuned


def _expect_same(question: Question, task: Task, folder: Path) -> None:
    """A folder is new, or that of this very tuning, to go on with."""
    facts, file = question.to_json(task), folder / "tuning.json"
    if file.exists():
        before, now = _as_json(read_json(file).get("question") or {}), _as_json(facts)
        others = ", ".join(name.replace("_", " ") for name in now if before.get(name) != now[name])
        found = f"another, by its {others}"
        expect(before == now, f"the tuning that was begun in {folder}", found, "choose another folder")
        return
    if folder.exists() and any(folder.iterdir()):
        raise CloisterError(f"Expected a new folder, or that of this tuning, found {folder}: choose another.")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(file, {"question": facts})


def _as_json(facts: Any) -> Any:
    """Values as JSON has them, so that those of a file compare with others."""
    return json.loads(json.dumps(plain(facts)))


def _final(question: Question, values: Mapping[str, Any], folder: Path | None) -> Run:
    """The best settings on all training data; the test set is looked at here, and nowhere before."""
    place = None if folder is None else folder / "final"
    config = toml_text(question.all_values(values)) if question.task is None else None
    options = {"folder": place, "config": config, "resume": place is not None and place.exists(), "progress": False}
    return question.run(values, question.whole_task(), **options)


def _write(question: Question, task: Task, tuned: Tuned, folder: Path) -> None:
    facts = {
        "question": question.to_json(task),
        "trials": len(tuned.trials),
        "metric": tuned.metric,
        "settings": tuned.settings,
        "score": tuned.score,
        "importance": dict(tuned.importance),
        "note": tuned.note,
    }
    if tuned.final is not None:
        facts["final"] = {"scores": tuned.final.scores, "epsilon": tuned.final.epsilon}
    write_json(folder / "tuning.json", facts)
    comment = f"# Chosen of {len(tuned.trials)} candidates by {tuned.metric} on held-out samples.\n# {tuned.note}\n"
    write_atomically(folder / "best.toml", (comment + toml_text(tuned.values)).encode())
    write_atomically(folder / "trials.md", markdown(tuned.trials, tuned.metric, tuned.larger_is_better).encode())
    write_atomically(folder / "trials.csv", _csv(tuned).encode())
    from cloister.studies.tuning.plots import draw_trials

    draw_trials(tuned, folder / "tuning.png")


def _csv(tuned: Tuned) -> str:
    text, keys = io.StringIO(), list(tuned.settings)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["trial", *keys, tuned.metric, "standard deviation", "seconds", "error"])
    for one in tuned.trials:
        row = [
            one.number + 1,
            *(one.settings[key] for key in keys),
            one.score,
            one.spread,
            f"{one.seconds:.3f}",
            one.error,
        ]
        writer.writerow(row)
    return text.getvalue()


_FREE = "the tuning looked at public samples alone, and costs nothing."
_NOT_CHARGED = (
    "the tuning itself was not charged: an epsilon of a run with these settings on the same data does not cover the "
    "choice of {keys}. That is for simulations and benchmarks."
)
