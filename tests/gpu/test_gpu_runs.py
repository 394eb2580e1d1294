"""Whole runs on a GPU: resumed to the same bits, and with an engine that was chosen."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

import cloister as cl
from cloister.engine import ENGINES
from cloister.engine.cuda.tiles import CHOSEN
from cloister.errors import RepeatedRounds
from cloister.runs.folder import RunFolder
from conftest import killed_in_round, toy_task
from contract.catalogue import METHODS
from gpu.device import DEVICE, ON_DEVICE, REAL
from gpu.test_gpu_engines import pictures_task

pytestmark = ON_DEVICE


def go(name, task, engine, **more):
    named = engine if REAL or engine not in ("graphed", "compiled") else "vectorized"
    settings = {"rounds": 5, "cohort": cl.poisson(0.6), "delta": 1e-3, "progress": False, **more}
    return cl.run(METHODS[name](), task, engine=named, device=DEVICE, **settings)


def vector(run) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in run.model.parameters()])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_without_noise_resumes_to_the_same_bits(engine, tmp_path, monkeypatch):
    """Everybody takes part: who does is drawn anew on a GPU. Fused kernels are chosen by the clock whenever a program
    is loaded, and another one adds in another order: theirs are the same numbers, and not the same bits."""
    with killed_in_round(monkeypatch, 4):
        go("fedavg", toy_task(), engine, folder=tmp_path / "torn", checkpoint_every=2, cohort=cl.full())
    resumed, whole = (
        go("fedavg", toy_task(), engine, folder=tmp_path / path, cohort=cl.full(), **more)
        for path, more in (("torn", {"resume": True}), ("whole", {}))
    )
    if engine == "compiled":
        torch.testing.assert_close(vector(whole), vector(resumed), rtol=1e-5, atol=1e-6)
    else:
        assert torch.equal(vector(whole), vector(resumed))


@pytest.mark.parametrize("engine", ["graphed", "auto"])
@pytest.mark.parametrize("name", ["dp_fedavg", "dp_fed"])
def test_a_private_run_that_is_resumed_pays_for_what_it_draws_anew(name, engine, tmp_path, monkeypatch):
    """A GPU may round differently the next time, so a round that is computed again there is a new release."""
    everybody = {"cohort": cl.full()}
    with killed_in_round(monkeypatch, 4):
        go(name, toy_task(), engine, folder=tmp_path / "torn", checkpoint_every=2, **everybody)
    with pytest.warns(RepeatedRounds, match="round 3") if REAL else nullcontext():
        resumed = go(name, toy_task(), engine, folder=tmp_path / "torn", resume=True, **everybody)
    whole = go(name, toy_task(), engine, folder=tmp_path / "whole", **everybody)
    rounds = [
        dict.fromkeys(entry.round for entry in RunFolder.open(tmp_path / path).ledger().entries)
        for path in ("whole", "torn")
    ]
    assert list(rounds[0]) == list(rounds[1]) == [1, 2, 3, 4, 5]
    if REAL:
        assert not torch.equal(vector(whole), vector(resumed))
        assert resumed.epsilon > whole.epsilon
    else:
        assert torch.equal(vector(whole), vector(resumed))
        assert resumed.epsilon == whole.epsilon


def test_convolutions_that_were_chosen_by_the_clock_are_resumed(tmp_path, monkeypatch):
    """As in a new process, where nothing is known of what was fastest before."""
    more = {"model": lambda: cl.models.cnn((3, 8, 8), 4, width=4), "cohort": cl.full()}
    with killed_in_round(monkeypatch, 4):
        go("fedavg", pictures_task(), "compiled", folder=tmp_path / "torn", checkpoint_every=2, **more)
    chosen = dict(CHOSEN)
    CHOSEN.clear()
    resumed = go("fedavg", pictures_task(), "compiled", folder=tmp_path / "torn", resume=True, **more)
    assert chosen.items() <= CHOSEN.items()
    assert not REAL or chosen
    whole = go("fedavg", pictures_task(), "compiled", folder=tmp_path / "whole", **more)
    torch.testing.assert_close(vector(whole), vector(resumed), rtol=1e-4, atol=1e-6)


def test_samples_on_the_disk_are_copied_to_the_device(tmp_path):
    task = toy_task()
    people = task.population
    pairs = zip(
        people.inputs.float().split(people.sizes.tolist()), people.labels.split(people.sizes.tolist()), strict=True
    )
    cl.data.write_array_folder(tmp_path / "toy", pairs, test=(task.test_inputs.float(), task.test_labels))
    stored = cl.data.from_path(tmp_path / "toy", classes=3, model=task.model)
    placed = stored.population.to(torch.device(DEVICE), torch.float32)
    assert (placed.inputs.device.type, placed.stored is None) == (DEVICE, REAL)
    memory = replace(stored, population=replace(people, inputs=people.inputs.float()))
    assert stored.fingerprint() == memory.fingerprint()
    found, expected = (go("fedavg", one, "graphed", cohort=cl.full()) for one in (stored, memory))
    assert torch.equal(vector(found), vector(expected))


def test_auto_computes_what_the_loop_computes():
    """Without noise: with it, every engine has noise of its own."""
    found, expected = (go("fedavg", toy_task(), engine, dtype="float64") for engine in ("auto", "loop"))
    assert found.engine in ENGINES
    assert next(found.model.parameters()).device.type == DEVICE
    torch.testing.assert_close(vector(found), vector(expected), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_a_run_with_coarser_products_learns_and_costs_the_same(precision):
    if not REAL:
        pytest.skip("a CPU has no such products")
    exact, coarse = (
        go("dp_fedavg", cl.data.digits(clients=40), "graphed", precision=one) for one in ("exact", precision)
    )
    assert coarse.epsilon == exact.epsilon
    assert abs(coarse.accuracy - exact.accuracy) < 0.1


@pytest.mark.parametrize("engine", ["graphed", "compiled"])
@pytest.mark.parametrize("name", ["dp_fedavg", "adap_dp_fl", "fed_spa"])
def test_measuring_rounds_leaves_the_run_as_it_is(name, engine):
    """The same model and price with and without; where batches are not drawn anew, norms are those of a CPU."""
    more = {"cohort": cl.full(), "rounds": 3, "epsilon": 290.0}
    record = ["norms", "clipping", "gradients", "cosine", "signal", "sparsity", "train", "thresholds"]
    alone, measured = (go(name, toy_task(), engine, record=asked, **more) for asked in (None, record))
    torch.testing.assert_close(vector(alone), vector(measured), rtol=1e-5, atol=1e-7)
    assert alone.epsilon == measured.epsilon
    assert len(measured.recorded.by_round("gradients/mean")) == 3
    if name == "dp_fedavg":
        settings = {"delta": 1e-3, "progress": False, "engine": "loop", **more}
        there = cl.run(METHODS[name](), toy_task(), record=record, **settings).recorded
        for quantity in ("norms/mean", "clipping/mean", "gradients/mean"):
            assert measured.recorded.by_round(quantity)[1] == pytest.approx(there.by_round(quantity)[1], rel=1e-3)
