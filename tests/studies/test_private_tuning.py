"""Tuning on private data: what it is charged, when, and that nothing but the best trial is left."""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from test_tuning import digits_of

import cloister as cl
from cloister.errors import CloisterError, Corrupted, note
from cloister.privacy.accountant import RDP_ORDERS, rdp_of, worth_of
from cloister.privacy.events import BestOfTrials, Gaussian
from cloister.privacy.ledger import Ledger
from cloister.privacy.selection import TrialCount, TrialPrice, selection_rdp
from cloister.privacy.unit import sample_account
from cloister.random.streams import Streams
from cloister.runs.folder import RunFolder
from cloister.studies.html.discover import run_folders
from cloister.studies.tuning import private, released
from cloister.studies.tuning.draws import HIDDEN, State, draw
from cloister.studies.tuning.question import Question
from cloister.studies.tuning.space import Choice, Range
from cloister.studies.tuning.trial_price import TrialPrices, trial_values
from cloister.studio.listing import Lister
from cloister.studio.places import Places

TASK = digits_of()
KEYS = {
    "method": "dp_fedavg",
    "cohort": "full",
    "rounds": 2,
    "local_steps": 2,
    "lr": 0.5,
    "epsilon": 6.0,
    "delta": 1e-3,
    "engine": "loop",
}
SPACE = {"clip_norm": (0.1, 3.0), "rounds": [1, 2]}


def several() -> int:
    """A seed with few trials, two of which differ in what they are charged."""
    for seed in range(1000):
        question = Question.of({**KEYS, "seed": seed}, SPACE, "private", trials=3, task=TASK)
        streams = Streams(seed, run=f"tuning {question.identity(TASK)} 3 1.0")
        candidates, _ = draw(TrialCount(3.0), question.space, streams)
        if len(candidates) < 4 and [one["rounds"] for one in candidates[:2]] == [2, 1]:
            return seed
    raise AssertionError


SEED = several()


def go(folder, **more):
    keys = {**KEYS, **more.pop("keys", {})}
    return cl.tune(keys, SPACE, **{"on": "private", "trials": 3, "task": TASK, "folder": folder, **more})


@pytest.fixture(autouse=True, scope="module")
def _priced_once():
    """The same question has the same price, which takes longer to find than these trials do."""
    known = {}

    def priced(question, task, count, epsilon, delta):
        key = question.identity(task), count, epsilon, delta
        known[key] = known.get(key) or TrialPrices(question, task, count, epsilon, delta)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(private, "TrialPrices", priced)
        yield


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """One tuning, with what each of its trials found when it began, and was charged."""
    seen = []
    usual = Question.run

    def spied(self, values, task, folder, **options):
        ledger = Ledger.open(folder.parents[1] / "ledger.jsonl", writable=False)
        paid = [(entry.what, type(entry.event)) for entry in ledger.entries]
        run = usual(self, values, task, folder=folder, **options)
        accounts = RunFolder.open(folder).accounts()
        seen.append((paid, accounts["client"].events, values, run.certificate.epsilon))
        return run

    folder = tmp_path_factory.mktemp("tuning") / "a"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Question, "run", spied)
        found = go(folder, keys={"seed": SEED})
    assert [values["rounds"] for _, _, values, _ in seen][:2] == [2, 1]
    return found, seen, folder


def test_it_is_charged_as_a_whole_before_the_first_trial(tuned):
    _, seen, folder = tuned
    assert all(paid == [("tuning", BestOfTrials)] for paid, *_ in seen)
    assert len(Ledger.open(folder / "ledger.jsonl", writable=False).entries) == 1


