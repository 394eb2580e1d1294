"""Every method on a GPU: engines agree with each other, and with the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import cloister as cl
from cloister import engine as engines
from cloister.engine import Graphed, Switching
from cloister.engine.chunking import constant_places
from cloister.engine.cuda import graphs
from cloister.engine.cuda.graphs import _Graph
from cloister.errors import Note
from cloister.privacy.ledger import Ledger
from cloister.round import cohort_total, run_round
from conftest import federation, flat_state, toy_model, toy_task
from contract.catalogue import METHODS, cohorts_for, fed_of
from gpu.device import DEVICE, DTYPES, NO_STAND_IN, ON_DEVICE, engine_of

pytestmark = ON_DEVICE


def pictures_task():
    from cloister.client.preprocessing import images

    random = np.random.default_rng(0)
    part = cl.data.Samples(random.integers(0, 256, (60, 3, 8, 8), dtype=np.uint8), np.arange(60) % 4)
    preprocessing = images((0.5, 0.4, 0.3), (0.2, 0.3, 0.4), pad=2, flip=True, flip_vertically=True, grayscale=0.3)
    return cl.data.partition_data(cl.data.RawData(part, part, 4), cl.data.dirichlet(6, 0.5), "pictures", preprocessing)


def played(name, cohort, engine, dtype, rounds):
    """The parameters after some rounds, and all that is kept between them."""
    task = toy_task()
    fed, w = fed_of(METHODS[name](), cohort, task=task, model=toy_model(task, dropout=True), dtype=dtype, device=DEVICE)
    state, ledger = fed.method.init(w), Ledger.create(None, "t", {})
    for number in range(1, rounds + 1):
        w, state, *_ = run_round(fed, ledger, engine, number, w, state)
    return {"w": w, **flat_state(state)}


def expect_close(found, expected, tolerance):
    assert found.keys() == expected.keys()
    assert found["w"].device.type == DEVICE
    for name, tensor in expected.items():
        known = tensor.double().isfinite()  # losses that nobody has measured yet are infinite
        assert torch.equal(found[name].double()[~known], tensor.double()[~known])
        apart, size = (found[name] - tensor)[known].double().norm(), tensor[known].double().norm()
        allowed = tolerance if name == "w" else 10 * tolerance  # what is kept is of differences of models
        assert apart <= allowed * size, f"{name} is {apart / size:.1e} apart"


@DTYPES
@pytest.mark.parametrize("name", METHODS)
def test_vectorized_and_graphed_agree_with_the_loop(name, dtype, tolerance):
    """In one chunk and in several, over cohorts of changing sizes."""
    cohort = next(iter(cohorts_for(name).values()))
    expected = played(name, cohort, engine_of("loop"), dtype, 3)
    for kind in ("vectorized", "graphed"):
        for chunk in (1000, 3):
            expect_close(played(name, cohort, engine_of(kind, chunk), dtype, 3), expected, tolerance)


@DTYPES
@pytest.mark.parametrize("name", cl.methods.REGISTRY)
def test_compiled_agrees_with_the_loop(name, dtype, tolerance):
    """One layout of clients for all rounds: each further one takes a quarter of a minute. Variations of a method, and
    chunks, are the same to the compiler as they are in a graph."""
    cohort = cl.cyclic(3) if name == "dp_ftrl" else cl.full()
    expected = played(name, cohort, engine_of("loop"), dtype, 2)
    expect_close(played(name, cohort, engine_of("compiled"), dtype, 2), expected, tolerance)


@pytest.mark.parametrize("kind", ["mlp", "pictures"])
def test_the_gpu_computes_what_the_cpu_computes(kind):
    sums = []
    for device in ("cpu", DEVICE):
        task = toy_task() if kind == "mlp" else pictures_task()
        torch.manual_seed(0)
        net = toy_model(task, dropout=True) if kind == "mlp" else cl.models.cnn(task.shape, 4, width=4)
        fed, w = federation(
            cl.methods.fedavg(lr=0.2, local_epochs=2, batch_size=4), task=task, model=net, device=device
        )
        sums.append(cohort_total(fed, engine_of("vectorized"), 1, w, torch.arange(task.clients))[0].cpu())
    torch.testing.assert_close(sums[0], sums[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["graphed", "compiled"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.float64, 1e-10)], ids=["float32", "float64"]
)
def test_a_convolutional_network_in_a_graph_agrees_with_the_loop(kind, dtype, tolerance):
    """In two chunks of unequal clients."""
    task = pictures_task()
    torch.manual_seed(0)
    net = torch.nn.Sequential(cl.models.cnn(task.shape, 4, width=4), torch.nn.Dropout(0.2))
    method = cl.methods.dp_fedavg(
        clip_norm=0.5, lr=0.1, lr_decay=0.9, local_epochs=2, batch_size=4, noise_multiplier=0.0
    )
    fed, w = federation(method, task=task, model=net, dtype=dtype, device=DEVICE)
    engine, everybody = engine_of(kind, 4), torch.arange(task.clients)
    for number in (1, 2):
        expected, _ = cohort_total(fed, engine_of("loop"), number, w, everybody)
        found, _ = cohort_total(fed, engine, number, w, everybody)
        assert (found - expected).norm() <= tolerance * expected.norm()


@NO_STAND_IN
def test_cohorts_of_many_sizes_share_few_graphs(monkeypatch):
    made = []
    plain = _Graph.__init__
    monkeypatch.setattr(_Graph, "__init__", lambda self, *a: (made.append(1), plain(self, *a))[1])
    task = toy_task(sizes=tuple(range(1, 60)))
    fed, w = federation(cl.methods.fedavg(lr=0.1, local_steps=3, batch_size=4), cl.poisson(0.5), task, device=DEVICE)
    engine = Graphed(1000)
    for number in range(1, 31):
        cohort = cl.poisson(0.5).sample(fed.streams, number, task.clients)
        found, _ = cohort_total(fed, engine, number, w, cohort)
        if number in (1, 30):
            torch.testing.assert_close(found, cohort_total(fed, engine_of("vectorized"), number, w, cohort)[0])
    assert len(made) <= 12


@NO_STAND_IN
def test_a_replayed_round_does_not_wait_for_the_device():
    fed, w = federation(cl.methods.dp_fedavg(clip_norm=0.5, lr=0.1, local_steps=3, noise_multiplier=1.0), device=DEVICE)
    engine, ledger = Graphed(1000), Ledger.create(None, "t", {})
    run_round(fed, ledger, engine, 1, w, fed.method.init(w))
    torch.cuda.set_sync_debug_mode("error")
    try:
        run_round(fed, ledger, engine, 2, w, fed.method.init(w))
    finally:
        torch.cuda.set_sync_debug_mode("default")


@NO_STAND_IN
def test_auto_compiles_only_where_it_pays():
    fed, w = federation(
        cl.methods.fedavg(lr=0.1, local_steps=3, batch_size=4), cl.fixed_size(6), device=DEVICE, dtype=torch.float32
    )
    assert engines.build("auto", fed, w, rounds=2).name == "graphed"
    with pytest.warns(Note, match="compiled program"):
        engine = engines.build("auto", fed, w, rounds=10**8)
    assert isinstance(engine, Switching)
    assert engines.describe(engines.restore(engines.describe(engine))) == engines.describe(engine)


@NO_STAND_IN
@pytest.mark.parametrize("name", ["dp_fedavg", "pfl"])
def test_a_run_switches_to_what_was_compiled_meanwhile(name):
    """Every round agrees with the loop, before the switch, at it, and after; nothing is compiled after it."""
    task = toy_task()
    fed, w = fed_of(METHODS[name](), cl.full(), task=task, model=toy_model(task, dropout=True), device=DEVICE)
    engine = Switching(5, compiled_from=4)
    for number in range(1, 7):
        cohort = torch.arange(0, task.clients, 1 + number % 2)
        expected, _ = cohort_total(fed, engine_of("loop"), number, w, cohort)
        found, _ = cohort_total(fed, engine, number, w, cohort)
        assert (found - expected).norm() <= 1e-9 * expected.norm(), f"round {number}"
    assert engine._failed is None
    assert engine._compiled._programs or engine._compiled._steps is not None


@NO_STAND_IN
def test_another_cohort_compiles_nothing(monkeypatch):
    made = []
    plain = graphs.fused
    monkeypatch.setattr(graphs, "fused", lambda *a: (made.append(1), plain(*a))[1])
    task = toy_task(sizes=tuple(range(60)))
    method = cl.methods.dp_fedavg(clip_norm=0.5, lr=0.1, local_epochs=2, batch_size=8, noise_multiplier=0.0)
    fed, w = federation(method, cl.poisson(0.4), task, device=DEVICE)
    engine = Graphed(constant_places(fed, 1000), compiled=True)
    for number in range(1, 13):
        cohort = cl.poisson(0.4).sample(fed.streams, number, task.clients)
        found, _ = cohort_total(fed, engine, number, w, cohort)
        if number == 1:
            first = len(made)
        if number in (1, 12):
            torch.testing.assert_close(found, cohort_total(fed, engine_of("loop"), number, w, cohort)[0])
    assert len(made) == first
