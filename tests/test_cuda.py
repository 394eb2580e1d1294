"""The same contract on a GPU: engines agree with each other and with the CPU; the noise has its scale."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import cloister as cl
from cloister import engine as engines
from cloister.client.preprocessing import images
from cloister.core.precision import multiplying
from cloister.engine import Graphed
from cloister.engine.cuda import conv_algorithms
from cloister.engine.cuda.graphs import _Graph
from cloister.privacy.ledger import Ledger
from cloister.round import cohort_total, run_round
from conftest import ENGINES as ON_CPU
from conftest import federation, toy_model, toy_task
from contract.audit import AUDITS
from contract.catalogue import METHODS, cohorts_for, fed_of

ENGINES = [*ON_CPU, Graphed(chunk=1000), Graphed(chunk=3), Graphed(chunk=1000, compiled=True)]
COMPILED = ("dp_fedavg epochs", "lus", "dp_fedsam_top_k", "ddgauss", "pfl")  # it takes a quarter of a minute each

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def pictures_task():
    random = np.random.default_rng(0)
    part = cl.data.Samples(random.integers(0, 256, (60, 3, 8, 8), dtype=np.uint8), np.arange(60) % 4)
    preprocessing = images((0.5, 0.4, 0.3), (0.2, 0.3, 0.4), pad=2, flip=True)
    return cl.data.partition_data(cl.data.RawData(part, part, 4), cl.data.dirichlet(6, 0.5), "pictures", preprocessing)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=str)
def test_engines_agree_on_the_gpu(name, dtype, tolerance):
    results = []
    for engine in ENGINES if name in COMPILED else ENGINES[:-1]:
        task = toy_task()
        cohort = next(iter(cohorts_for(name).values()))
        model = toy_model(task, dropout=True)
        fed, w = fed_of(METHODS[name](), cohort, task=task, model=model, dtype=dtype, device="cuda")
        state, ledger = fed.method.init(w), Ledger.create(None, "t", {})
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
        fed, w = federation(
            cl.methods.fedavg(lr=0.2, local_epochs=2, batch_size=4), task=task, model=net, device=device
        )
        sums.append(cohort_total(fed, ENGINES[1], 1, w, torch.arange(task.clients))[0].cpu())
    torch.testing.assert_close(sums[0], sums[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["dp_fedavg", "dp_fedavg distributed"])
@pytest.mark.parametrize("audit", ["noise", "sensitivity"])
def test_the_round_keeps_its_promise_on_the_gpu(name, audit):
    fed, w = federation(METHODS[name](), cl.poisson(0.6), device="cuda")
    AUDITS[audit](run_round, fed, w)


def test_secure_noise_reaches_the_gpu():
    fed, w = federation(METHODS["dp_fedavg"](), cl.full(), device="cuda", secure=True)
    first, second = (
        run_round(fed, Ledger.create(None, "t", {}), ENGINES[1], 1, w, fed.method.init(w)).w for _ in range(2)
    )
    assert first.is_cuda
    assert not torch.equal(first, second)


@pytest.mark.parametrize("compiled", [False, True], ids=["graphed", "compiled"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.float64, 1e-10)], ids=str)
def test_a_convolutional_network_in_a_graph_agrees_with_the_loop(compiled, dtype, tolerance):
    task = pictures_task()
    torch.manual_seed(0)
    net = torch.nn.Sequential(cl.models.cnn(task.shape, 4, width=4), torch.nn.Dropout(0.2))
    method = cl.methods.dp_fedavg(
        clip_norm=0.5, lr=0.1, lr_decay=0.9, local_epochs=2, batch_size=4, noise_multiplier=0.0
    )
    fed, w = federation(method, task=task, model=net, dtype=dtype, device="cuda")
    engine, everybody = Graphed(4, compiled), torch.arange(task.clients)
    for number in (1, 2):
        expected, _ = cohort_total(fed, ON_CPU[0], number, w, everybody)
        found, _ = cohort_total(fed, engine, number, w, everybody)
        assert (found - expected).norm() <= tolerance * expected.norm()


def test_cohorts_of_many_sizes_share_few_graphs(monkeypatch):
    made = []
    plain = _Graph.__init__
    monkeypatch.setattr(_Graph, "__init__", lambda self, *a: (made.append(1), plain(self, *a))[1])
    task = toy_task(sizes=tuple(range(1, 60)))
    fed, w = federation(cl.methods.fedavg(lr=0.1, local_steps=3, batch_size=4), cl.poisson(0.5), task, device="cuda")
    engine = Graphed(1000)
    for number in range(1, 31):
        cohort = cl.poisson(0.5).sample(fed.streams, number, task.clients)
        found, _ = cohort_total(fed, engine, number, w, cohort)
        if number in (1, 30):
            torch.testing.assert_close(found, cohort_total(fed, ON_CPU[1], number, w, cohort)[0])
    assert len(made) <= 12


def test_a_replayed_round_does_not_wait_for_the_device():
    fed, w = federation(cl.methods.dp_fedavg(clip_norm=0.5, lr=0.1, local_steps=3, noise_multiplier=1.0), device="cuda")
    engine, ledger = Graphed(1000), Ledger.create(None, "t", {})
    run_round(fed, ledger, engine, 1, w, fed.method.init(w))
    torch.cuda.set_sync_debug_mode("error")
    try:
        run_round(fed, ledger, engine, 2, w, fed.method.init(w))
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("operation", ["forward", "input_gradient", "weight_gradient"])
@pytest.mark.parametrize("precision", ["exact", "tf32", "bf16"])
@pytest.mark.parametrize(
    "shape", [(3, 4, 5, 9, 6, 3, 1, 1), (2, 3, 32, 10, 64, 5, 1, 0), (2, 3, 16, 9, 32, 3, 2, 1)], ids=str
)
def test_every_way_to_convolve_is_as_precise_as_it_says(shape, precision, operation):
    clients, images, channels, size, out, kernel, stride, padding = shape
    torch.manual_seed(0)
    x = torch.randn(clients, images, channels, size, size, device="cuda")
    w = torch.randn(clients, out, channels, kernel, kernel, device="cuda")
    y = conv_algorithms.Grouped.forward(x, w, None, stride, padding)
    gy = torch.randn_like(y)
    arguments = {
        "forward": (x, w, None, stride, padding),
        "input_gradient": (gy, w, (size, size), stride, padding),
        "weight_gradient": (gy, x, (kernel, kernel), stride, padding),
    }[operation]
    double = [a.double() if isinstance(a, torch.Tensor) else a for a in arguments]
    truth = getattr(conv_algorithms.Grouped, operation)(*double)
    with multiplying(precision, x.device):
        options = conv_algorithms.ways(operation, precision, *arguments)
        apart = {n: float((way(*arguments).double() - truth).norm() / truth.norm()) for n, way in options.items()}
    assert len(options) >= 4 or operation == "input_gradient"
    assert max(apart.values()) < {"exact": 3e-6, "tf32": 2e-3, "bf16": 2e-2}[precision], apart
    if precision == "exact":  # three tf32 products are no worse than what the library calls float32
        split = [error for name, error in apart.items() if name.startswith("tf32x3")]
        assert all(error <= 1.5 * max(apart["unfold"], apart["grouped"]) for error in split), apart


def test_exact_is_exact_although_torch_would_round_convolutions():
    """cuDNN takes tf32 for large convolutions unless it is told not to."""
    x, w = torch.randn(64, 128, 16, 16, device="cuda"), torch.randn(128, 128, 3, 3, device="cuda")
    truth = torch.conv2d(x.double(), w.double())
    with multiplying("exact", x.device):
        assert (torch.conv2d(x, w) - truth).norm() < 1e-5 * truth.norm()
    with multiplying("tf32", x.device):
        assert (torch.conv2d(x, w) - truth).norm() > 1e-4 * truth.norm()


def test_auto_captures_only_where_it_pays():
    fed, w = federation(
        cl.methods.fedavg(lr=0.1, local_steps=3, batch_size=4), cl.fixed_size(6), device="cuda", dtype=torch.float32
    )
    assert engines.build("auto", fed, w, rounds=2).name in ("loop", "vectorized")
    assert engines.build("auto", fed, w, rounds=10**7).name in ("graphed", "compiled")