def test_the_total_covers_what_every_trial_was_charged_and_is_within_the_budget(tuned):
    found, seen, _ = tuned
    curve = [max(rdp_of(events)[at] for _, events, _, _ in seen) for at in range(len(RDP_ORDERS))]
    exact = worth_of(selection_rdp(TrialCount(3.0, 1.0), RDP_ORDERS, curve), 1e-3)
    assert exact <= found.epsilon * (1 + 1e-9)
    assert 5.9 < found.epsilon <= 6.0, "the budget is used, and not exceeded"
    assert all(alone < 0.8 * found.epsilon for *_, alone in seen), "one trial's epsilon would claim too much"


def test_nothing_is_left_but_the_best_trial_at_the_whole_price(tuned):
    found, seen, folder = tuned
    assert {path.name for path in folder.iterdir()} == {"ledger.jsonl", "selected", "best.toml", "tuning.json"}
    model = cl.load(folder / "selected")
    assert model.certificate.epsilon == found.epsilon == json.loads((folder / "tuning.json").read_text())["epsilon"]
    published = json.loads((folder / "selected" / "certificate.json").read_text())
    assert published["prices"][0]["epsilon_pld"] == published["prices"][0]["epsilon_rdp"] == found.epsilon
    text = (folder / "selected" / "certificate.txt").read_text()
    for words in ("Theorem 2", "geometric", "3 on average", "gamma 0.333333", "eta 1", "in one trial"):
        assert words in " ".join(text.split()), words
    assert "to keep those of trials that were not selected to themselves" in published["trusted"]
    counts = json.dumps(json.loads((folder / "tuning.json").read_text()))
    assert f'"trials": {len(seen)}' not in counts
    assert found.trials == ()


def test_a_choice_by_noise_is_called_one(tuned):
    """The best of scores whose noise is as wide as all scores are is any of them."""
    found, _, folder = tuned
    assert found.noise == json.loads((folder / "tuning.json").read_text())["noise_of_validation"]
    assert ("much of the choice is chance" in found.note) == (found.noise >= 0.05)
    asked = SimpleNamespace(name="validation", noise_multipliers=(9.0,))
    described = SimpleNamespace(method=SimpleNamespace(unit="client"), seed=0, queries=[asked])
    trial = SimpleNamespace(description=lambda: described)
    assert released._noise_of_score(trial, SimpleNamespace(clients=4), {}) == 9 / 4
    described.method.unit = "sample"
    task = SimpleNamespace(population=SimpleNamespace(counts=torch.tensor([50, 150])))
    assert released._noise_of_score(trial, task, {"validation_fraction": 0.1}) == pytest.approx(9 * 2**0.5 / 20)


def test_it_cannot_be_begun_again(tuned):
    *_, folder = tuned
    with pytest.raises(CloisterError, match="has not ended"):
        go(folder, keys={"seed": SEED})


class Killed(BaseException):
    """What no handler expects."""


def expect_shown_nowhere(folder):
    """Trials are runs on the disk; whoever looks at runs as they come must not come by these."""
    assert list(folder.glob("*/trial-*/description.json"))
    with pytest.raises(CloisterError, match="found no description"):
        run_folders([folder])
    for root in (folder, folder.parent):
        found = Lister(Places(root)).all()
        assert not found.runs
        assert not any(study.runs for study in found.studies)


def killed_in_trial(monkeypatch, number):
    usual, calls = Question.run, []

    def run(self, *args, **options):
        calls.append(1)
        if len(calls) == number:
            raise Killed
        return usual(self, *args, **options)

    monkeypatch.setattr(Question, "run", run)


def test_a_killed_tuning_goes_on_with_what_was_drawn(tuned, tmp_path, monkeypatch):
    found, seen, _ = tuned
    folder = tmp_path / "b"
    with monkeypatch.context() as patch:
        killed_in_trial(patch, 2)
        with pytest.raises(Killed):
            go(folder, keys={"seed": SEED})
    drawn = State.read(folder / HIDDEN)
    expect_shown_nowhere(folder)
    assert (drawn.begun, drawn.ended, len(drawn.candidates)) == (2, 1, len(seen))
    before = (folder / "ledger.jsonl").read_bytes()
    with pytest.raises(CloisterError, match="that was begun"):
        go(folder, keys={"seed": SEED + 1})
    again = go(folder, keys={"seed": SEED})
    assert (again.settings, again.score, again.epsilon) == (found.settings, found.score, found.epsilon)
    assert (folder / "ledger.jsonl").read_bytes() == before, "it was paid for once"


