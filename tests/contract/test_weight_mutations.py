"""Weights by data size, spoiled one thing at a time: audits of a round with one huge client must raise the alarm.

The broken rounds are a second writing of a round of DP-FedAvg with capped weights. What is looked at is the step of the
model: an adversary sees no sum, and a denominator that depends on private sizes shows in nothing else.
"""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import cloister as cl
from cloister.client.population import Population
from cloister.engine import Loop, Vectorized
from cloister.errors import CloisterError
from cloister.privacy.events import Adjacency, PoissonGaussian
from cloister.privacy.ledger import Ledger
from cloister.privacy.pricing import adjacency_of
from cloister.round import SERVER, Outcome, Reply, close_round, cohort_total, open_round, run_round
from cloister.round.answer import noise_share
from cloister.round.bind import Federation
from conftest import federation, toy_task
from contract.audit import without_data
from contract.catalogue import ENTRIES, METHODS, PUBLIC, USUAL, WEIGHTS, fed_of

SIZES = (90, 3, 1, 0, 7, 2)
CAP, MEAN = WEIGHTS["weight_cap"], WEIGHTS["mean_weight"]
CONSTANT = 0.6 * len(SIZES) * MEAN


def ledger() -> Ledger:
    return Ledger.create(None, "audit", {})


def weighted() -> tuple[Federation, Tensor]:
    return federation(METHODS["dp_fedavg weights"](), cl.poisson(0.6), toy_task(SIZES))


def everybody(fed: Federation) -> Federation:
    """The same with cohorts of all clients, at the price and over the constant that it had."""
    return replace(fed, cohort=replace(fed.cohort, sample=lambda streams, round, clients: torch.arange(clients)))


def broken_round(bug: str):
    def play(fed, ledger, engine, round, w, state):
        sizes = fed.population.sizes.double()
        there = fed.cohort.sample(fed.streams, round, len(SIZES))
        raw = replace(
            fed, method=replace(fed.method, transform=cl.transforms.identity(), mechanism=cl.mechanisms.none())
        )
        total = noise_share(fed, w, round, SERVER, 1)
        for client in there.tolist():
            update, weight = cohort_total(raw, engine, round, w, torch.tensor([client]))[0], float(sizes[client]) / CAP
            if bug == "the cap is forgotten":
                weight = float(sizes[client])
            elif bug == "the share of all samples, times the clients":
                weight = float(sizes[client] / sizes.sum()) * len(SIZES)
            elif bug == "the cap is the mean size":
                weight = min(float(sizes[client] / sizes.mean()), 1.0)
            elif bug != "weights are not cut off at 1":
                weight = min(weight, 1.0)
            if bug == "weights before the clip":
                update, weight = update * weight, 1.0
            norm = float(update.norm())
            total = total + weight * update * (min(1.0, USUAL["clip_norm"] / norm) if norm else 1.0)
        weights = (sizes / CAP).clamp(max=1)
        denominators = {
            "the cohort's own weights for a denominator": float(weights[there].sum()),
            "all clients' own weights for a denominator": 0.6 * float(weights.sum()),
            "who has samples for a denominator": 0.6 * MEAN * float((sizes > 0).sum()),
        }
        return Outcome(w + total / max(denominators.get(bug, CONSTANT), 1e-9), state, len(there), 0)

    return play


def step(play, fed: Federation, w: Tensor, round: int = 1) -> Tensor:
    """What a round moves the model by, times the declared constant: the noisy sum, and nothing else."""
    return (play(fed, ledger(), Vectorized(1000), round, w, fed.method.init(w)).w - w) * CONSTANT


def audit_neighbors(play, fed: Federation, w: Tensor) -> None:
    """A client more or fewer moves the sum by the clip at most, however many samples it has."""
    fed = everybody(fed)
    here = step(play, fed, w)
    for client in range(len(SIZES)):
        moved = float((here - step(play, without_data(fed, client), w)).norm()) / USUAL["clip_norm"]
        assert moved <= 1 + 1e-6, f"client {client} moves the sum by {moved:.3g} clips"


def audit_weights(play, fed: Federation, w: Tensor) -> None:
    """Who is far beyond the clip moves the sum by exactly its weight, n / cap at most 1, whoever else is there."""
    fed = everybody(fed)
    far = replace(fed.method.local, update=lambda layout, state, w: torch.full_like(w, 10.0) + 0 * state["w"])
    fed = replace(fed, method=replace(fed.method, local=far))
    here = step(play, fed, w)
    for client, size in enumerate(SIZES):
        moved = float((here - step(play, without_data(fed, client), w)).norm()) / USUAL["clip_norm"]
        assert abs(moved - min(size / CAP, 1.0)) < 1e-5, f"client {client} has the weight {moved:.3g}"


