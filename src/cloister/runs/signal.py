"""What noise leaves of the signal: in a round, and over a whole run; and how large a federation would have to be.

The signal is what clients would move the model by if all updates (of a batch: all gradients) had the norm of the clip
and pointed the same way, round after round: no training can do better. The noise is what the mechanism adds, which
points anywhere. With m clients in a round, noise multiplier z and messages of d numbers, in units of the clip:

    a round      m / (z sqrt(d))
    a run        sqrt(rounds) times that: signals add up, and independent noises do so by their squares

    a step of private batches of B samples      B / (z sqrt(d))
    a run        sum of S_i / sqrt(d sum of S_i (z_i / B_i)^2), for S_i steps of client i in all

    a secure sum of the batches of m clients    (sum of B_i) / (z sqrt(d)), and sqrt(rounds) times that in a run

A run below 1 (`LEAST`) has a model that was moved further by noise than by clients, at the very best: there is too
little to learn from. Real updates agree in part only, so that it takes more than 1 to learn well. On the digits of
scikit-learn (650 parameters, dp_fedavg with clip_norm 1, lr 1 and 5 local steps, cohort full, 60 rounds, epsilon 2,
delta 1e-5; mean of three seeds; 0.96 without noise) it was:

    clients       6     12     25     50    100    200    400
    run        0.12   0.24   0.49   0.98   1.97   3.93   7.87
    accuracy   0.14   0.16   0.42   0.75   0.87   0.91   0.92
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from cloister.core import Cohort, Method
from cloister.core.state import State
from cloister.errors import MOST_COUNT, CloisterError
from cloister.privacy.pricing import pricing_of
from cloister.privacy.unit import ProtectedUnit
from cloister.round.charges import sensitivity_of
from cloister.runs.noise import Noise, with_noise
from cloister.runs.request import Target
from cloister.runs.terms import Terms
from cloister.server import cohorts

LEAST = 1.0
"""A whole run with less signal than this for its noise learns next to nothing."""

_MOST_CORRELATED = 2048
"""Over more rounds than this, correlated noise is followed no further, and taken for independent from there on."""


@dataclass(frozen=True)
class Signal:
    """Signal over noise at best: in a round, over the run, and, where samples are protected, of each client alone."""

    round: float
    run: float
    alone: tuple[float, ...] = ()
    unrelated: float = 0.0
    """In a round in which clients' updates have nothing to do with one another, where clients are protected."""


def signal_of(terms: Terms, noise: Noise) -> Signal:
    """What the noise of a run leaves."""
    method = terms.complete(noise.method)
    return _of_clients(terms, method) if method.unit is ProtectedUnit.CLIENT else _of_samples(terms, method, noise)


def _of_clients(terms: Terms, method: Method) -> Signal:
    known, expected = sensitivity_of(method, terms.layout), terms.cohort.expected(terms.clients)
    multiplier = method.mechanism.noise_multiplier or 0.0
    # Votes do not say how many numbers they are; a unanimous one is compared with the noise on a count.
    width = known.l2 if known.length is None else math.sqrt(known.length)
    weighting = method.transform.weighting
    best = (
        expected * known.l2 / (multiplier * known.unit * width) * (1.0 if weighting is None else weighting.mean_weight)
    )
    over_rounds = terms.rounds / _summed_noise(method, terms.rounds)
    return Signal(best, best * over_rounds, unrelated=best / math.sqrt(max(expected, 1.0)))


def _summed_noise(method: Method, rounds: int) -> float:
    """The standard deviation of the sum of all rounds' noise, in units of one round's draw."""
    correlate = method.mechanism.correlate
    if correlate is None:
        return math.sqrt(rounds)
    followed = min(rounds, _MOST_CORRELATED)
    state: State = {}
    total = torch.zeros(followed, dtype=torch.float64)
    for index, drawn in enumerate(torch.eye(followed, dtype=torch.float64)):
        noise, state = correlate(drawn, index + 1, state)
        total += noise
    return float(total.norm()) * math.sqrt(rounds / followed)