@pytest.mark.parametrize(
    "change",
    [
        *({"seeds": [1]}, {"ended": -1}, {"begun": 3}, {"lost": [1]}, {"best": 1}, {"score": None}),
        *({"candidates": None}, {"more": 1}, {"begun": "2"}),
    ],
    ids=str,
)
def test_a_state_that_no_tuning_writes_is_refused(change, tmp_path):
    """Trials that are run again, or beside those that were drawn, are paid for by nobody."""
    state = State("x", [{"lr": 1.0}] * 3, [1, 2, 3], [1.0] * 3, begun=2, ended=1, best=0, score=0.5)
    state.write(tmp_path)
    assert State.read(tmp_path) == state
    file = tmp_path / "state.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(Corrupted, match="state of a private tuning"):
        State.read(tmp_path)


def test_a_secure_trial_that_was_interrupted_is_lost():
    state = State("x", [{"lr": 1.0}] * 3, [1, 2, 3], [1.0] * 3, begun=2, ended=1, best=0, score=0.5)
    lost = state.continued(repeatable=False)
    assert (lost.ended, lost.lost, lost.best) == (2, [1], 0)
    assert state.continued(repeatable=True).begun == 1


@pytest.mark.parametrize(("keys", "again"), [({}, 1), ({"device": "cuda"}, 2), ({"secure_rng": True}, 2)])
def test_only_a_trial_that_comes_out_the_same_is_run_again(keys, again, tmp_path):
    (tmp_path / HIDDEN).mkdir()
    state = State("x", [{"clip_norm": 1.0}] * 3, [1, 2, 3], [1.0] * 3, begun=2, ended=1)
    question = Question.of({**KEYS, **keys}, SPACE, "private", trials=3, task=TASK)
    found = private._begun(question, None, tmp_path, "x", state)
    assert found.ended == State.read(tmp_path / HIDDEN).ended == again