AUDITS = (audit_neighbors, audit_weights)
# By bug: which of the audits is there for it.
BUGS = {
    "the cap is forgotten": audit_neighbors,
    "the share of all samples, times the clients": audit_neighbors,
    "weights are not cut off at 1": audit_neighbors,
    "the cap is the mean size": audit_neighbors,
    "weights before the clip": audit_weights,
    "the cohort's own weights for a denominator": audit_neighbors,
    "all clients' own weights for a denominator": audit_neighbors,
    "who has samples for a denominator": audit_neighbors,
}


@pytest.mark.parametrize("audit", AUDITS)
def test_the_round_keeps_its_promise(audit):
    audit(run_round, *weighted())


def test_without_a_bug_it_is_the_real_round():
    for audit in AUDITS:
        audit(broken_round("none"), *weighted())
    fed, w = weighted()
    for round in (1, 2, 3):
        mine, real = (
            play(fed, ledger(), Loop(), round, w, fed.method.init(w)).w for play in (broken_round(""), run_round)
        )
        torch.testing.assert_close(mine, real, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("bug", BUGS)
def test_the_bug_is_caught(bug):
    with pytest.raises(AssertionError, match=r"moves the sum|has the weight"):
        BUGS[bug](broken_round(bug), *weighted())


def test_a_transform_that_forgets_the_cap_is_caught():
    """The same in the transform itself, which all engines share."""
    fed, w = weighted()
    clip, weigh = fed.method.transform.parts
    lying = replace(weigh, encode=lambda update, context: update * (context.samples / CAP))
    fed = replace(fed, method=replace(fed.method, transform=cl.transforms.chain(clip, lying)))
    with pytest.raises(AssertionError, match="client 0 moves"):
        audit_neighbors(lambda *args: run_round(*args), fed, w)


# ---- every method that has the keys -----------------------------------------------------------------------------

CLIENTS = {
    name: entry
    for name, entry in ENTRIES.items()
    if " " not in name and "weight_cap" in inspect.signature(entry.make).parameters
}


@pytest.mark.parametrize("name", CLIENTS)
def test_a_huge_client_is_within_the_bound_of_every_method(name):
    method = CLIENTS[name].make(**{**CLIENTS[name].settings, **WEIGHTS, "weight_cap": 4.0})
    task = toy_task((40, *SIZES[1:]))
    fed, w = fed_of(method, cl.cyclic(3) if name == "dp_ftrl" else cl.full(), task=task)
    equal, _ = fed_of(METHODS[name](), fed.cohort, task=task)
    assert fed.event == equal.event, "the price is that of equal weights"
    assert fed.sensitivity == equal.sensitivity
    silent = replace(fed, method=replace(fed.method, mechanism=replace(fed.method.mechanism, place="central")))
    for client, size in enumerate(task.population.counts.tolist()):
        for engine in (Loop(), Vectorized(2)):
            message, _ = cohort_total(silent, engine, 1, w, torch.tensor([client]))
            plain, _ = cohort_total(equal, engine, 1, w, torch.tensor([client]))
            spared = int(name == "adaptive_clipping" and size > 0)
            weights = torch.full_like(message, min(size / 4.0, 1.0))
            weights[len(weights) - spared :] = 1
            torch.testing.assert_close(message, plain * weights, rtol=1e-12, atol=0)
            assert float(message.norm()) <= fed.sensitivity.l2


def test_the_methods_with_capped_weights_are_these():
    assert set(CLIENTS) == {
        *("dp_fedavg", "blur", "lus", "blur_lus", "dp_fedsam", "dp_fedsam_top_k", "fed_smp_rand_k", "fed_smp_top_k"),
        *("adaptive_clipping", "dp_ftrl", "dp_fedprox"),
    }


# ---- sizes that are public, and sizes that are not --------------------------------------------------------------


@pytest.mark.parametrize("name", ["pfl", "fed_spa", "dp_fed", "adap_dp_fl"])
def test_weights_of_samples_that_are_added_or_removed_are_refused(name):
    """Under replace-one, sizes are public; under add-or-remove-one they are where whoever runs it says so."""
    make, settings = ENTRIES[name].make, ENTRIES[name].settings
    with pytest.raises(CloisterError, match=r"added or removed.*public_sizes = true.*fixed_size"):
        fed_of(make(**settings, client_weights="size"))
    for allowed in ({"public_sizes": True}, {"batch_sampling": "fixed_size"}):
        fed, _ = fed_of(make(**settings, client_weights="size", **allowed))
        (note,) = fed.method.notes
        assert ("were declared public" in note) == ("public_sizes" in allowed)
        equal, _ = fed_of(make(**settings, **{k: v for k, v in allowed.items() if k != "public_sizes"}))
        assert fed.charges([0]) == equal.charges([0]), "post-processing is free"


def test_public_sizes_that_nothing_uses_are_refused():
    with pytest.raises(CloisterError, match="no public_sizes where clients weigh the same"):
        cl.methods.pfl(public_sizes=True)


def test_a_composition_of_ones_own_is_refused_as_well():
    """Capped weights, too, would tell of a sample that is added."""
    own = replace(METHODS["pfl"](), transform=cl.transforms.capped_weights(5.0))
    with pytest.raises(CloisterError, match="added or removed"):
        federation(own)
    federation(replace(own, public_sizes=True))


def test_weights_without_a_cap_have_no_bound_for_noise():
    clip, by_size = cl.transforms.clip_l2(1.0), cl.transforms.size_weights()
    with pytest.raises(CloisterError, match="bounded"):
        federation(replace(METHODS["dp_fedavg"](), transform=cl.transforms.chain(clip, by_size)))
    with pytest.raises(CloisterError, match="one transform that weighs"):
        cl.transforms.chain(clip, by_size, cl.transforms.capped_weights(1.0))


@pytest.mark.parametrize(
    ("name", "reason"),
    [("ddgauss", "whole numbers are sent"), ("cpsgd", "whole numbers are sent"), ("ae_dpfl", "a vote has no weight")],
)
def test_whole_numbers_and_votes_are_not_weighted(name, reason):
    with pytest.raises(CloisterError, match=f"Expected client_weights = equal for {name}, found size: .*{reason}"):
        METHODS[name](client_weights="size")


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"client_weights": "size"}, "Expected weight_cap"),
        ({"weight_cap": 5.0}, "no weight_cap where clients weigh the same, found 5.0"),
        ({"mean_weight": 0.5}, "no mean_weight where clients weigh the same, found 0.5"),
        ({"client_weights": "size", "weight_cap": 0.0}, "weight_cap > 0"),
        ({"client_weights": "size", "weight_cap": float("nan")}, "weight_cap > 0"),
        ({"client_weights": "size", "weight_cap": 5.0, "mean_weight": 1.5}, "mean_weight <= 1"),
        ({"client_weights": "size", "weight_cap": 5.0, "mean_weight": 0.0}, "mean_weight <= 1"),
        ({"client_weights": "largest"}, "client_weights to be one of"),
    ],
    ids=str,
)
def test_weights_that_make_no_sense_are_refused(settings, complaint):
    with pytest.raises(CloisterError, match=complaint):
        METHODS["dp_fedavg"](**settings)
    assert PUBLIC["public_sizes"]
    with pytest.raises(CloisterError, match="public_sizes"):
        METHODS["pfl"](public_sizes="yes")


