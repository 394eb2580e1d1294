"""Tuning on private data, charged as a whole: the best of a random number of private trials.

    folder/ledger.jsonl   the charge for the whole tuning, on the disk before the first trial begins
    folder/unreleased/    what was drawn, and the best trial so far: NOT PRIVATE, removed at the end
    folder/selected/      model and certificate of the selected trial, at the price of the whole tuning
    folder/best.toml      its settings
    folder/tuning.json    the price of one trial and of the selection

A trial is a whole run with a private validation at its end. All trials keep to one price (`trial_price.py`), and the charge
is the price of selecting among them (`privacy/selection.py`). It is made once: a tuning that was interrupted goes on with
what was drawn at its start, or not at all. Nothing of the other trials is kept, not even how many there were.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from cloister.data.task import Task
from cloister.errors import CloisterError, Corrupted, expect
from cloister.privacy.budgets import Budget
from cloister.privacy.certificate import Certificate, Price, deltas_beside
from cloister.privacy.certificate_text import priced_as, round_up
from cloister.privacy.ledger import Charge, Ledger
from cloister.privacy.selection import TrialCount
from cloister.privacy.unit import ProtectedUnit, sample_account
from cloister.random.streams import Streams
from cloister.runs.config_file import toml_text
from cloister.runs.files import write_atomically, write_json
from cloister.runs.folder import RunFolder
from cloister.runs.load import load
from cloister.runs.result import Run
from cloister.runs.verification import text_of
from cloister.studies.tuning.draws import State, draw
from cloister.studies.tuning.question import Question
from cloister.studies.tuning.result import Tuned
from cloister.studies.tuning.trial_price import TrialPrices, trial_values

_SEARCHED = "hyper-parameter search"
_ROUNDING = 1e-9


def tune_privately(question: Question, count: TrialCount, folder: Path) -> Tuned:
    """The settings and the model of the best trial; the folder's budget pays for all of them together."""
    question = question.without("config", "progress")
    _expect_private(question)
    task = question.whole_task()
    identity = question.identity(task) + f" {count.mean:g} {count.shape}"
    if (folder / "tuning.json").exists():
        raise CloisterError(f"Expected a tuning that has not ended, found that {folder} has: its result is in best.toml.")
    prices = TrialPrices(question, task, count, float(question.values["epsilon"]), float(question.values["delta"]))
    state = _begun(question, prices, folder, identity)
    ledger = _charged(question, prices, folder, identity)
    try:
        state = _trials(question, task, prices, folder / "unreleased", state)
        return _released(question, prices, folder, state, ledger)
    finally:
        ledger.close()


def _expect_private(question: Question) -> None:
    """Refuse what has no budget, and what would show more than it pays for."""
    values = question.values
    expect(question.unit in tuple(ProtectedUnit), "a private method", "one without noise", "choose dp_fedavg, say")
    for name in ("epsilon", "delta"):
        number = isinstance(values.get(name), (int, float)) and not isinstance(values.get(name), bool)
        expect(number, f"one {name} for the whole tuning", values.get(name), f"give {name}=... once, as a number")
    given = values.get("noise_multiplier")
    expect(given is None, "noise that follows from epsilon", given, "leave noise_multiplier out")
    for name in ("record", "log"):
        expect(values.get(name) is None, "nothing that shows trials which are not released", name, f"leave {name} out")
    shown = values.get("personalize", "none")
    expect(shown == "none", "no personalize in trials that may not be released", shown, "leave it out")
    expect(values.get("validation", "private") == "private", "private validation", values.get("validation"), "leave it out")


def _begun(question: Question, prices: TrialPrices, folder: Path, identity: str) -> State:
    """What was drawn: now, or by the process that was interrupted."""
    hidden = folder / "unreleased"
    secure = bool(question.values.get("secure_rng", False))
    if (hidden / "state.json").exists():
        state = State.read(hidden)
        remedy = "give the same command, or choose another folder"
        expect(state.identity == identity, f"the tuning that was begun in {folder}", "another", remedy)
        state = state.continued(repeatable=not secure)
    elif folder.exists() and any(folder.iterdir()):
        raise CloisterError(f"Expected a new folder, or that of a tuning that has not ended, found {folder}: choose another.")
    else:
        hidden.mkdir(parents=True)
        os.chmod(hidden, 0o700)
        candidates, seeds = draw(prices.count, question.space, Streams(question.seed, secure, f"tuning {identity}"))
        state = State(identity, candidates, seeds, [prices.epsilon_of(one) for one in candidates])
    state.write(hidden)
    return state


def _charged(question: Question, prices: TrialPrices, folder: Path, identity: str) -> Ledger:
    """The ledger, with the whole tuning charged to everybody; what cannot be paid for is refused."""
    subject, path = hashlib.sha256(identity.encode()).hexdigest(), folder / "ledger.jsonl"
    budget = Budget(prices.epsilon, prices.delta)
    sizes = prices.task.population.counts.tolist()
    everybody = [sample_account(one) for one, n in enumerate(sizes) if n]
    units = everybody if question.unit == ProtectedUnit.SAMPLE else [str(ProtectedUnit.CLIENT.value)]
    if path.exists():
        ledger = Ledger.open(path)
        if ledger.subject != subject:
            raise Corrupted(f"Expected the ledger of this tuning in {folder}, found another: restore it.")
    else:
        ledger = Ledger.create(path, subject, dict.fromkeys(units, budget))
    charges = {unit: Charge(prices.event) for unit in units if not ledger.has_paid(unit, 1, "tuning")}
    refused = ledger.charge_each(charges, round=1, what="tuning", repeatable=False)
    if refused:
        raise CloisterError(next(iter(refused.values())))
    ledger.sync()
    return ledger


