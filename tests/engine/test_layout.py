"""One layout for all chunks of a run: enough places, few of them empty."""

from __future__ import annotations

import math
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch.utils._pytree import tree_leaves

import cloister as cl
from cloister import engine as engines
from cloister.engine.chunking import constant_places, same_program
from cloister.engine.cuda import switching
from cloister.engine.disk_cache import DiskCache
from cloister.engine.gradients import grad
from cloister.engine.made_up import made_up_clients
from cloister.errors import Note
from conftest import federation, toy_task


def fed(name: str, expected: float, clients: int) -> SimpleNamespace:
    return SimpleNamespace(
        cohort=SimpleNamespace(name=name), denominator=expected, population=SimpleNamespace(clients=clients)
    )


@pytest.mark.parametrize(("expected", "most", "places"), [(50, 1000, 50), (50, 20, 17), (1000, 300, 250), (1, 9, 1)])
def test_cohorts_of_one_size_leave_no_place_empty(expected, most, places):
    assert constant_places(fed("fixed_size", expected, 10**6), most) == places


@pytest.mark.parametrize("expected", [3, 20, 120, 1000, 20_000])
def test_cohorts_that_are_drawn_rarely_need_another_chunk_and_waste_little(expected):
    """By simulation: 4,000 cohorts with a seed."""
    sizes = torch.poisson(torch.full((4000,), float(expected)), torch.Generator().manual_seed(0)).clamp(min=1)
    places = constant_places(fed("poisson", expected, 10**9), 10**9)
    used = (sizes / places).ceil() * places
    best = min(float(((sizes / p).ceil() * (p + 8)).mean()) for p in range(1, 2 * expected, max(1, expected // 50)))
    assert float(((sizes / places).ceil() * (places + 8)).mean()) < 1.05 * best
    assert used.mean() < expected + 3 * math.sqrt(expected) + 1


def test_processes_share_a_cohort():
    whole, part = (constant_places(fed("poisson", 120, 3000), 10**6, processes) for processes in (1, 4))
    assert whole / 4 <= part < whole / 2


def test_what_is_remembered_outlives_a_process_and_damage(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    DiskCache("x.json").remember("a", [1, 2])
    DiskCache("x.json").remember("b", "c")
    assert DiskCache("x.json").recall("a") == [1, 2]
    assert DiskCache("y.json").recall("a") is None
    (tmp_path / "cloister" / "x.json").write_text("[]")
    assert DiskCache("x.json").recall("a") is None
    (tmp_path / "cloister" / "x.json").write_text("{")
    DiskCache("x.json").remember("a", 3)
    assert DiskCache("x.json").recall("a") == 3
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cloister" / "x.json"))  # where nothing can be written
    nowhere = DiskCache("z.json")
    nowhere.remember("a", 4)
    assert nowhere.recall("a") == 4


@pytest.mark.parametrize("has_aux", [False, True])
@pytest.mark.parametrize("several", [False, True])
def test_gradients_are_those_of_torch(has_aux, several):
    """Under vmap, with arguments that the value does not depend on, and of a value that depends on none."""

    def function(argument, x):
        w = argument[0] if several else argument
        value = (torch.tanh(w @ x) ** 2).sum()
        return (value, w * 2) if has_aux else value

    w, x = torch.randn(4, 3, 5, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    argument = (w, x.clone()) if several else w
    found = torch.func.vmap(grad(function, has_aux=has_aux))(argument, x)
    expected = torch.func.vmap(torch.func.grad(function, has_aux=has_aux))(argument, x)
    for one, other in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        assert torch.equal(one, other)
        assert not one.requires_grad
    assert torch.equal(grad(lambda w: torch.ones(()))(w), torch.zeros_like(w))


@pytest.mark.parametrize("clients", [1, 2, 3, 8, 20])
def test_made_up_clients_have_the_largest_and_the_smallest_among_them(clients):
    task = toy_task(sizes=(5, 2, 9, 4, 7, 3, 1, 6))
    fed, _ = federation(cl.methods.fedavg(lr=0.1, local_epochs=1, batch_size=4), task=task)
    made = made_up_clients(fed, clients)
    sizes = made.population.counts
    assert len(sizes) == clients
    assert sizes.max() == 9
    assert clients == 1 or sizes.min() == 1
    assert made.denominator == fed.denominator
    assert not made.population.inputs.any()
    assert same_program(fed, made)


def test_a_run_that_cannot_be_compiled_goes_on_with_graphs_and_says_so(monkeypatch):
    """With stand-ins for graphs: none is captured anew, and it is described as it goes on."""
    played = []

    class Stub:
        def __init__(self, chunk, compiled=False):
            self.compiled, self._graphs = compiled, {}

        def total(self, plan):
            if self.compiled:
                raise ValueError("no such kernel")
            played.append(plan.offer.round)
            if not self._graphs:
                played.append("captured")
            self._graphs["shape"] = True
            return plan.offer.round

    monkeypatch.setattr(switching, "Graphed", Stub)
    monkeypatch.setattr(switching, "_made_up", lambda plan, clients: plan)
    monkeypatch.setattr(switching, "multiplying", lambda *_: nullcontext())
    monkeypatch.setattr(torch.cuda, "device", lambda *_: nullcontext())
    fed = SimpleNamespace(precision="exact")

    def play(engine, rounds):
        for number in rounds:
            offer = SimpleNamespace(round=number, w=torch.zeros(1))
            assert engine.total(SimpleNamespace(offer=offer, fed=fed)) == number

    engine = engines.Switching(5, compiled_from=3)
    with pytest.warns(Note, match="no such kernel"):
        play(engine, range(1, 4))
    play(engine, range(4, 8))
    assert played.count("captured") == 2, "at the start, and after the memory was given back"
    resumed = engines.restore(engines.describe(engine))
    played.clear()
    play(resumed, range(8, 10))
    assert played == [8, "captured", 9]