# ---- dividing by the cohort's actual size -----------------------------------------------------------------------


def divisors(fed: Federation, w: Tensor, play=run_round) -> list[float]:
    """By what the noise of each round was divided, where nobody has data."""
    people = fed.population
    nobody = Population(people.inputs, people.labels, people.starts, torch.zeros_like(people.sizes))
    silent = replace(fed, population=nobody)
    return [
        float(noise_share(fed, w, round, SERVER, 1).norm() / step_of.norm())
        for round in range(1, 13)
        for step_of in [play(silent, ledger(), Loop(), round, w, fed.method.init(w)).w - w]
    ]


def audit_divisor(play, fed: Federation, w: Tensor) -> None:
    """A divisor that varies tells how many came: cohorts are then not priced as if that were secret."""
    varies = len({round(divisor, 9) for divisor in divisors(fed, w, play)}) > 1
    secret = isinstance(fed.event, PoissonGaussian)
    assert not (varies and secret), "who divides by the cohort's size releases it"


def test_as_published_divides_by_the_actual_size_and_pays_for_it():
    fed, w = federation(METHODS["blur as_published"](), cl.poisson(0.4))
    expected = [max(len(fed.cohort.sample(fed.streams, round, 8)), 1) for round in range(1, 13)]
    assert len(set(expected)) > 2
    assert divisors(fed, w) == pytest.approx(expected)
    assert adjacency_of(fed.event) is Adjacency.REPLACE_ONE
    audit_divisor(run_round, fed, w)
    lying = replace(fed)
    object.__setattr__(lying, "event", fed.cohort.event(1.3, 8))
    with pytest.raises(AssertionError, match="releases it"):
        audit_divisor(run_round, lying, w)
    audit_divisor(run_round, *federation(METHODS["blur"](), cl.poisson(0.4)))


@pytest.mark.parametrize("cohort", [cl.fixed_size(5), cl.full(), cl.cyclic(4)], ids=lambda cohort: cohort.name)
def test_a_size_that_is_a_constant_costs_nothing_and_changes_nothing(cohort):
    sound, published = (federation(METHODS[name](), cohort) for name in ("blur", "blur as_published"))
    assert sound[0].event == published[0].event
    results = [run_round(fed, ledger(), Loop(), 1, w, fed.method.init(w)).w for fed, w in (sound, published)]
    assert torch.equal(*results)


def test_who_does_not_answer_still_counts_in_the_divisor():
    """Staying away may depend on one's data: the divisor is how many were asked."""
    fed, w = federation(METHODS["blur as_published"](), cl.full())
    offer = open_round(fed, ledger(), 1, w, fed.method.init(w))
    reply = Reply(torch.tensor([2]), torch.zeros_like(w))
    after, _ = close_round(fed, offer, [reply], fed.method.init(w))
    torch.testing.assert_close(after - w, noise_share(fed, w, 1, SERVER, 1) / 8)
