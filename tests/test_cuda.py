"""The same contract on a GPU: engines agree with each other and with the CPU; the noise has its scale."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import cloister as cl
from cloister.privacy.ledger import Ledger
from cloister.round import cohort_total, run_round
from cloister.views import images
from conftest import ENGINES, federation, toy_model, toy_task
from contract.audit import AUDITS
from contract.catalogue import COHORTS, METHODS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def pictures_task():
    random = np.random.default_rng(0)
    part = cl.data.Samples(random.integers(0, 256, (60, 3, 8, 8), dtype=np.uint8), np.arange(60) % 4)
    view = images((0.5, 0.4, 0.3), (0.2, 0.3, 0.4), pad=2, flip=True)
    return cl.data.deal(cl.data.RawData(part, part, 4), cl.data.dirichlet(6, 0.5), "pictures", view)


@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=str)
def test_engines_agree_on_the_gpu(make, dtype, tolerance):
    results = []
    for engine in ENGINES:
        task = toy_task()
        fed, w = federation(make(), COHORTS["poisson"], task, toy_model(task, dropout=True), dtype=dtype, device="cuda")
        state, ledger = fed.method.server.init(w), Ledger.create(None, "t", {})
        for number in (1, 2, 3):
            w, state, *_ = run_round(fed, ledger, engine, number, w, state)
        results.append(w)
    for result in results[1:]:
        assert (result - results[0]).norm() <= tolerance * results[0].norm()


@pytest.mark.parametrize("kind", ["mlp", "pictures"])
def test_the_gpu_computes_what_the_cpu_computes(kind):
    sums = []
    for device in ("cpu", "cuda"):
        task = toy_task() if kind == "mlp" else pictures_task()
        torch.manual_seed(0)
        net = toy_model(task, dropout=True) if kind == "mlp" else cl.models.cnn(task.shape, 4, width=4)
        fed, w = federation(cl.methods.fedavg(lr=0.2, epochs=2, batch=4), task=task, model=net, device=device)
        sums.append(cohort_total(fed, ENGINES[1], 1, w, torch.arange(task.clients))[0].cpu())
    torch.testing.assert_close(sums[0], sums[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["dp_fedavg", "dp_fedavg distributed"])
@pytest.mark.parametrize("audit", ["noise", "sensitivity"])
def test_the_round_keeps_its_promise_on_the_gpu(name, audit):
    fed, w = federation(METHODS[name](), cl.poisson(0.6), device="cuda")
    AUDITS[audit](run_round, fed, w)


def test_secure_noise_reaches_the_gpu():
    fed, w = federation(METHODS["dp_fedavg"](), cl.everyone(), device="cuda", secure=True)
    first, second = (run_round(fed, Ledger.create(None, "t", {}), ENGINES[1], 1, w, {}).w for _ in range(2))
    assert first.is_cuda
    assert not torch.equal(first, second)
