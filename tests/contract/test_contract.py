"""What every method keeps to, whatever it is."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cloister as cl
from cloister.engine import Loop, Vectorized
from cloister.errors import CloisterError
from cloister.privacy.ledger import Ledger
from cloister.round import cohort_total, run_round
from conftest import ENGINES, federation, toy_model, toy_task
from contract.audit import AUDITS
from contract.catalogue import (
    AUDITED,
    CLIENTS,
    COHORTS,
    METHODS,
    PLAIN,
    PRIVATE,
    SAMPLES,
    cohorts_for,
    fed_of,
    quick_pairs,
)


def play(fed, w, engine, rounds=3):
    ledger, state = Ledger.create(None, "test", {}), fed.method.init(w)
    for number in range(1, rounds + 1):
        w, state, *_ = run_round(fed, ledger, engine, number, w, state)
    return w


def usual_cohort(name):
    return next(iter(cohorts_for(name).values()))


def test_every_method_is_under_contract():
    """One entry of `catalogue.py` has the method's own name; variations of it have a second word."""
    assert cl.methods.CATALOGUE.keys() <= METHODS.keys()
    assert {name.split()[0] for name in METHODS} == set(cl.methods.CATALOGUE)
    for name, info in cl.methods.REGISTRY.items():
        method = METHODS[name]()
        assert method.name == name
        assert info.unit == (method.unit if name in {*PRIVATE, *SAMPLES} else "nobody")


@pytest.mark.parametrize(("name", "kind"), quick_pairs(METHODS))
@pytest.mark.parametrize(
    ("dtype", "tolerance", "dropout"),
    [
        pytest.param(torch.float32, 1e-5, True, id="float32, dropout"),
        pytest.param(torch.float64, 1e-10, False, id="float64"),
        pytest.param(torch.float32, 1e-5, False, id="float32", marks=pytest.mark.slow),
        pytest.param(torch.float64, 1e-10, True, id="float64, dropout", marks=pytest.mark.slow),
    ],
)
def test_engines_agree(name, kind, dtype, tolerance, dropout):
    results = []
    for engine in ENGINES:
        task = toy_task()
        fed, w = fed_of(
            METHODS[name](), cohorts_for(name)[kind], task=task, model=toy_model(task, dropout), dtype=dtype
        )
        results.append(play(fed, w, engine))
    for result in results[1:]:
        assert (result - results[0]).norm() <= tolerance * results[0].norm()


@pytest.mark.parametrize("audit", AUDITS.values(), ids=AUDITS)
@pytest.mark.parametrize(("name", "kind"), quick_pairs(AUDITED))
def test_the_round_keeps_its_promise(name, kind, audit):
    if audit is AUDITS["signal"] and name not in PLAIN:
        return  # what is sent is not the clipped update: see the references of the methods
    audit(run_round, *fed_of(METHODS[name](), cohorts_for(name)[kind]))


@pytest.mark.parametrize("audit", ["sensitivity", "payment", "price"])
@pytest.mark.parametrize("name", ["dp_ftrl", "dp_ftrl tree"])
def test_correlated_noise_keeps_the_other_promises(name, audit):
    AUDITS[audit](run_round, *fed_of(METHODS[name](), cl.cyclic(3)))


@pytest.mark.parametrize("make", PLAIN.values(), ids=PLAIN)
def test_without_noise_and_clip_it_is_fedavg(make):
    bare = make(clip_norm=math.inf, noise_multiplier=0.0)
    fed, w = federation(bare, COHORTS["poisson"])
    plain = replace(bare, transform=cl.transforms.identity(), mechanism=cl.mechanisms.none())
    other, _ = federation(plain, COHORTS["poisson"])
    assert torch.equal(play(fed, w, ENGINES[1]), play(other, w, ENGINES[1]))


@pytest.mark.parametrize("name", PRIVATE)
@settings(max_examples=25, deadline=None)
@given(
    values=st.lists(st.one_of(st.floats(width=64), st.just(math.nan), st.just(math.inf)), min_size=1, max_size=6),
    engine=st.sampled_from([Loop(), Vectorized(chunk=2)]),
)
def test_whatever_a_client_computes_its_message_stays_within_the_bound(name, values, engine):
    method = METHODS[name]()
    cohort = cl.cyclic(1) if name.startswith("dp_ftrl") else cl.full()
    fed, w = fed_of(replace(method, mechanism=cl.mechanisms.gaussian(1.0)), cohort, task=toy_task(sizes=(3, 2, 1)))
    silent = replace(fed.method.mechanism, place="central")
    hostile = torch.tensor(values, dtype=w.dtype).repeat(w.numel())[: w.numel()]
    local = replace(method.local, name="hostile", update=lambda layout, state, w: hostile + 0 * w)
    fed = replace(fed, method=replace(fed.method, local=local, mechanism=silent))
    message, nonfinite_updates = cohort_total(fed, engine, 1, w, torch.tensor([1]))
    assert torch.isfinite(message).all()
    assert float(message.double().norm()) <= fed.sensitivity.l2 * (1 + 1e-12)
    assert nonfinite_updates == (not torch.isfinite(hostile).all())


