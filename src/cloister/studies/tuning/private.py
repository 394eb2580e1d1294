"""Tuning on private data, charged as a whole: the best of a random number of private trials.

    folder/ledger.jsonl   the charge for the whole tuning, on the disk before the first trial begins
    folder/.unreleased/   what was drawn, and the best trial so far: NOT PRIVATE, removed at the end
    folder/selected/      model and certificate of the selected trial, at the price of the whole tuning
    folder/best.toml      its settings
    folder/tuning.json    the price of one trial and of the selection

A trial is a whole run with a private validation at its end. All trials keep to one price (`trial_price.py`), and the
charge is the price of selecting among them (`privacy/selection.py`). It is made once: a tuning that was interrupted
goes on with what was drawn at its start, or not at all. Nothing of the other trials is kept, not even how many there
were.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from cloister.data.task import Task
from cloister.errors import CloisterError, Corrupted, Note, expect
from cloister.privacy.budgets import Budget
from cloister.privacy.ledger import Charge, Ledger
from cloister.privacy.selection import TrialCount
from cloister.privacy.unit import ProtectedUnit, sample_account
from cloister.random.streams import Streams
from cloister.runs.folder import RunFolder
from cloister.runs.result import Run
from cloister.studies.tuning.draws import HIDDEN, State, draw
from cloister.studies.tuning.question import Question
from cloister.studies.tuning.released import released
from cloister.studies.tuning.result import Tuned
from cloister.studies.tuning.trial_price import TrialPrices, trial_values

_ROUNDING = 1e-9


def tune_privately(question: Question, count: TrialCount, folder: Path) -> Tuned:
    """The settings and the model of the best trial; the folder's budget pays for all of them together."""
    question = question.without("config", "progress")
    _expect_private(question)
    task = question.whole_task()
    identity = question.identity(task) + f" {count.mean:g} {count.shape}"
    before = _before(folder, identity)
    prices = TrialPrices(question, task, count, float(question.values["epsilon"]), float(question.values["delta"]))
    state = _begun(question, prices, folder, identity, before)
    ledger = _charged(question, prices, folder, identity)
    try:
        state = _trials(question, task, prices, folder / HIDDEN, state)
        return released(question, prices, folder, state, ledger)
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
    expect(
        values.get("validation", "private") == "private", "private validation", values.get("validation"), "leave it out"
    )


def _before(folder: Path, identity: str) -> State | None:
    """What a process before this one has drawn here; any other folder that is there is refused."""
    hidden = folder / HIDDEN
    if (folder / "tuning.json").exists():
        shutil.rmtree(hidden, ignore_errors=True)  # of a process that was killed at its very end
        result = "its result is in best.toml" if (folder / "best.toml").exists() else "without a trial to select"
        raise CloisterError(f"Expected a tuning that has not ended, found that {folder} has: {result}.")
    if (hidden / "state.json").exists():
        state, remedy = State.read(hidden), "give the same command, or choose another folder"
        expect(state.identity == identity, f"the tuning that was begun in {folder}", "another", remedy)
        return state
    if folder.exists() and any(folder.iterdir()):
        raise CloisterError(
            f"Expected a new folder, or that of a tuning that has not ended, found {folder}: choose another."
        )
    return None


def _begun(question: Question, prices: TrialPrices, folder: Path, identity: str, before: State | None) -> State:
    """What was drawn: now, or by the process that was interrupted."""
    hidden, secure = folder / HIDDEN, bool(question.values.get("secure_rng", False))
    if before is not None:
        # A GPU may round otherwise the next time: under the same noise, both would show what was rounded.
        same_bits = not secure and str(question.values.get("device", "cpu")) == "cpu"
        state = before.continued(repeatable=same_bits)
    else:
        prices.expect_all_possible()
        candidates, seeds = draw(prices.count, question.space, Streams(question.seed, secure, f"tuning {identity}"))
        state = State(identity, candidates, seeds, [prices.epsilon_of(one) for one in candidates])
        hidden.mkdir(parents=True)  # when every candidate was found to be one that can be priced
        os.chmod(hidden, 0o700)
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
        values = trial_values(question, state.candidates[number], state.epsilons[number]) | {
            "seed": state.seeds[number]
        }
        score = _score(_in_silence(question, values, task, place), values)
        _expect_as_planned(prices, place)
        before = state.best
        if score is not None and (state.score is None or score > state.score):
            state = replace(state, best=number, score=score)
        state = replace(state, ended=number + 1)
        state.write(hidden)
        for other in {number, before} - {state.best, None}:
            shutil.rmtree(hidden / f"trial-{other}", ignore_errors=True)
    return state


def _in_silence(question: Question, values: dict[str, Any], task: Task, place: Path) -> Run:
    """One trial, whose notes (of a noisy median that it released, say) would show what is not selected."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Note)
        return question.run(values, task, folder=place, progress=False)


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
            f"Expected a trial that keeps to its price, found {spent:.6g} of it in {place}: its result is not "
            "released; please report this."
        )
