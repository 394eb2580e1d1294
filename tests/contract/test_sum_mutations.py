"""Privacy bugs of secure sums, planted one at a time: for each, the audit that is for it must raise the alarm.

The broken rounds are a second, independent writing of a round, in which single things can be spoiled. With nothing
spoiled it equals the real round. Taken from the library are facts that are its to choose: who is in a batch, which
coordinates are active, and the draws of noise.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import cloister as cl
from cloister.core import MethodState
from cloister.privacy.events import DiscreteGaussianSum, Gaussian, PoissonGaussian
from cloister.privacy.ledger import Charge, Ledger
from cloister.privacy.unit import sample_account
from cloister.random.discrete_gaussian import discrete_gaussian
from cloister.round import Outcome, run_round
from cloister.round.bind import Federation
from contract.catalogue import AUDITED_SUMS
from contract.sample_audit import SIZES
from contract.sum_audit import AUDITS, ENGINE, audited, rate_of
from contract.test_sample_mutations import clipped, drawn_batches, gradients


def charge(fed: Federation, client: int, points: float | None, numbers: int, bug: str) -> Charge:
    rate, z = rate_of(fed, 0 if bug == "priced at another client's rate" else client), multiplier(fed)
    if z == 0:
        return Charge(cl.privacy.events.NonPrivate())
    if points is not None:
        within, honest = points * clip_of(fed), math.ceil(honest_of(fed) * len(SIZES) - 1e-9)
        within += 0 if bug == "what rounding adds is forgotten" else math.sqrt(numbers)
        return Charge(DiscreteGaussianSum(z * within / math.sqrt(honest), honest, within, numbers, rate))
    if bug == "priced as if every client had all the noise twice":
        z *= 2
    return Charge(Gaussian(z) if rate == 1 and "sample_rate" in fed.method.local.settings else PoissonGaussian(z, rate))


def multiplier(fed: Federation) -> float:
    return fed.method.mechanism.noise_multiplier


def honest_of(fed: Federation) -> float:
    return fed.method.mechanism.settings["honest_fraction"]


def clip_of(fed: Federation) -> float:
    return fed.method.local.settings["clip_norm"]


def gradient_sum(fed: Federation, round: int, client: int, w: Tensor, active: Tensor, bug: str) -> tuple[Tensor, int]:
    """A client's sum of clipped gradients, and how many samples were in its batch."""
    own = drawn_batches(fed, 1 if bug == "the same batches in every round" else round, client)[0]
    if bug == "a sample joins at twice the rate":
        own = torch.cat([own, drawn_batches(fed, round + 1000, client)[0]]).unique()
    rows = own + fed.population.starts[client]

    def summed(at: Tensor) -> Tensor:
        g = gradients(at, fed.population.inputs[rows], fed.population.labels[rows]) * active
        return clipped(g, clip_of(fed), None, bug)

    total = summed(w)
    if bug == "two steps a round":
        total = total + summed(w - 1e-3 * total)
    return total, len(rows)


def share(fed: Federation, round: int, client: int, members: int, like: Tensor, within: float, bug: str) -> Tensor:
    if bug == "one client adds no share" and client == 0:
        return torch.zeros_like(like)
    honest = 1.0 if bug == "shares that count on everybody" else honest_of(fed)
    of = len(SIZES) if bug == "shares for all who were asked" else members
    who = 0 if bug == "the same share for every client" else client
    when = 1 if bug == "the same noise in every round" else round
    width = multiplier(fed) * within / math.sqrt(honest * of) * (math.sqrt(0.5) if bug == "half the variance" else 1)
    if not width:
        return torch.zeros_like(like)
    if not like.is_floating_point():
        return discrete_gaussian(len(like), max(width, 0.5), fed.streams, like.device, "noise", when, who)
    return fed.streams.protective_normal(like, "noise", when, who) * width