@pytest.mark.parametrize("size", [1e30, 1e38, 2e38, 3.4e38])
@pytest.mark.parametrize("name", PRIVATE)
def test_an_update_that_encoding_makes_infinite_counts_as_broken(name, size):
    """Found in review: scaling by d/k, or by 1/S, can leave the range of float32 after the update was found finite."""
    method = METHODS[name]()
    cohort = cl.cyclic(2) if name.startswith("dp_ftrl") else cl.full()
    task = toy_task(sizes=(3, 2, 1))
    huge = replace(method.local, update=lambda layout, state, w: torch.full_like(w, size))
    fed, w = fed_of(replace(method, local=huge), cohort, task=task, dtype=torch.float32)
    fed = replace(fed, method=replace(fed.method, mechanism=replace(fed.method.mechanism, place="central")))
    message, _ = cohort_total(fed, Vectorized(3), 1, w, torch.tensor([0]))
    assert torch.isfinite(message).all()
    assert float(message.double().norm()) <= fed.sensitivity.l2 * (1 + 1e-12)


@pytest.mark.parametrize("made", [math.inf, math.nan])
def test_a_part_of_somebody_s_own_that_makes_an_update_infinite_sends_nothing(made):
    """Shipped parts keep finite updates finite; whoever writes another one may not."""
    method = METHODS["dp_fedavg"]()
    broken = replace(method.transform, encode=lambda update, context: update * made, stays_finite=False)
    fed, w = fed_of(replace(method, transform=broken), cl.full(), task=toy_task(sizes=(3, 2, 1)))
    for engine in ENGINES:
        message, nonfinite_updates = cohort_total(fed, engine, 1, w, torch.tensor([0, 1]))
        assert torch.equal(message, torch.zeros_like(message))
        assert nonfinite_updates == 2


def test_noise_and_messages_must_fit_each_other():
    whole = cl.mechanisms.discrete_gaussian(1.0, 50.0, 1, 1.0, "central")
    with pytest.raises(CloisterError, match="whole"):
        federation(replace(METHODS["dp_fedavg"](), mechanism=whole))
    fed, _ = fed_of(METHODS["ddgauss"](), COHORTS["poisson"])
    with pytest.raises(CloisterError, match="whole"):
        replace(fed, method=replace(fed.method, mechanism=cl.mechanisms.gaussian(1.0)))
    with pytest.raises(CloisterError, match="floating"):
        fed.streams.protective_normal(torch.zeros(3, dtype=torch.int64), "noise", 1)


def test_a_cycle_that_nobody_paid_for_is_paid_in_its_middle():
    fed, w = fed_of(METHODS["dp_ftrl"](), cl.cyclic(3))
    ledger = Ledger.create(None, "test", {})
    run_round(fed, ledger, ENGINES[0], 2, w, fed.method.init(w))
    assert ledger.epsilon("client", 1e-5) > 0


@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: f"{e.name}{e.chunk}")
@pytest.mark.parametrize("name", CLIENTS)
def test_a_broken_client_counts_as_zero_and_is_counted(name, engine):
    task = toy_task(sizes=(4, 4, 4, 4))
    task.population.inputs[4:8] = math.inf
    fed, w = fed_of(METHODS[name](), cl.cyclic(2) if name.startswith("dp_ftrl") else cl.full(), task=task)
    ledger = Ledger.create(None, "test", {})
    outcome = run_round(fed, ledger, engine, 1, w, fed.method.init(w))
    assert outcome.nonfinite_updates == 1
    sizes = torch.tensor([4, 0, 4, 4])
    gone = replace(fed, population=replace(fed.population, sizes=sizes))
    expected = run_round(gone, Ledger.create(None, "test", {}), engine, 1, w, fed.method.init(w))
    torch.testing.assert_close(outcome.w, expected.w, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in AUDITED if not name.startswith("ae_dpfl")])
def test_an_empty_cohort_still_releases_noise(name):
    make = METHODS[name]
    nobody = replace(cl.poisson(0.5), sample=lambda streams, round, population: torch.tensor([], dtype=torch.int64))
    AUDITS["noise"](run_round, *fed_of(make(), nobody))
    fed, w = fed_of(make(), nobody)
    outcome = run_round(fed, Ledger.create(None, "test", {}), ENGINES[0], 1, w, fed.method.init(w))
    assert outcome.cohort_size == 0
    assert not torch.equal(outcome.w, w)


@pytest.mark.parametrize("make", PLAIN.values(), ids=PLAIN)
def test_a_private_mechanism_refuses_an_unbounded_update(make):
    with pytest.raises(CloisterError, match="clip_l2"):
        federation(make(clip_norm=math.inf))
    with pytest.raises(CloisterError, match="clip_l2"):
        federation(replace(make(), transform=cl.transforms.identity()))


@pytest.mark.parametrize("name", ["ddgauss", "adaptive_clipping", "dp_fedavg as_published"])
def test_methods_that_need_a_finite_clip_say_so(name):
    with pytest.raises(CloisterError, match="Expected"):
        fed_of(METHODS[name](clip_norm=math.inf))


@pytest.mark.parametrize("name", METHODS)
def test_the_round_does_not_touch_the_global_random_state(name):
    fed, w = fed_of(METHODS[name](), usual_cohort(name))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    play(fed, w, ENGINES[1], rounds=2)
    assert torch.equal(before, torch.get_rng_state())