def _of_samples(terms: Terms, method: Method, noise: Noise) -> Signal:
    batching, known = method.local.batching, sensitivity_of(method, terms.layout)
    length = known.length or terms.layout.size
    if method.local.sample_l2 is not None:
        return _of_sums(terms, method, length)
    in_steps = method.local.private is not None
    if in_steps and method.transform.entries is not None:
        length = method.transform.entries(length)
    steps, ratios = [], []
    for client, samples in enumerate(terms.sizes):
        multiplier = noise.multipliers[client] if noise.multipliers else method.mechanism.noise_multiplier or 0.0
        # Where whole messages have the noise, a message is one gradient, and several clients may share the noise.
        drawn = batching.expected(samples) if in_steps else math.sqrt(method.mechanism.settings.get("shares", 1))
        steps.append(terms.steps(method, samples))
        ratios.append(drawn / multiplier if samples else 0.0)
    alone = [math.sqrt(count / length) * ratio for count, ratio in zip(steps, ratios, strict=True)]
    noises = sum(count / ratio**2 for count, ratio in zip(steps, ratios, strict=True) if ratio)
    run = sum(steps) / math.sqrt(length * noises) if noises else 0.0
    return Signal(run / math.sqrt(terms.participations), run, tuple(alone))


def _of_sums(terms: Terms, method: Method, length: int) -> Signal:
    """Where all clients of a round take one step together, under one noise: of each alone, as if nobody else came."""
    unit = (method.mechanism.noise_multiplier or 0.0) * math.sqrt(length)
    drawn = [method.local.batching.expected(samples) for samples in terms.sizes]
    each = terms.cohort.expected(terms.clients) / terms.clients
    best = each * sum(drawn) / unit
    alone = tuple(math.sqrt(terms.participations) * one / unit for one in drawn)
    return Signal(best, best * math.sqrt(terms.rounds), alone)


@dataclass(frozen=True)
class Needs:
    """How large a federation has to be for so much signal: found by pricing others, not by a rule of thumb."""

    terms: Terms
    method: Method
    """As it was asked for: with its noise, or to be calibrated to the target."""
    epsilon: Target
    delta: float

    def clients(self) -> int | None:
        """The fewest clients, at the same rate of participation and the same privacy; None where none suffice."""
        known: dict[object, Noise] = {}

        def found(clients: int) -> float:
            terms = replace(self.terms, cohort=_scaled(self.terms, clients), sizes=range(clients))
            unit = terms.event(with_noise(self.method, 1.0)), terms.cohort.releases(terms.rounds, clients)
            if unit not in known:
                known[unit] = terms.noise(self.method, self.epsilon, self.delta)
            return signal_of(terms, known[unit]).run

        return _smallest(found, self.terms.clients)

    def samples(self) -> int | None:
        """The fewest samples that every client needs, if all have as many; None where none suffice, or
        where that takes too long to find out."""
        event = self.terms.charge(self.method, 1.0, max(self.terms.sizes)).event
        if not pricing_of(event).has_rdp:  # coins, whose calibration takes seconds
            return None
        epsilon = min(self.epsilon) if isinstance(self.epsilon, (list, tuple)) else self.epsilon

        def found(samples: int) -> float:
            terms = replace(self.terms, sizes=(samples,) * self.terms.clients)
            return signal_of(terms, terms.noise(self.method, epsilon, self.delta)).run

        return _smallest(found, max(1, sum(self.terms.sizes) // self.terms.clients))


def _scaled(terms: Terms, clients: int) -> Cohort:
    """The same cohort for another number of clients: the same share of them takes part."""
    per_round = terms.cohort.settings.get("clients_per_round")
    if per_round is None:
        return terms.cohort
    return cohorts.CATALOGUE[terms.cohort.name](max(1, round(per_round * clients / terms.clients)))


def _smallest(ratio: Callable[[int], float], start: int) -> int | None:
    """The smallest count whose ratio is `LEAST` or more, of a ratio that rises with the count."""
    too_few, enough, now, attempts = 0, None, start, 0
    while True:
        attempts, found = attempts + 1, max(_ratio_or_none(ratio, now), LEAST * 1e-9)
        if found >= LEAST:
            enough = now
        else:
            too_few = now
        if enough is not None and enough - too_few <= 1:
            return enough
        # Most ratios are proportional to the count: then this is where to look, and after that just below it.
        guess = math.ceil(now * LEAST / found) - (enough == now)
        if enough is None:
            now = max(guess, now + 1 if attempts < _GUESSES else 2 * now)
            if now > MOST_COUNT:
                return None
        else:
            halfway = (too_few + enough) // 2
            now = min(max(guess, too_few + 1), enough - 1) if attempts < _GUESSES or attempts % 2 else halfway


_GUESSES = 4
"""After so many guesses that missed, the range is halved every other time."""


def _ratio_or_none(ratio: Callable[[int], float], count: int) -> float:
    """The ratio; nothing where so small a federation has no price at all."""
    try:
        return ratio(count)
    except CloisterError:
        return 0.0
