"""Callbacks: what they are told, how they end a run, and what happens when they fail."""

from __future__ import annotations

import itertools

import pytest
import torch

import cloister as cl
from cloister.errors import CloisterError, Note
from cloister.runs.folder import RunFolder
from cloister.server import optimizers
from conftest import toy_task

METHOD = cl.methods.dp_fedavg(clip_norm=0.5, lr=0.5, local_steps=2, noise_multiplier=1.0, lr_decay=0.5)
KEYS = {"rounds": 4, "delta": 1e-3, "engine": "loop", "checkpoint_every": 2, "progress": False, "evaluate_every": 2}


class Heard(cl.Callback):
    """Writes down all that it is told; `on(record)` may answer."""

    def __init__(self, on=lambda record: None):
        self.said, self.on = [], on

    def on_start(self, description):
        self.said.append(("start", description))

    def on_round(self, record):
        self.said.append(("round", record))
        return self.on(record)

    def on_evaluate(self, record):
        self.said.append(("evaluate", record))

    def on_end(self, run):
        self.said.append(("end", run))

    @property
    def records(self):
        return [what for kind, what in self.said if kind == "round"]


def run(*callbacks, **more):
    return cl.run(METHOD, toy_task(), **{**KEYS, "cohort": cl.poisson(0.5), **more}, callbacks=list(callbacks))


def test_everything_is_told_in_order():
    heard = Heard()
    found = run(heard)
    kinds = [kind for kind, _ in heard.said]
    assert kinds == ["start", "round", "round", "evaluate", "round", "round", "evaluate", "end"]
    assert heard.said[0][1].configuration_hash == found.certificate.configuration_sha256
    assert heard.said[-1][1] is found
    assert [record.round for record in heard.records] == [1, 2, 3, 4]


def test_a_record_keeps_apart_what_is_released_and_what_is_not():
    heard = Heard()
    found = run(heard)
    for record, line in zip(heard.records, found.history, strict=True):
        lr = 0.5 * 0.5 ** (record.round - 1)
        expected = {"noise_multiplier": 1.0, "expected_cohort": 4.0, "lr": lr, "server_lr": 1.0}
        assert record.released == {"epsilon": line["epsilon"], **expected}
        told = {name: value for name, value in line.items() if name not in ("round", "epsilon") and value is not None}
        assert record.not_private == told
    assert {"cohort", "accuracy", "loss", "nonfinite_updates", "seconds"} <= heard.records[-1].not_private.keys()
    assert heard.records[-1].released["epsilon"] == pytest.approx(found.epsilon)


def test_what_a_record_calls_released_does_not_depend_on_the_clients_data(monkeypatch):
    """The same with all the clients' labels turned round, but for noise that is drawn anew."""
    task, other, both = toy_task(), toy_task(), []
    other.population.labels.copy_(2 - other.population.labels)
    for one in (task, other):
        heard = Heard()
        cl.run(METHOD, one, **KEYS, callbacks=[heard])
        both.append([record.released for record in heard.records])
    assert both[0] == both[1]


def test_the_noise_of_a_record_falls_with_that_of_the_method(monkeypatch):
    falling = itertools.count()
    monkeypatch.setattr(optimizers, "loss_on", lambda *_: torch.tensor(-float(next(falling))))
    method = cl.methods.adap_dp_fl(
        clip_norm=0.5, lr=0.1, batch_size=4, local_steps=1, noise_multiplier=3.0, noise_decay=0.5
    )
    heard, people = Heard(), toy_task(seed=7).population
    task = cl.data.from_arrays(
        people.inputs, people.labels, torch.arange(34) // 5, classes=3, public_samples=(people.inputs, people.labels)
    )
    cl.run(method, task, rounds=9, epsilon=90.0, delta=1e-3, engine="loop", progress=False, callbacks=[heard])
    noises = [record.released["noise_multiplier"] for record in heard.records]
    assert noises[0] == 3.0
    assert all(later in (before, before / 2) for before, later in itertools.pairwise(noises))
    assert noises[-1] < 3.0


def raising(record):
    if record.round == 2:
        raise cl.StopTraining("enough")


@pytest.mark.parametrize(
    ("on", "reason"),
    [
        (raising, "enough"),
        (lambda record: cl.StopTraining("enough") if record.round == 2 else None, "enough"),
        (lambda record: cl.StopTraining if record.round == 2 else None, "the callback Heard ended the run"),
    ],
    ids=["raised", "returned", "class"],
)
def test_a_callback_ends_the_run_and_the_certificate_says_so(on, reason, tmp_path):
    folder = tmp_path / "run"
    found = run(Heard(on), folder=folder)
    assert (found.stopped, len(found.history), found.certificate.rounds_charged) == (reason, 2, 2)
    gap = "a callback ended the run: where it looked at what is not private"
    assert [one for one in found.certificate.not_covered if one.startswith(gap)]
    assert RunFolder.open(folder).certificate() == found.certificate, "computed afresh, with the same gap"
    again = run(folder=folder, resume=True)
    assert (again.stopped, len(again.history)) == (reason, 2), "a run that was ended is not continued"


def test_a_run_that_is_stopped_before_it_begins_has_released_nothing():
    class Never(cl.Callback):
        def on_start(self, description):
            raise cl.StopTraining("not today")

    found = run(Never())
    assert (found.stopped, found.history, found.certificate.released) == ("not today", [], "nothing yet")


def test_a_callback_that_fails_is_named_and_the_run_can_be_resumed(tmp_path):
    def fails(record):
        if record.round == 3:
            raise KeyError("no such\nkey")

    with pytest.raises(CloisterError) as found:
        run(Heard(fails), folder=tmp_path / "run")
    message = str(found.value)
    assert message.startswith("Expected on_round of the callback Heard to return, found KeyError")
    assert len(message.splitlines()) == 1
    assert str(tmp_path / "run") in message
    whole, again = run(folder=tmp_path / "whole"), run(Heard(), folder=tmp_path / "run", resume=True)
    for one, other in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert again.epsilon == whole.epsilon, "the round that was computed again was paid for once"


def test_what_was_paid_for_is_not_lost_to_a_callback_that_fails_at_the_end():
    class Late(cl.Callback):
        def on_end(self, run):
            raise OSError("no network")

    with pytest.warns(Note, match="on_end of the callback Late to return, found OSError no network: the run itself is"):
        found = run(Late())
    assert len(found.history) == 4


def test_any_object_with_a_hook_will_do():
    class Counts:
        rounds = 0

        def on_round(self, record):
            self.rounds += 1

    counts = Counts()
    run(counts)
    assert counts.rounds == 4


def test_callbacks_change_nothing():
    plain, watched = run(), run(Heard())
    for one, other in zip(plain.model.parameters(), watched.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert plain.certificate == watched.certificate


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Heard(), "callbacks to be a list, found"),
        (None, "callbacks to be a list, found None"),
        ([Heard], "found the class Heard: call the class"),
        ([print], "callbacks with some of on_start, on_round, on_evaluate, on_end"),
        (["csv"], "found 'csv': derive it from cloister.Callback"),
        ([None], "found None"),
    ],
    ids=["no list", "none", "class", "function", "word", "none in a list"],
)
def test_what_cannot_be_told_anything_is_refused(given, message, tmp_path):
    with pytest.raises(CloisterError) as found:
        cl.run(METHOD, toy_task(), **KEYS, callbacks=given, folder=tmp_path / "run")
    assert message in str(found.value)
    assert not list(tmp_path.iterdir())
