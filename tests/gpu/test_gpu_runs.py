"""Whole runs on a GPU: resumed to the same bits, and with an engine that was chosen."""

from __future__ import annotations

import pytest
import torch

import cloister as cl
from cloister.engine import ENGINES
from cloister.engine.cuda.convolutions import CHOSEN
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
@pytest.mark.parametrize("name", ["dp_fedavg", "dp_fed"])
def test_a_run_resumes_to_the_same_bits(name, engine, tmp_path, monkeypatch):
    with killed_in_round(monkeypatch, 4):
        go(name, toy_task(), engine, folder=tmp_path / "torn", checkpoint_every=2)
    resumed = go(name, toy_task(), engine, folder=tmp_path / "torn", resume=True)
    whole = go(name, toy_task(), engine, folder=tmp_path / "whole")
    assert torch.equal(vector(whole), vector(resumed))
    ledgers = [(tmp_path / run / "ledger.jsonl").read_bytes() for run in ("whole", "torn")]
    assert ledgers[0] == ledgers[1]


def test_convolutions_that_were_chosen_by_the_clock_are_resumed(tmp_path, monkeypatch):
    """As in a new process, where nothing is known of what was fastest before."""
    model = {"model": lambda: cl.models.cnn((3, 8, 8), 4, width=4)}
    with killed_in_round(monkeypatch, 4):
        go("dp_fedavg", pictures_task(), "graphed", folder=tmp_path / "torn", checkpoint_every=2, **model)
    CHOSEN.clear()
    resumed = go("dp_fedavg", pictures_task(), "graphed", folder=tmp_path / "torn", resume=True, **model)
    whole = go("dp_fedavg", pictures_task(), "graphed", folder=tmp_path / "whole", **model)
    assert torch.equal(vector(whole), vector(resumed))


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
