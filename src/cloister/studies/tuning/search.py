"""The search where nothing is charged: Optuna proposes, every candidate is run on held-out training data.

Proposals depend on the scores before them (a tree-structured Parzen estimator), which is why none of this is for
private data: see `private.py`. The journal in the folder is Optuna's own, so that an interrupted search goes on, and
its tools can read it. What is proposed follows from the seed and the finished candidates alone: a search that was
interrupted finds what it would have found.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from cloister.data.task import Task
from cloister.errors import CloisterError
from cloister.runs.metric_catalogue import Metric
from cloister.studies.tuning.question import Question
from cloister.studies.tuning.result import Trial
from cloister.studies.tuning.space import candidates_of

if TYPE_CHECKING:
    from optuna.study import Study

_STARTUP = 10
"""Candidates that are drawn at random before any is proposed."""
_HOPELESS = 3
"""So many candidates that fail, and no other, and the search is given up."""
_NOT_IN_TRIALS = ("log", "record", "personalize", "personalize_steps", "personalize_lr", "personalize_batch_size")
"""Keys of what is kept or shown of a run, which no candidate is judged by."""


def search(
    question: Question, task: Task, folder: Path | None, told: Callable[[Trial], None]
) -> tuple[list[Trial], dict[str, float]]:
    """All candidates, those of an earlier process included, and the importance of every key; `told` hears of every new
    candidate."""
    study = _study(question.metric(task), folder)
    while len(found := trials_of(study)) < question.most_trials:
        trial = _next(study, question, task)
        told(replace(trial, of=question.most_trials))
        none_yet = all(one.error is not None for one in found)
        if trial.error is not None and none_yet and len(found) + 1 >= min(_HOPELESS, question.most_trials):
            raise CloisterError(trial.error)
    return found, _importance(study, question)


def trials_of(study: Study) -> list[Trial]:
    """The candidates that were tried: those that were interrupted do not count."""
    done = [one for one in study.get_trials(deepcopy=False) if "seconds" in one.user_attrs]
    return [
        Trial(
            number,
            dict(one.user_attrs["settings"]),
            one.value,
            one.user_attrs.get("spread"),
            one.user_attrs["seconds"],
            one.user_attrs.get("error"),
        )
        for number, one in enumerate(done)
    ]


def _importance(study: Study, question: Question) -> dict[str, float]:
    """How much of the variation of the scores each key explains (fANOVA); nothing where there is too little to say."""
    import optuna

    scores = {one.value for one in study.get_trials(deepcopy=False) if one.value is not None}
    if len(scores) < _STARTUP or len(question.space) < 2:
        return {}
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=question.seed)
    found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {name: float(share) for name, share in found.items()}


def _study(metric: Metric, folder: Path | None) -> Study:
    """That of the folder, or one in memory. What was under way when its process ended is not."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage: Any = None
    if folder is not None:
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        storage = JournalStorage(JournalFileBackend(str(folder / "journal.log")))
    direction: Any = "maximize" if metric.larger_is_better else "minimize"
    study = optuna.create_study(storage=storage, study_name="tuning", direction=direction, load_if_exists=True)
    for one in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
        study.tell(one.number, state=optuna.trial.TrialState.FAIL)
    return study


def _next(study: Study, question: Question, task: Task) -> Trial:
    from optuna.samplers import TPESampler
    from optuna.trial import TrialState

    number = len(trials_of(study))
    digest = hashlib.sha256(f"{question.seed}/{number}".encode()).digest()
    study.sampler = TPESampler(seed=int.from_bytes(digest[:4], "big"), n_startup_trials=_STARTUP)
    asked, settings = _untried(study, question)
    asked.set_user_attr("settings", settings)
    started = time.perf_counter()
    try:
        scores, error = scores_of(question, task, settings), None
    except CloisterError as refusal:
        scores, error = [], str(refusal)
    if scores and not all(map(math.isfinite, scores)):
        error = f"Expected a score, found {scores}: the training diverged."
    spread = stdev(scores) if len(scores) > 1 and error is None else None
    if spread is not None:
        asked.set_user_attr("spread", spread)
    if error is not None:
        asked.set_user_attr("error", error)
    score = fmean(scores) if error is None else None
    seconds = time.perf_counter() - started
    asked.set_user_attr("seconds", seconds)
    study.tell(asked, score, state=None if error is None else TrialState.FAIL)
    return Trial(number, settings, score, spread, seconds, error)


def _untried(study: Study, question: Question) -> tuple[Any, dict[str, Any]]:
    """A proposal. Of lists and whole numbers the same one may come again, and would have the same score: then another
    that was not tried takes its place."""
    from optuna.trial import TrialState

    def proposal() -> tuple[Any, dict[str, Any]]:
        asked = study.ask()
        return asked, {name: one.suggest(asked, name) for name, one in question.space.items()}

    asked, settings = proposal()
    all_of_them = candidates_of(question.space)
    tried = {json.dumps(one.settings) for one in trials_of(study)}
    if all_of_them is not None and json.dumps(settings) in tried:
        study.tell(asked, state=TrialState.FAIL)
        left = [one for one in all_of_them if json.dumps(one) not in tried]
        digest = hashlib.sha256(f"{question.seed}/{len(tried)} untried".encode()).digest()
        study.enqueue_trial(left[int.from_bytes(digest[:4], "big") % len(left)])
        return proposal()
    return asked, settings


def scores_of(question: Question, task: Task, settings: Mapping[str, Any]) -> list[float]:
    """What a candidate reaches on the held-out samples, seed by seed."""
    values = {name: one for name, one in question.values_with(settings).items() if name not in _NOT_IN_TRIALS}
    if values.get("validation", "none") == "none":
        values["evaluate_every"] = values["rounds"]  # one look at the end is all that counts
    name, found = question.metric(task).name, []
    for seed in range(question.seed, question.seed + question.seeds):
        run = question.run({**values, "seed": seed}, task, progress=False)
        score = run.scores.get(name)
        found.append(math.nan if score is None else float(score))
    return found
