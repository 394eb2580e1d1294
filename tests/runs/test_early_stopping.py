"""Validation on public samples: when a run ends by it, which model is kept, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import cloister as cl
from cloister.errors import CloisterError
from cloister.runs import prepare, report
from cloister.runs.folder import RunFolder
from cloister.runs.request import Options
from cloister.runs.selection import Kept, Selection
from conftest import killed_in_round, toy_task

METHOD = cl.methods.dp_fedavg(clip_norm=0.5, lr=0.5, local_steps=2, noise_multiplier=3.0)
KEYS = {"rounds": 12, "delta": 1e-3, "engine": "loop", "checkpoint_every": 2, "progress": False, "evaluate_every": 1}


def public_task():
    people = toy_task(seed=7).population
    return replace(toy_task(), public_samples=(people.inputs[:9], people.labels[:9]))


def run(folder=None, task=None, **more):
    keys = {**KEYS, "validation": "public", "monitor": "loss", **more}
    return cl.run(METHOD, public_task() if task is None else task, **keys, folder=folder)


def flat(model) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@given(st.lists(st.floats(0, 9) | st.just(math.nan), min_size=1, max_size=30), st.integers(1, 5), st.floats(0, 1))
def test_patience_is_counted_as_by_hand(values, patience, least):
    """Against a plain loop: the first evaluation after which `patience` in a row were no better than the best."""
    selection, kept, over = Selection(validation="public", patience=patience, min_delta=least, every=1), Kept(), None
    for number, value in enumerate(values, 1):
        kept = selection.judged(kept, number, torch.zeros(1), value)
        if over is None and selection.why_over(kept, number):
            over = number
    best, last, expected = math.inf, 0, None
    for number, value in enumerate(values, 1):
        if not math.isnan(value) and (best == math.inf or value < best - least):
            best, last = value, number
        if expected is None and number - last >= patience:
            expected = number
    assert over == expected


@pytest.fixture
def told(monkeypatch):
    """Validation that says what it is told to, round by round, and lists the models that it was shown."""

    def tell(values):
        seen = []

        def validate(number, w):
            seen.append(w.clone())
            return values[number - 1]

        monkeypatch.setattr(prepare, "public_validation", lambda *_: validate)
        return seen

    return tell


LOSSES = [9.0, 5.0, 7.0, 4.0, 4.5, 4.4, 4.3, 3.0, 2.0, 1.0, 0.5, 0.1]


def test_the_run_ends_when_patience_does_and_is_finished(told, tmp_path):
    told(LOSSES)
    found = run(tmp_path / "run", patience=3)
    assert len(found.history) == 7
    assert "which was best in round 4 (4)" in found.stopped
    assert [line["validation"] for line in found.history] == LOSSES[:7]
    assert (found.best_round, found.certificate.rounds_charged, found.certificate.rounds_planned) == (4, 7, 12)
    folder = RunFolder.open(tmp_path / "run")
    assert folder.finished
    gap = "when the run ended: what it had released decided it, so that the epsilon above is that of all planned rounds"
    assert [one for one in folder.certificate().not_covered if one.startswith(gap)]
    told(LOSSES)
    to_the_end = run(tmp_path / "whole")
    assert found.epsilon == pytest.approx(to_the_end.epsilon, rel=1e-6), "when it ended is a release, too"
    again = run(tmp_path / "run", patience=3, resume=True)
    assert (len(again.history), again.stopped) == (7, found.stopped)
    assert again.certificate == found.certificate
    assert torch.equal(flat(again.model), flat(found.model))


def test_without_patience_nothing_ends_it(told):
    told(LOSSES)
    found = run()
    assert (len(found.history), found.stopped, found.best_round) == (12, None, 12)


def test_patience_that_ends_with_the_last_round_stops_nothing(told):
    told([1.0, *[2.0] * 11])
    found = run(patience=11)
    assert (len(found.history), found.stopped) == (12, None)
    assert not [one for one in found.certificate.not_covered if one.startswith("when the run ended")]


@pytest.mark.parametrize("average", [None, 0.6])
def test_the_best_model_is_restored(told, tmp_path, average):
    seen = told(LOSSES)
    found = run(tmp_path / "run", patience=3, restore_best=True, average=average)
    assert found.best_round == 4
    assert torch.equal(flat(found.model), seen[3])
    assert not torch.equal(flat(found.model), seen[6])
    at = RunFolder.open(tmp_path / "run").load("cpu")
    assert torch.equal(at.result, flat(found.model))
    assert not torch.equal(at.result, at.newest)
    assert found.accuracy == found.history[3]["accuracy"] != found.history[6]["accuracy"]
    (row,) = report.run_figures({"run": RunFolder.open(tmp_path / "run")})
    assert row["accuracy"] == found.accuracy, "what is shown is the model that is kept"


def test_an_interrupted_run_stops_where_it_would_have(tmp_path, monkeypatch):
    """For real: with the loss of the models on public samples."""
    keys = {"patience": 2, "restore_best": True, "average": 0.5, "min_delta": 0.02}
    whole = run(tmp_path / "whole", **keys)
    rounds = len(whole.history)
    assert 2 < rounds < 12, "the test needs a run that stops"
    for number in (2, rounds):
        path = tmp_path / f"cut{number}"
        with killed_in_round(monkeypatch, number):
            run(path, **keys)
        again = run(path, **keys, resume=True)
        assert (len(again.history), again.stopped, again.best_round) == (rounds, whole.stopped, whole.best_round)
        assert (path / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("watch", ["loss", "accuracy"])
def test_what_is_watched_is_the_model_on_public_samples(watch):
    task = public_task()
    found = run(task=task, monitor=watch, rounds=3)
    inputs, labels = task.public_samples
    outputs = found.model(inputs.float()).detach()
    expected = {
        "loss": torch.nn.functional.cross_entropy(outputs, labels),
        "accuracy": (outputs.argmax(1) == labels).float().mean(),
    }
    assert found.history[-1]["validation"] == pytest.approx(float(expected[watch]), rel=1e-5)


def test_accuracies_are_better_the_larger_they_are(told):
    told([0.1, 0.5, 0.4, 0.45, *[0.9] * 8])
    found = run(monitor="accuracy", patience=2)
    assert (len(found.history), found.best_round) == (4, 2)


def test_when_it_is_validated_does_not_depend_on_the_clients_data():
    """How many samples clients have must not show in when a run ends, so that it follows from the rounds alone."""
    found = run(evaluate_every=None, rounds=4)
    assert [line["round"] for line in found.history if "validation" in line] == [1, 2, 3, 4]
    assert Selection.of(Options(validation="public"), 120).every == 3
    assert Selection.of(Options(validation="public", evaluate_every=7), 120).every == 7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"validation": "private"}, "an epsilon for a run that asks for validation"),
        ({"validation": "test"}, "validation to be one of none, public, private, found 'test'"),
        ({"validation": None}, "validation to be one of"),
        ({"task": toy_task()}, "public samples to validate on, found 'none in toy': set some aside (public_samples"),
        ({"patience": 0}, "patience to be a whole number of at least 1, found 0"),
        ({"patience": 2.5}, "patience to be a whole number"),
        ({"patience": True}, "patience to be a whole number"),
        ({"patience": 3, "validation": "none"}, "validation beside patience, found 'none': add validation = public"),
        ({"restore_best": True, "validation": "none"}, "validation beside restore_best"),
        ({"min_delta": 0.1, "validation": "none"}, "validation beside min_delta"),
        ({"monitor": "auc"}, "a metric to be one of"),
        ({"min_delta": -0.1}, "min_delta >= 0"),
        ({"min_delta": math.nan}, "min_delta >= 0"),
        ({"restore_best": "yes"}, "restore_best to be True or False"),
        ({"average": 1.0}, "0 < average < 1, found 1.0"),
        ({"average": 0.0}, "0 < average < 1"),
        ({"average": -0.5}, "0 < average < 1"),
        ({"average": "0.9"}, "0 < average < 1"),
        ({"average": math.nan}, "0 < average < 1"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(change, message, tmp_path):
    with pytest.raises(CloisterError) as found:
        run(tmp_path / "run", **change)
    assert message in str(found.value)
    assert len(str(found.value).splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_an_accuracy_of_labels_that_are_no_classes_is_refused():
    numbers = torch.rand(30, 4), torch.rand(30), torch.arange(30) // 5
    task = cl.data.from_arrays(*numbers, loss="mse", public_samples=5)
    with pytest.raises(CloisterError, match="accuracy"):
        run(task=task, monitor="accuracy")


@pytest.mark.slow
def test_who_has_not_come_yet_might_have_lost_most():
    """A client with few samples loses more in a round; that the run ended before it came depends on releases."""
    sizes = [400] * 9 + [20]
    owners = [client for client, size in enumerate(sizes) for _ in range(size)]
    x = torch.randn(len(owners), 4, generator=torch.Generator().manual_seed(0))
    task = cl.data.from_arrays(x, (x[:, 0] > 0).long(), owners, classes=2)
    method = cl.methods.pfl(clip_norm=0.5, lr=0.5, batch_size=16, noise_multiplier=1.0)

    class Stop(cl.Callback):
        def on_round(self, record):
            return cl.StopTraining("enough")

    keys = {"rounds": 20, "delta": 1e-3, "engine": "loop", "progress": False, "cohort": cl.poisson(0.3)}
    whole = cl.run(method, task, **keys)
    ended = cl.run(method, task, **keys, callbacks=[Stop()])
    assert ended.epsilon >= whole.epsilon