def test_noise_that_is_chosen_on_the_way_has_no_price(tmp_path):
    keys = {name: KEYS[name] for name in ("cohort", "rounds", "epsilon", "delta")} | {"method": "adap_dp_fl"}
    task = replace(TASK, public_samples=(TASK.test_inputs, TASK.test_labels))
    with pytest.raises(CloisterError, match="chooses it on the way"):
        cl.tune(keys, {"batch_size": [4, 8]}, on="private", trials=2, task=task, folder=tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_a_killed_secure_tuning_repeats_no_draw_and_no_trial(tmp_path, monkeypatch):
    """Another number of trials, other candidates, or a trial with new noise would be a tuning that nobody paid for."""
    folder, secure, drawn, ran = tmp_path / "s", {"secure_rng": True}, [], []

    def four(count, space, streams):
        assert streams.secure, "whoever knows the seed would know how many trials there were, and which"
        drawn.append(draw(count, space, streams))
        candidates, seeds = drawn[-1]
        return [candidates[0] for _ in range(4)], [seeds[0] + number for number in range(4)]

    def counted(self, values, task, folder, **options):
        ran.append((folder.name, values["seed"]))
        return usual(self, values, task, folder=folder, **options)

    usual = Question.run
    monkeypatch.setattr(private, "draw", four)
    for number in (2, 1):  # the second trial, and then, when the tuning goes on, the third
        monkeypatch.setattr(Question, "run", counted)
        with monkeypatch.context() as patch:
            killed_in_trial(patch, number)
            with pytest.raises(Killed):
                go(folder, keys=secure)
    found = go(folder, keys=secure)
    assert len(drawn) == 1
    assert [name for name, _ in ran] == ["trial-0", "trial-3"], "trials that were under way are lost"
    assert ran[1][1] == ran[0][1] + 3, "the seed that was drawn for it"
    assert len(Ledger.open(folder / "ledger.jsonl", writable=False).entries) == 1
    assert found.certificate.secure_rng


@pytest.mark.parametrize("nothing", ["drawn", "scored"])
def test_where_no_trial_can_be_selected_nothing_of_any_is_left(nothing, tmp_path, monkeypatch):
    folder, drawn = tmp_path / "n", [] if nothing == "drawn" else [{"clip_norm": 1.0, "rounds": 1}] * 2
    monkeypatch.setattr(private, "draw", lambda *args: (drawn, [1, 2][: len(drawn)]))
    monkeypatch.setattr(private, "_score", lambda *args: None)
    with pytest.raises(CloisterError, match="is zero" if nothing == "drawn" else "no trial came to a score"):
        go(folder)
    assert {path.name for path in folder.iterdir()} == {"ledger.jsonl", "tuning.json"}
    assert "settings" not in json.loads((folder / "tuning.json").read_text())
    with pytest.raises(CloisterError, match="without a trial to select"):
        go(folder)


def test_what_a_trial_notes_is_not_shown(tmp_path, monkeypatch):
    """A note of a run may say what it released: of one that is not selected, nobody paid for that."""
    usual = Question.run

    def run(self, *args, **options):
        note("half of all gradient values are below 0.001")
        return usual(self, *args, **options)

    monkeypatch.setattr(Question, "run", run)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        go(tmp_path / "q", keys={"seed": SEED})
    assert not [one for one in shown if "gradient values" in str(one.message)]


@pytest.mark.parametrize("sign", [1, -1])
def test_the_choice_is_by_what_was_released_and_paid_for(sign):
    """The exact scores of the same lines are nobody's to choose by."""
    exact = (0.9, 0.8, 0.7) if sign == 1 else (0.1, 0.2, 0.3)
    lines = [{"accuracy": one, "loss": one, "validation": 0.5 - sign * one / 10} for one in exact]
    run = SimpleNamespace(monitor="accuracy" if sign == 1 else "loss", history=[*lines, {"round": 9, "accuracy": 1.0}])
    assert private._score(run, {}) == sign * lines[-1]["validation"]
    assert private._score(run, {"restore_best": True}) == max(sign * line["validation"] for line in lines)
    broken = SimpleNamespace(monitor="accuracy", history=[{"accuracy": 0.9, "validation": math.nan}])
    assert private._score(broken, {}) is private._score(SimpleNamespace(monitor="accuracy", history=[]), {}) is None


def test_where_samples_are_protected_every_client_pays_for_all_trials(tmp_path):
    keys = {**KEYS, "method": "pfl", "batch_size": 16, "clip_norm": 1.0, "rounds": 1, "seed": SEED}
    keys.pop("local_steps")
    space = {"lr": [0.1, 0.5]}
    found = cl.tune(keys, space, on="private", trials=1, task=TASK, folder=tmp_path / "p")
    entries = Ledger.open(tmp_path / "p" / "ledger.jsonl", writable=False).entries
    assert {entry.unit for entry in entries} == {sample_account(one) for one in range(TASK.clients)}
    assert {(entry.what, type(entry.event)) for entry in entries} == {("tuning", BestOfTrials)}
    assert found.certificate.unit == "sample"


def test_candidates_that_ask_for_other_shares_of_the_budget_are_priced_apart():
    prices = object.__new__(TrialPrices)
    prices.question = Question.of({**KEYS, "clip_norm": 1.0}, {"center": [0.02, 0.6]}, "private", trials=3, task=TASK)
    prices.task, prices.reference = TASK, 1.0
    assert prices._releases({"center": 0.02}) == prices._releases({"center": 0.02})
    assert prices._releases({"center": 0.02}) != prices._releases({"center": 0.6})


def test_the_price_of_a_trial_is_that_of_whoever_loses_most():
    prices = object.__new__(TrialPrices)
    prices.count, prices.delta = TrialCount(3.0), 1e-3
    once, thrice = Counter({Gaussian(4.0): 1}), Counter({Gaussian(4.0): 3})
    assert (
        prices._best([once, thrice]) == prices._best([thrice, once]) == prices._best([thrice]) != prices._best([once])
    )


def test_the_best_trial_is_selected_and_the_first_of_several(tmp_path, monkeypatch):
    scores = [0.2, 0.7, 0.7, 0.1, None]
    clips = [{"clip_norm": 0.1 * (1 + number), "rounds": 1} for number in range(len(scores))]
    left = iter(scores)
    monkeypatch.setattr(private, "draw", lambda *args: (clips, list(range(len(scores)))))
    monkeypatch.setattr(private, "_score", lambda *args: next(left))
    found = go(tmp_path / "m")
    assert (found.settings, found.score) == (clips[1], 0.7)


def test_a_trial_that_costs_more_than_planned_is_not_released(tmp_path, monkeypatch):
    def costly(question, settings, epsilon):
        return trial_values(question, settings, 1.1 * epsilon)

    monkeypatch.setattr(private, "trial_values", costly)
    with pytest.raises(CloisterError, match="keeps to its price"):
        go(tmp_path / "c", keys={"seed": SEED})
    assert not (tmp_path / "c" / "best.toml").exists()


def test_draws_depend_on_the_seed_alone_or_on_nothing_that_is_known():
    space = {"clip_norm": Range(0.1, 3.0), "lr": Choice((0.1, 1.0))}
    count = TrialCount(20.0, 1.0)
    one, same, other = (draw(count, space, Streams(seed, run="tuning")) for seed in (1, 1, 2))
    assert one == same != other
    assert len(set(one[1])) == len(one[1]), "every trial has a seed of its own"
    secure = [draw(count, space, Streams(1, secure=True)) for _ in range(2)]
    assert secure[0][0] != secure[1][0] or secure[0][1] != secure[1][1]
    trials = [len(draw(count, space, Streams(seed, run="tuning"))[0]) for seed in range(200)]
    assert abs(sum(trials) / 200 - 20) < 6 * 20 / math.sqrt(200)
    lrs = [candidate["lr"] for seed in range(30) for candidate in draw(count, space, Streams(seed))[0]]
    assert abs(lrs.count(1.0) / len(lrs) - 0.5) < 6 * 0.5 / math.sqrt(len(lrs))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"method": "pfl", "batch_size": 8, "cohort": "poisson", "sampling_rate": 0.5}, "every client in every round"),
        ({"method": "ddgauss"}, "Gaussian noise on real sums"),
        ({"method": "fedavg", "epsilon": None, "delta": None}, "a private method"),
        ({"epsilon": None}, "one epsilon for the whole tuning"),
        ({"epsilon": [1.0, 2.0]}, "one epsilon for the whole tuning"),
        ({"noise_multiplier": 1.0}, "noise that follows from epsilon"),
        ({"record": ["norms"]}, "trials which are not released"),
        ({"validation": "public"}, "private validation"),
        ({"personalize": "head"}, "no personalize"),
    ],
)
def test_what_has_no_price_is_refused_before_anything_is_written(keys, words, tmp_path):
    given = {name: value for name, value in {**KEYS, **keys}.items() if value is not None}
    if given["method"] == "pfl":
        given.pop("local_steps")
    searched = {"lr": (0.1, 1.0)} if given["method"] in ("pfl", "fedavg") else {"clip_norm": (0.1, 1.0)}
    with pytest.raises(CloisterError, match=words):
        cl.tune(given, searched, on="private", trials=2, task=TASK, folder=tmp_path / "d")
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("searched", "words"),
    [
        ({"sampling_rate": (0.3, 1.7)}, "sampling_rate"),
        ({"batch_size": [8, 0]}, "batch_size"),
        ({"method": ["dp_fedavg", "pfl"]}, "local_steps"),
    ],
    ids=["end-of-a-range", "last-of-a-list", "another-method"],
)
@pytest.mark.parametrize("seed", range(3))
def test_values_that_no_trial_can_have_are_refused_whether_they_are_drawn_or_not(searched, words, seed, tmp_path):
    """Else the number of trials would not have the distribution that its price is for."""
    given = {**KEYS, "clip_norm": 1.0, "seed": seed}
    given |= {"cohort": "poisson", "sampling_rate": 0.5} if "sampling_rate" in searched else {}
    fixed = {name: one for name, one in given.items() if name not in searched}
    with pytest.raises(CloisterError, match=words):
        cl.tune(fixed, searched, on="private", trials=1, task=TASK, folder=tmp_path / "d")
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("searched", "second"),
    [
        ({"method": ["dp_fedavg", "pfl"]}, {"method": "pfl"}),
        ({"batch_sampling": ["poisson", "fixed_size"]}, {"batch_sampling": "fixed_size"}),
    ],
    ids=["units", "neighbors"],
)
def test_candidates_whose_guarantees_are_about_different_neighbors_have_no_common_price(searched, second):
    keys = {"method": "pfl", **{name: value for name, value in KEYS.items() if name not in ("method", "local_steps")}}
    keys = {name: value for name, value in keys.items() if name not in searched}
    keys |= {"clip_norm": 1.0, "local_epochs": 1, "batch_size": 1000}
    prices = TrialPrices(Question.of(keys, searched, "private", trials=3, task=TASK), TASK, TrialCount(3.0), 6.0, 1e-3)
    with pytest.raises(CloisterError, match="for the same neighbors"):
        prices.epsilon_of(second)