def _trials(question: Question, task: Task, prices: TrialPrices, hidden: Path, state: State) -> State:
    """Run what is left of the trials, and keep the best."""
    for number in range(state.ended, len(state.candidates)):
        state = replace(state, begun=number + 1)
        state.write(hidden)
        place = hidden / f"trial-{number}"
        shutil.rmtree(place, ignore_errors=True)
        values = trial_values(question, state.candidates[number], state.epsilons[number]) | {"seed": state.seeds[number]}
        score = _score(question.run(values, task, folder=place, progress=False), values)
        _expect_as_planned(prices, place)
        before = state.best
        if score is not None and (state.score is None or score > state.score):
            state = replace(state, best=number, score=score)
        state = replace(state, ended=number + 1)
        state.write(hidden)
        for other in {number, before} - {state.best, None}:
            shutil.rmtree(hidden / f"trial-{other}", ignore_errors=True)
    return state


def _score(run: Run, values: dict[str, Any]) -> float | None:
    """What the private validation released of the model that is kept; larger is better. None is never selected."""
    sign = 1 if run.monitor == "accuracy" else -1
    found = [sign * line["validation"] for line in run.history if "validation" in line]
    score = max(found, default=math.nan) if values.get("restore_best") else [math.nan, *found][-1]
    return score if math.isfinite(score) else None


def _expect_as_planned(prices: TrialPrices, place: Path) -> None:
    """What a trial was charged is what every trial may cost; else the theorem would speak of other trials."""
    accounts = RunFolder.open(place).accounts()
    spent = prices.excess([account.events for account in accounts.values() if account.events])
    if spent > 1 + _ROUNDING:
        raise CloisterError(
            f"Expected a trial that keeps to its price, found {spent:.6g} of it in {place}: its result is not released; "
            "please report this."
        )


def _released(question: Question, prices: TrialPrices, folder: Path, state: State, ledger: Ledger) -> Tuned:
    """The selected trial's settings, model and certificate; everything else is removed."""
    hidden = folder / "unreleased"
    if state.best is None or state.score is None:
        why = "every trial was interrupted" if state.candidates else "the number of trials that was drawn is zero"
        raise CloisterError(f"Expected a trial to select, found none, for {why}: what was charged is spent.")
    settings, trial = state.candidates[state.best], hidden / f"trial-{state.best}"
    certificate = _certificate(RunFolder.open(trial).certificate(), prices, ledger, question)
    files = {name: (trial / name).read_bytes() for name in ("model.safetensors", "model.json")}
    files["certificate.txt"] = text_of(certificate)
    place = folder / "selected"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for name, content in files.items():
        write_atomically(place / name, content)
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    write_json(place / "certificate.json", {**certificate.to_json(), "files": hashes})
    epsilon = state.epsilons[state.best]
    values = {**question.values, **settings}
    comment = _COMMENT.format(epsilon=round_up(certificate.epsilon), delta=prices.delta)
    write_atomically(folder / "best.toml", (comment + toml_text(values)).encode())
    larger = _watches_accuracy(question, prices.task)
    score = state.score if larger else -state.score
    write_json(
        folder / "tuning.json", _facts(question, prices, ledger, settings, epsilon, score) | {"total": certificate.epsilon}
    )
    model = load(place) if not _own_code(question) else None
    shutil.rmtree(hidden)
    metric = "accuracy" if larger else "1 - exp(-loss)"
    return Tuned(
        "private", settings, values, metric, larger, score, folder, _NOTE, certificate=certificate, model=model
    )


def _certificate(trial: Certificate, prices: TrialPrices, ledger: Ledger, question: Question) -> Certificate:
    """That of the selected trial, whose epsilon is for one trial, at the price of the whole tuning."""
    unit = next(iter(ledger.budgets))
    found = {delta: ledger.epsilon(unit, delta, "rdp") for delta in deltas_beside(prices.delta)}
    count, price, keys = prices.count, prices.price, ", ".join(question.space)
    gamma = "" if count.gamma is None else f", stopping probability gamma {count.gamma:.6g}, shape eta {count.shape:g}"
    one_trial = f"epsilon {round_up(trial.epsilon)} at delta {trial.prices[0].delta:g} if it had been the only one"
    return replace(
        trial,
        released=f"of a random number of trials the best by a private score, with its settings ({keys}): {trial.released}",
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


def _facts(
    question: Question, prices: TrialPrices, ledger: Ledger, settings: dict[str, Any], epsilon: float, score: float
) -> dict[str, Any]:
    count, price = prices.count, prices.price
    return {
        "on": "private",
        "keys": question.values,
        "space": {name: str(one) for name, one in question.space.items()},
        "settings": settings,
        "private_validation": score,
        "budget": {"epsilon": prices.epsilon, "delta": prices.delta},
        "theorem": count.theorem,
        "number_of_trials": {"distribution": count.words, "mean": count.mean, "eta": count.shape, "gamma": count.gamma},
        "one_trial": {**asdict(price), "epsilon_if_alone": epsilon},
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
_COMMENT = """\
# Chosen on private data, at epsilon {epsilon} (delta {delta:g}) for the whole tuning; the model of the selected trial is in
# selected/, and costs nothing more. Another run with these settings on the same data is a release of its own, in addition.
"""
_LEFT_OUT = (
    "how many trials there were: the theorem releases the best trial alone, so that whoever saw how long the tuning took, "
    "or looked into its folder before it ended, has seen more",
    "choices beside the tuning: the search space, the distribution of the number of trials and all other settings were "
    "fixed before; having chosen them by results on these data would be a release that was not charged",
)
