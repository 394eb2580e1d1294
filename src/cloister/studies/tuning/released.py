"""What a private tuning releases: the selected trial, at the price of the whole tuning, and nothing else."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from cloister.data.task import Task
from cloister.data.validation import left_by_validation
from cloister.errors import CloisterError
from cloister.privacy.budgets import Budget
from cloister.privacy.certificate import Certificate, deltas_beside
from cloister.privacy.certificate_text import priced_as, round_up
from cloister.privacy.ledger import Ledger
from cloister.privacy.promised import Price
from cloister.privacy.unit import ProtectedUnit
from cloister.runs.certificate_file import certificate_bytes, certificate_values
from cloister.runs.config_file import toml_text
from cloister.runs.files import write_atomically, write_json
from cloister.runs.folder import RunFolder
from cloister.runs.load import load
from cloister.runs.request import Options
from cloister.runs.verification import text_of
from cloister.studies.tuning.draws import HIDDEN, State
from cloister.studies.tuning.question import Question
from cloister.studies.tuning.result import Tuned
from cloister.studies.tuning.trial_price import TrialPrices

_SEARCHED = "hyper-parameter search"


def released(question: Question, prices: TrialPrices, folder: Path, state: State, ledger: Ledger) -> Tuned:
    """The selected trial's settings, model and certificate; everything else is removed."""
    hidden = folder / HIDDEN
    if state.best is None or state.score is None:
        why = "no trial came to a score" if state.candidates else "the number of trials that was drawn is zero"
        write_json(folder / "tuning.json", _facts(question, prices, ledger) | {"selected": None})
        shutil.rmtree(hidden)
        raise CloisterError(f"Expected a trial to select, found none, for {why}: what was charged is spent.")
    settings, trial = state.candidates[state.best], hidden / f"trial-{state.best}"
    certificate = _certificate(RunFolder.open(trial).certificate(), prices, ledger, question)
    values = {**question.values, **settings}
    noise = _noise_of_score(RunFolder.open(trial), prices.task, values)
    files = {name: (trial / name).read_bytes() for name in ("model.safetensors", "model.json")}
    files["certificate.txt"] = text_of(certificate)
    place = folder / "selected"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for name, content in files.items():
        write_atomically(place / name, content)
    write_atomically(place / "certificate.json", certificate_bytes(certificate_values(certificate, files)))
    epsilon = state.epsilons[state.best]
    comment = _COMMENT.format(epsilon=round_up(certificate.epsilon), delta=prices.delta)
    write_atomically(folder / "best.toml", (comment + toml_text(values)).encode())
    larger = _watches_accuracy(question, prices.task)
    score = state.score if larger else -state.score
    facts = _facts(question, prices, ledger)
    facts |= {"settings": settings, "private_validation": score, "epsilon": certificate.epsilon, "delta": prices.delta}
    facts["one_trial"] |= {"epsilon_if_alone": epsilon}
    facts["noise_of_validation"] = noise
    write_json(folder / "tuning.json", facts)
    model = load(place) if not _own_code(question) else None
    shutil.rmtree(hidden)
    metric = "accuracy" if larger else "1 - exp(-loss)"
    note = _NOTE if noise < _DROWNED else f"{_BY_CHANCE.format(noise=noise)} {_NOTE}"
    return Tuned(
        "private",
        settings,
        values,
        metric,
        larger,
        score,
        folder,
        note,
        certificate=certificate,
        model=model,
        noise=noise,
    )


def _noise_of_score(trial: RunFolder, task: Task, values: Mapping[str, Any]) -> float:
    """The standard deviation of the noise in a trial's score. It follows from the settings and the declared sizes."""
    described = trial.description()
    multipliers: tuple[float, ...] = next(
        one.noise_multipliers for one in described.queries if one.name == "validation"
    )
    if described.method.unit == ProtectedUnit.CLIENT:
        return multipliers[0] / task.clients
    sizes, fraction = (
        task.population.counts.tolist(),
        float(values.get("validation_fraction", Options.validation_fraction)),
    )
    left = left_by_validation(sizes, fraction, described.seed)
    own = [n - kept for n, kept in zip(sizes, left, strict=True)]
    each = multipliers if len(multipliers) > 1 else multipliers * len(own)
    return float(math.hypot(*each) / max(sum(own), 1))


