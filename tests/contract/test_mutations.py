"""Privacy bugs, planted one at a time: for each, an audit of the contract must raise the alarm.

The broken rounds are a second, independent writing of the round in which single steps can be spoiled. With
nothing spoiled it passes every audit and equals the real round, so that what is caught is the bug.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import cloister as cl
from cloister.privacy.ledger import Ledger
from cloister.round import SERVER, Outcome, cohort_total, run_round
from cloister.round.answer import noise_share
from conftest import federation
from contract.audit import AUDITS, ENGINE
from contract.catalogue import METHODS


def broken_round(bug: str):
    def play(fed, ledger, engine, round, w, state):
        method, streams, sensitivity = fed.method, fed.streams, fed.sensitivity

        def pay():
            ledger.charge(method.unit, fed.event, round=round, repeatable=True)

        if bug != "charged after the round":
            pay()
        cohort = fed.cohort.sample(streams, round, fed.population.clients)
        raw = replace(fed, method=replace(method, transform=cl.transforms.identity(), mechanism=cl.mechanisms.none()))
        updates = [cohort_total(raw, engine, round, w, client[None])[0] for client in cohort]

        noise = noise_share(fed, w, 1 if bug == "the same noise every round" else round, SERVER, 1)
        if bug == "no noise":
            noise = torch.zeros_like(w)
        if bug == "noise of the average instead of the sum":
            noise = noise / fed.denominator
        if bug == "sigma squared for sigma":
            noise = noise * method.mechanism.noise_multiplier
        if bug == "noise scaled for half the clip":
            noise = noise / 2
        if bug == "noise only where a private mask is":
            sent = sum((method.transform.encode(u, fed.context(w, {})).abs() for u in updates), torch.zeros_like(w))
            noise = noise * (sent != 0)
        if bug == "noise on some coordinates only":
            noise = noise * (torch.arange(len(w)) % 3 != 0) * math.sqrt(1.5)

        def clip_norm(update):
            if bug == "clipped per tensor, priced as global":
                pieces = fed.objective.layout.views(update).values()
                return torch.cat(
                    [(p * min(1.0, sensitivity.l2 / max(float(p.norm()), 1e-30))).flatten() for p in pieces]
                )
            if bug == "not clipped":
                return update
            return method.transform.encode(update, fed.context(w, {}))

        if bug == "clipped after the noise":
            share = noise / math.sqrt(max(len(cohort), 1))
            total = sum((clip_norm(u + share) for u in updates), torch.zeros_like(w))
        else:
            weights = [1.0] * len(updates)
            if bug == "weighted by data size":
                sizes = fed.population.sizes[cohort].double()
                weights = (sizes / sizes.mean()).tolist()
            total = sum((a * clip_norm(u) for a, u in zip(weights, updates, strict=True)), torch.zeros_like(w)) + noise
        denominator = max(len(cohort), 1) if bug == "divided by the cohort's actual size" else fed.denominator
        w, server = method.server.update(w, total / denominator, state.server, fed.context(w, {}))
        if bug == "charged after the round":
            pay()
        return Outcome(w, replace(state, server=server), len(cohort), 0)

    return play


BUGS = [
    "no noise",
    "noise of the average instead of the sum",
    "noise scaled for half the clip",
    "sigma squared for sigma",
    "the same noise every round",
    "noise on some coordinates only",
    "noise only where a private mask is",
    "clipped after the noise",
    "clipped per tensor, priced as global",
    "not clipped",
    "weighted by data size",
    "divided by the cohort's actual size",
    "charged after the round",
]


def alarms(play, most: int = len(AUDITS)) -> list[str]:
    """Which audits raise the alarm; so many of them suffice."""
    raised: list[str] = []
    for name, audit in AUDITS.items():
        if len(raised) == most:
            break
        try:
            audit(play, *federation(METHODS["dp_fedavg"](), cl.poisson(0.6)))
        except AssertionError:
            raised.append(name)
    return raised


def test_without_a_bug_there_is_no_alarm():
    assert alarms(broken_round("none")) == []
    fed, w = federation(METHODS["dp_fedavg"](), cl.poisson(0.6))
    for round in (1, 2):
        mine = broken_round("none")(fed, Ledger.create(None, "t", {}), ENGINE, round, w, fed.method.init(w))
        real = run_round(fed, Ledger.create(None, "t", {}), ENGINE, round, w, fed.method.init(w))
        torch.testing.assert_close(mine.w, real.w)


IN_EVERY_RUN = {
    *("no noise", "noise scaled for half the clip", "sigma squared for sigma", "not clipped", "charged after the round")
}
"""The gravest; make test-all plants the others as well."""


@pytest.mark.parametrize(
    "bug",
    [pytest.param(bug, marks=() if bug in IN_EVERY_RUN else pytest.mark.slow) for bug in BUGS],
)
def test_the_bug_is_caught(bug):
    assert alarms(broken_round(bug), most=1)


def test_a_fixed_cohort_priced_as_poisson_is_caught():
    lying = replace(cl.fixed_size(5), event=cl.poisson(5 / 8).event)
    with pytest.raises(AssertionError, match="random size"):
        AUDITS["price"](run_round, *federation(METHODS["dp_fedavg"](), lying))


@pytest.mark.parametrize(
    ("cohort", "spoil"),
    [
        (cl.poisson(0.6), lambda members, round: members[members < 7]),
        (cl.fixed_size(5), lambda members, round: torch.arange(5)),
        (cl.poisson(0.3), lambda members, round: torch.arange(8) if round % 3 == 0 else members[:0]),
        (cl.poisson(0.6), lambda members, round: members[members != 0]),
    ],
    ids=["the last never", "always the first", "all or nobody", "the first never"],
)
def test_a_cohort_that_is_not_drawn_as_it_is_priced_is_caught(cohort, spoil):
    lying = replace(cohort, sample=lambda streams, round, clients: spoil(cohort.sample(streams, round, clients), round))
    with pytest.raises(AssertionError, match=r"as often|of their own|random size"):
        AUDITS["price"](run_round, *federation(METHODS["dp_fedavg"](), lying))


def test_cohorts_that_come_again_are_caught():
    lying = replace(cl.poisson(0.6), sample=lambda streams, round, n: cl.poisson(0.6).sample(streams, round // 2, n))
    with pytest.raises(AssertionError, match="of their own"):
        AUDITS["price"](run_round, *federation(METHODS["dp_fedavg"](), lying))


def test_a_mechanism_that_claims_more_noise_than_it_adds_is_caught():
    sound = METHODS["dp_fedavg"]()
    draw = sound.mechanism.draw
    lying = replace(sound.mechanism, draw=lambda multiplier, *rest: draw(0.95 * multiplier, *rest))
    with pytest.raises(AssertionError, match="times its scale"):
        AUDITS["noise"](run_round, *federation(replace(sound, mechanism=lying), cl.poisson(0.6)))


def test_a_bound_that_is_not_kept_is_caught():
    sound = METHODS["dp_fedavg"]()
    lying = replace(sound.transform, encode=cl.transforms.clip_l2(0.06).encode)
    with pytest.raises(AssertionError, match="moves the sum"):
        AUDITS["sensitivity"](run_round, *federation(replace(sound, transform=lying), cl.full()))