def broken_round(bug: str):
    def play(fed: Federation, ledger: Ledger, engine, round: int, w: Tensor, state: MethodState) -> Outcome:
        parts = fed.method.transform.parts or (fed.method.transform,)
        points = next((part.settings["points"] for part in parts if part.name == "to_grid"), None)
        part = fed.method.local.settings["active"]
        told = fed.broadcast(round, w, {}).get("0", {})
        mask = told.get("mask", torch.arange(len(w)))
        members = list(range(len(SIZES)))
        charges = {sample_account(c): charge(fed, c, points, len(mask), bug) for c in members}
        late = bug == "charged after computing"
        refused = {} if late else ledger.charge_each(charges, round=round, repeatable=True)
        taking = [c for c in members if bug == "refused clients compute" or sample_account(c) not in refused]
        total, drawn = torch.zeros_like(w), 0
        for client in taking:
            own = mask
            if bug == "a mask of each client's own":
                own = (mask + 37 * client) % len(w)
            active = torch.zeros_like(w).index_fill(0, own, 1.0)
            found, count = gradient_sum(fed, round, client, w, active, bug)
            message = -found[own]
            if bug == "each client divides by its own batch":
                message = message / (rate_of(fed, client) * SIZES[client])
            within = clip_of(fed)
            if points is not None:
                message, within = (message * points).round().long(), points * within + math.sqrt(len(own))
            message = message + share(fed, round, client, len(taking), message, within, bug)
            message = message.to(w.dtype) / (points or 1.0)
            total, drawn = total.index_add(0, own, message), drawn + count
        if late:
            ledger.charge_each(charges, round=round, repeatable=True)
        expected = sum(rate_of(fed, c) * SIZES[c] for c in taking)
        divisor = max(drawn, 1) if bug == "divided by who was in the batches" else expected
        if bug == "each client divides by its own batch":
            divisor = len(taking)
        mean = total / divisor * (1.0 if part is None else len(w) / len(mask))
        w, server = fed.method.server.update(w, mean, state.server, fed.context(w, {}))
        return Outcome(w, replace(state, server=server), len(taking), 0, len(members) - len(taking))

    return play


SCALE = "times its scale"
MOVES = "a sample moves"
# By bug: the method in which it is planted, the audit that is there for it, and what it says.
BUGS = {
    "shares that count on everybody": ("pfl", "noise", SCALE),
    "one client adds no share": ("dp_fed", "noise", SCALE),
    "half the variance": ("dp_fed", "noise", SCALE),
    "the same share for every client": ("dp_fed", "noise", SCALE),
    "the same noise in every round": ("dp_fed", "noise", "noise of their own"),
    "a mask of each client's own": ("fed_spa", "noise", "the same for everybody"),
    "priced as if every client had all the noise twice": ("dp_fed", "price", "the noise of the sum"),
    "priced at another client's rate": ("pfl", "price", "the client's own rate"),
    "what rounding adds is forgotten": ("pfl discrete", "price", "what rounding adds"),
    "two steps a round": ("pfl", "sensitivity", MOVES),
    "divided by who was in the batches": ("pfl", "sensitivity", MOVES),
    "each client divides by its own batch": ("pfl", "sensitivity", "what a sample moves"),
    "the clip of the batch mean": ("pfl", "sensitivity", MOVES),
    "not clipped": ("pfl discrete", "sensitivity", MOVES),
    "the same batches in every round": ("dp_fed", "batches", "batches of their own"),
    "a sample joins at twice the rate": ("dp_fed", "batches", "times the rate"),
    "shares for all who were asked": ("dp_fed", "payment", SCALE),
    "charged after computing": ("dp_fed", "payment", "has paid"),
    "refused clients compute": ("dp_fed", "payment", "computes nothing"),
}


@pytest.mark.parametrize("name", AUDITED_SUMS)
def test_without_a_bug_it_is_the_real_round(name):
    fed, w = audited(AUDITED_SUMS[name])
    inputs = torch.randn(fed.population.inputs.shape, generator=torch.Generator().manual_seed(3)).double()
    fed = replace(fed, population=replace(fed.population, inputs=inputs))
    state, there, real, mine = fed.method.init(w), w, Ledger.create(None, "t", {}), Ledger.create(None, "t", {})
    for round in (1, 2):
        here = broken_round("none")(fed, mine, ENGINE, round, there, state).w
        outcome = run_round(fed, real, ENGINE, round, there, state)
        torch.testing.assert_close(here, outcome.w, rtol=1e-9, atol=1e-12)
        there, state = outcome.w, outcome.state
    assert [(e.unit, e.event, e.count) for e in mine.entries] == [(e.unit, e.event, e.count) for e in real.entries]


@pytest.mark.parametrize("audit", AUDITS)
def test_without_a_bug_there_is_no_alarm(audit):
    AUDITS[audit](broken_round("none"), *audited(AUDITED_SUMS["pfl"]))


@pytest.mark.parametrize("bug", BUGS)
def test_the_bug_is_caught(bug):
    name, audit, alarm = BUGS[bug]
    with pytest.raises(AssertionError, match=alarm):
        AUDITS[audit](broken_round(bug), *audited(AUDITED_SUMS[name]))