def _certificate(trial: Certificate, prices: TrialPrices, ledger: Ledger, question: Question) -> Certificate:
    """That of the selected trial, whose epsilon is for one trial, at the price of the whole tuning."""
    unit = next(iter(ledger.budgets))
    found = {delta: ledger.epsilon(unit, delta, "rdp") for delta in deltas_beside(prices.delta)}
    count, keys = prices.count, ", ".join(question.space)
    gamma = "" if count.gamma is None else f", stopping probability gamma {count.gamma:.6g}, shape eta {count.shape:g}"
    one_trial = f"epsilon {round_up(trial.epsilon)} at delta {trial.prices[0].delta:g} if it had been the only one"
    return replace(
        trial,
        released=f"the best of some trials, by a private score, and its settings ({keys}): {trial.released}",
        trusted=_TRUSTED.format(trial.trusted),
        sampling_accounted=[
            *priced_as(Counter({prices.event: 1}), "cohorts"),
            f"the number of trials: {count.words}{gamma}, {count.mean:g} on average ({count.theorem})",
            *(f"in one trial ({one_trial}): {line}" for line in trial.sampling_accounted),
        ],
        budget=asdict(Budget(prices.epsilon, prices.delta)),
        least_budget=prices.epsilon,
        pld=False,
        prices=[Price(delta, epsilon, epsilon) for delta, epsilon in found.items()],
        not_covered=[*_LEFT_OUT, *(gap for gap in trial.not_covered if not gap.startswith(_SEARCHED))],
        ledger_hash=ledger.hash,
    )


def _facts(question: Question, prices: TrialPrices, ledger: Ledger) -> dict[str, Any]:
    """What was asked and charged, whatever came of it."""
    count, price = prices.count, prices.price
    return {
        "on": "private",
        "keys": question.values,
        "space": {name: str(one) for name, one in question.space.items()},
        "budget": {"epsilon": prices.epsilon, "delta": prices.delta},
        "theorem": count.theorem,
        "number_of_trials": {"distribution": count.words, "mean": count.mean, "eta": count.shape, "gamma": count.gamma},
        "one_trial": asdict(price),
        "selection": {"order": price.order, "divergence": price.selected(count)},
        "adjacency": prices.adjacency.value,
        "ledger_hash": ledger.hash,
    }


def _watches_accuracy(question: Question, task: Task) -> bool:
    """Private validation is by accuracy, or else by the loss."""
    return question.metric(task).name == "accuracy"


def _own_code(question: Question) -> bool:
    """Whether the model is made by code of another package, which a file does not get to run."""
    return ":" in str(question.values.get("model", ""))


_NOTE = (
    "the epsilon is that of the whole tuning: all trials, the choice among them, and the model. Nothing of the other "
    "trials was kept. Whoever trains with these settings again on the same data pays for that in addition."
)
_DROWNED = 0.05
"""Noise of a score between 0 and 1 beside which settings differ by less, mostly."""
_BY_CHANCE = (
    "much of the choice is chance: scores lie between 0 and 1, and the noise in each has a standard deviation of "
    "{noise:.2g}, so that it takes more clients or samples, a larger epsilon or fewer trials;"
)
_COMMENT = """\
# Chosen on private data, at epsilon {epsilon} (delta {delta:g}) for the whole tuning. The selected trial's model is in
# selected/, and costs nothing more. Another run with these settings on the same data would be charged in addition.
"""
_TRUSTED = (
    "the server and all who see messages or models of a trial, to keep those of trials that were not selected to "
    "themselves: what they see adds up over all trials, and this epsilon does not cover it; within one trial: {}"
)
_LEFT_OUT = (
    "how many trials there were: the theorem releases the best trial alone, so that whoever saw how long the tuning "
    "took, or looked into its folder before it ended, has seen more",
    "choices beside the tuning: the search space, the distribution of the number of trials and all other settings were "
    "fixed before; having chosen them by results on these data would be a release that was not charged",
)
