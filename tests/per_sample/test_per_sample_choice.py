"""Which way to the gradients of single samples a model gets, when that is decided, and what it takes."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

import cloister.client.per_sample
from cloister.client.losses import cross_entropy
from cloister.client.objective import objective_of
from cloister.client.per_sample.vmap import PerSampleVmap
from cloister.errors import CloisterError
from per_sample.cases import batch_of, made, near


def test_a_model_that_cannot_take_one_sample_is_refused():
    class Squeezing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Linear(6, 3)

        def forward(self, x):
            return self.dense(x.unsqueeze(2).squeeze())

    labels = torch.tensor([0, 1, 2])
    objective = objective_of(Squeezing(), cross_entropy, torch.rand(3, 6), labels, 3)
    with pytest.raises(CloisterError, match="takes a single sample"):
        objective.per_sample.bytes_for(3)


class Choosing(nn.Module):
    def __init__(self, choose) -> None:
        super().__init__()
        self.choose, self.dense, self.last = choose, nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.dense(x)) if self.choose(x) else self.last(x)


def test_a_forward_pass_that_depends_on_the_batch_is_refused():
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    objective = objective_of(Choosing(lambda x: x.max() > 0), cross_entropy, torch.rand(3, 6), labels[:3], 3)
    with pytest.raises(CloisterError, match=r"takes a single sample.*torch\.where"):
        objective.per_sample.bytes_for(3)
    objective = objective_of(Choosing(lambda x: len(x) < 6), cross_entropy, torch.rand(3, 6), labels[:3], 3)
    w = torch.randn(objective.layout.size)
    for batch in (batch_of(torch.rand(6, 6), labels), batch_of(torch.rand(4, 6), labels[:4])):
        if len(batch.labels) == 6:
            with pytest.raises(CloisterError, match="alike"):
                objective.clipped(w, batch, 1.0)
        else:
            assert objective.clipped(w, batch, 1.0)[0].any()


def test_the_way_is_decided_once_and_not_before_it_is_needed(monkeypatch):
    decided = []
    monkeypatch.setattr(
        cloister.client.per_sample, "fitting", lambda *given: decided.append(given) or PerSampleVmap(given[0])
    )
    _, objective, w, batch = made("mlp")
    objective.gradient(w, batch)
    assert not decided
    threads = [threading.Thread(target=objective.clipped, args=(w, batch, 1.0)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(decided) == 1


def test_the_decision_leaves_the_random_numbers_alone():
    _, objective, *_ = made("mlp")
    before = torch.get_rng_state()
    assert objective.per_sample.bytes_for(10) > 0
    assert torch.equal(before, torch.get_rng_state())


def test_memory_grows_with_the_batch_and_is_bounded_where_samples_run_alone():
    _, objective, *_ = made("papernot")
    assert objective.per_sample.bytes_for(20) == 2 * objective.per_sample.bytes_for(10)
    _, lstm, *_ = made("char_lstm")
    most = lstm.per_sample.bytes_for(10**9)
    assert most == lstm.per_sample.bytes_for(10**8) <= 2**24 * 24


def test_samples_alone_are_computed_in_chunks(monkeypatch):
    _, objective, w, batch = made("own", samples=7)
    whole = objective.clipped(w, batch, 0.5)
    monkeypatch.setattr("cloister.client.per_sample.vmap._MOST_NUMBERS", 2 * len(w))
    pieces = objective.clipped(w, batch, 0.5)
    assert near(pieces[0], whole[0])
    assert near(pieces[1], whole[1])
