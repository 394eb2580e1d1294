"""Clients side by side in forked processes: the bits of one loop, and nothing is left behind however it ends."""

from __future__ import annotations

import os
import signal
import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

import cloister as cl
from cloister import engine as engines
from cloister.client.dropout import KeyedDropout
from cloister.client.losses import cross_entropy
from cloister.client.objective import objective_of
from cloister.client.population import Population
from cloister.client.preprocessing import images
from cloister.engine import Loop, workers
from cloister.errors import CloisterError, Note, RankLost
from cloister.privacy.ledger import Ledger
from cloister.random.streams import Streams, coins, fold
from cloister.round import Federation, Offer, RoundPlan, cohort_total, run_round
from conftest import flat_state, toy_model, toy_task
from contract.catalogue import METHODS, cohorts_for, fed_of
from engine.test_compilation import KINDS

pytestmark = pytest.mark.skipif(not workers.can_fork(), reason="no fork on this system")
TWO = Loop(workers=2, processes=True)


def alive() -> list[int]:
    """The workers of this process that have not been waited for."""
    return [process for found in workers._KEPT.values() for process in found._ids.values()]


def ended(process: int) -> bool:
    """Whether there is no such process any more, not even one that nobody has waited for."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


def toy(name: str = "dp_fedavg"):
    task = toy_task()
    cohort = next(iter(cohorts_for(name).values()))
    return fed_of(METHODS[name](), cohort, task=task, model=toy_model(task, dropout=True), dtype=torch.float32)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in KINDS else [pytest.mark.slow]) for name in METHODS]
)
def test_processes_give_the_bits_of_one(name):
    """Of the model, and of what clients keep, over two rounds, for every method."""

    def played(engine: Loop) -> tuple[torch.Tensor, object]:
        fed, w = toy(name)
        state = fed.method.init(w)
        for number in (1, 2):
            w, state, *_ = run_round(fed, Ledger.create(None, "test", {}), engine, number, w, state)
        workers.dismiss(fed)
        return w, state

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a worker
    try:
        w, state = played(Loop())
    finally:
        torch.set_num_threads(threads)
    for engine in (TWO, Loop(workers=3, processes=True)):
        found, kept = played(engine)
        assert torch.equal(found, w)
        torch.testing.assert_close(flat_state(kept), flat_state(state), rtol=0, atol=0)


def test_workers_scale_noise_as_they_are_told():
    """Adaptive noise comes with the offer of a round."""
    fed, w = toy("pfl")
    clients = torch.arange(4)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        sums = {}
        for scale in (1.0, 0.5):
            offer = Offer(1, clients, w, {}, scale)
            alone, _ = Loop().total(RoundPlan.of(fed, offer, clients))
            sums[scale], _ = TWO.total(RoundPlan.of(fed, offer, clients))
            assert torch.equal(sums[scale], alone)
    finally:
        torch.set_num_threads(threads)
        workers.dismiss(fed)
    assert not torch.equal(sums[1.0], sums[0.5])


def test_workers_are_kept_over_rounds_and_end_with_their_federation():
    fed, w = toy()
    cohort = torch.arange(6)
    first, _ = cohort_total(fed, TWO, 1, w, cohort)
    processes = alive()
    assert len(processes) == 2
    again, _ = cohort_total(fed, TWO, 1, w, cohort)
    other, _ = cohort_total(fed, TWO, 2, w, cohort)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert alive() == processes
    del fed
    assert not alive()
    assert all(map(ended, processes))


def test_a_worker_that_is_killed_ends_the_round_in_words():
    fed, w = toy()
    cohort = torch.arange(6)
    expected, _ = cohort_total(fed, TWO, 1, w, cohort)
    processes = alive()
    os.kill(processes[0], signal.SIGKILL)
    with pytest.raises(RankLost, match="stopped by SIGKILL"):
        cohort_total(fed, TWO, 1, w, cohort)
    assert not alive()
    assert all(map(ended, processes))
    assert torch.equal(cohort_total(fed, TWO, 1, w, cohort)[0], expected), "new ones take their place"
    workers.dismiss(fed)


def test_an_interrupted_round_leaves_no_process(monkeypatch):
    fed, w = toy()
    cohort_total(fed, TWO, 1, w, torch.arange(6))
    processes = alive()

    def interrupted(_: object) -> None:
        for process in processes:
            os.kill(process, signal.SIGINT)  # as a terminal sends it to all
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(workers, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cohort_total(fed, TWO, 1, w, torch.arange(6))
    assert not alive()
    assert all(map(ended, processes))


def test_workers_do_not_mind_ctrl_c():
    fed, w = toy()
    expected, _ = cohort_total(fed, TWO, 1, w, torch.arange(6))
    for process in alive():
        os.kill(process, signal.SIGINT)
    assert torch.equal(cohort_total(fed, TWO, 1, w, torch.arange(6))[0], expected)
    workers.dismiss(fed)


@pytest.mark.parametrize("error", [ZeroDivisionError("none"), CloisterError("Expected more.")], ids=str)
def test_what_goes_wrong_in_a_worker_is_raised(error):
    fed, w = toy()

    def fail(plan, chunk):
        raise error

    with pytest.raises(CloisterError if isinstance(error, CloisterError) else RuntimeError, match=str(error)):
        fed_total(fed, w, fail)
    assert not alive()


def fed_total(fed, w, message):
    offer = Offer(1, torch.arange(8), w, fed.broadcast(1, w, fed.method.init(w).transform))
    return workers.total_of_workers(RoundPlan.of(fed, offer, offer.clients), 2, "", message)


def test_no_generator_is_shared():
    """Somebody's own code may draw from torch's generator: what two clients draw must not be the same."""
    fed, w = toy()

    def message(plan, chunk):
        out = torch.zeros_like(w)
        out[int(chunk.clients)] = torch.rand(())
        return out, torch.tensor(True), {}

    drawn, _ = fed_total(fed, w, message)
    assert len(set(drawn[:8].tolist())) == 8
    workers.dismiss(fed)


def test_secure_noise_differs_from_round_to_round():
    fed, w = toy("dp_fedavg distributed")
    fed = replace(fed, streams=Streams(0, secure=True))
    one, other = (cohort_total(fed, TWO, 1, w, torch.arange(6))[0] for _ in range(2))
    assert not torch.isclose(one, other).any()
    workers.dismiss(fed)


def convolutional(module, see=None, method=None):
    """A federation of images, one of whose clients has none."""
    sizes, random = torch.tensor([9, 4, 13, 0, 7, 6]), torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (int(sizes.sum()), 3, 10, 10), dtype=torch.uint8, generator=random)
    labels = torch.randint(0, 10, (len(pixels),), generator=random)
    see = see or images((0.5,) * 3, (0.25,) * 3)
    objective = objective_of(module, cross_entropy, pixels[:2], labels[:2], 10, see)
    population = Population(pixels, labels, sizes.cumsum(0) - sizes, sizes)
    fed = Federation(method or METHODS["dp_fedavg"](), cl.full(), objective, population, Streams(0))
    return fed, objective.layout.flatten(dict(module.named_parameters()))


@pytest.mark.parametrize("private", [False, True], ids=["clients", "samples"])
@pytest.mark.parametrize("crop", [False, True], ids=["whole", "crop"])
def test_a_layout_changes_rounding_alone(private, crop):
    torch.manual_seed(0)
    module = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.5), nn.Linear(72, 10)),
    ).double()
    settings = {"clip_norm": 0.5, "lr": 0.05, "batch_size": 4, "local_epochs": 2, "noise_multiplier": 1.0}
    method = cl.methods.pfl(**settings) if private else cl.methods.dp_fedavg(**settings)
    see = images((0.5,) * 3, (0.25,) * 3, pad=1 if crop else 0, crop=crop)
    fed, w = convolutional(module, see, method)
    expected, _ = cohort_total(fed, Loop(), 1, w, torch.arange(6))
    for engine in (Loop(channels_last=True), replace(TWO, channels_last=True)):
        found, _ = cohort_total(fed, engine, 1, w, torch.arange(6))
        torch.testing.assert_close(found, expected)
    workers.dismiss(fed)


def test_an_engine_is_described_and_restored():
    machine = [{"gpu": None}]
    every = [Loop(), Loop(workers=2), TWO, replace(TWO, channels_last=True), Loop(channels_last=True)]
    for engine in every:
        described = engines.describe(engine)
        assert engines.restore(described) == engine
        before = {**described, "machines": machine, "renewed": False}
        assert [other for other in every if engines.same_bits(before, other, machine)] == [engine]
    assert len({engines.noise_key("run", engine, machine) for engine in every}) == len(every)
    old = {"engine": "loop", "chunk": 64, "ranks": 1, "workers": 2}  # of a run before there were processes
    assert engines.restore(old) == Loop(workers=2)


def test_where_nothing_can_be_forked_threads_take_over(monkeypatch):
    described = engines.describe(TWO)
    monkeypatch.setattr(engines, "can_fork", lambda: False)
    assert engines.restore(described) == Loop(workers=2)


@pytest.mark.parametrize("threshold", [0.0, 1e-9, 0.1, 0.25, 1 / 3, 0.5, 0.999999, 1.0])
@pytest.mark.parametrize("shape", [(3,), (32768,), (2, 32769), (5, 4, 3, 7)], ids=str)
def test_the_fast_way_to_random_masks_gives_the_same(threshold, shape):
    key = fold(torch.tensor(7), shape[0])
    mapped = torch.func.vmap(lambda key: coins(key, shape, threshold))(key[None])[0]
    assert torch.equal(coins(key, shape, threshold), mapped)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("p", [0.25, 1.0])
def test_dropout_by_bits_is_dropout_by_choice(p, dtype):
    """Also of what is not finite, in both directions; the choice is what every other engine computes."""
    key, random = torch.tensor(3), torch.Generator().manual_seed(0)
    given = torch.randn(40, 30, generator=random, dtype=dtype)
    given[0, :20] = torch.inf
    upstream = torch.randn(40, 30, generator=random, dtype=dtype)
    upstream[1, :20] = torch.nan
    keep = coins(fold(key, 1), given.shape, 1 - p)

    def gradient(dropped):
        leaf = given.clone().requires_grad_()
        found = dropped(leaf)
        return found.detach(), *torch.autograd.grad(found, leaf, upstream)

    def keyed(leaf):
        with KeyedDropout(key):
            return nn.functional.dropout(leaf, p)

    divisor = 1 - p if p < 1 else 1.0
    ours = gradient(keyed)
    expected = gradient(lambda leaf: torch.where(keep, leaf / divisor, torch.zeros_like(leaf)))
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def test_a_model_that_insists_on_its_layout_is_trained_in_it():
    """`view` refuses images that lie pixel by pixel: that way is left out, without a word."""

    class Insisting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(3, 4, 3), nn.Linear(4 * 64, 10)

        def forward(self, images):
            return self.last(self.first(images).view(len(images), -1))

    fed, w = convolutional(Insisting().double())
    with warnings.catch_warnings():
        warnings.simplefilter("error", Note)
        engine = engines.choose(fed, w, 4, rounds=10, sample=2, repeats=1)
    assert not getattr(engine, "channels_last", False)
    assert not alive()


def test_an_update_that_is_not_finite_counts_as_zero_in_a_worker():
    fed, w = toy()
    fed.population.inputs[fed.population.starts[0]] = torch.inf
    for engine in (Loop(), TWO):
        found, nonfinite = cohort_total(fed, engine, 1, w, torch.tensor([0, 1]))
        alone, _ = cohort_total(fed, engine, 1, w, torch.tensor([1]))
        assert int(nonfinite) == 1
        assert torch.equal(found, alone)
    workers.dismiss(fed)