@pytest.mark.parametrize(("allowed", "allowed_hat", "spent"), [(4.0, 1.0, 1.0), (4.0, 0.5, 2.0), (1.0, 1.0, 4.0)])
def test_a_trial_keeps_to_its_price_at_both_orders_and_in_every_account(allowed, allowed_hat, spent):
    """A Gaussian release of noise multiplier 1 has the divergence order / 2."""
    prices = object.__new__(TrialPrices)
    prices.price = TrialPrice(8.0, allowed, 2.0, allowed_hat)
    once, thrice = Counter({Gaussian(1.0): 1}), Counter({Gaussian(1.0): 3})
    assert prices.excess([once]) == pytest.approx(spent)
    assert prices.excess([once, thrice]) == prices.excess([thrice, once]) == pytest.approx(3 * spent)


def test_a_folder_is_needed_for_the_ledger():
    with pytest.raises(CloisterError, match="a folder for the ledger"):
        go(None)


@pytest.mark.slow
@pytest.mark.parametrize("distribution", ["logarithmic", "poisson", 0.5])
@pytest.mark.parametrize(("epsilon", "delta", "trials"), [(1.0, 1e-5, 5), (4.0, 1e-3, 30)])
def test_every_distribution_stays_within_the_budget(distribution, epsilon, delta, trials):
    from cloister.studies.tuning.study import count_of

    keys = {**KEYS, "cohort": "poisson", "sampling_rate": 0.3, "epsilon": epsilon, "delta": delta}
    question = Question.of(keys, {"clip_norm": (0.1, 1.0), "rounds": [5, 20]}, "private", trials=trials, task=TASK)
    count = count_of(trials, distribution)
    prices = TrialPrices(question, TASK, count, epsilon, delta)
    ledger = Ledger.create(None, "tuning", {"client": cl.Budget(epsilon, delta)})
    ledger.charge("client", prices.event, round=1, repeatable=False)
    for rounds in (5, 20):
        settings = {"clip_norm": 0.5, "rounds": rounds}
        own = prices.epsilon_of(settings)
        assert 0.9 < prices.excess(prices._planned(settings, own)) <= 1 + 1e-9
