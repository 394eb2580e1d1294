"""What one release costs: a record for each event, and everything that anybody asks about an event is in it.

A new kind of event is a class in `events.py` and a function here that makes its record.

| cohort            | adjacency      | privacy loss distribution (PLD)               | Renyi (RDP)                   |
|-------------------|----------------|-----------------------------------------------|-------------------------------|
| full              | add/remove one | Gaussian, sensitivity C                       | the same                      |
| Poisson           | add/remove one | Poisson-subsampled Gaussian, both directions  | the same                      |
| fixed size        | replace one    | strict profile, sensitivity 2C (`fixed_size`) | Wang, Balle & Kasiviswanathan |
| size released     | replace one    | the mean of these over all sizes              | unknown: infinity             |
| modular sum       | add/remove one | left to RDP                                   | `discrete_gaussian.py`        |
| binomial, batches | replace one    | `binomial.py`, sampled as fixed sizes are     | unknown: infinity             |
| best of trials    | the trials'    | left to RDP                                   | `selection.py`                |
| anything else     | -              | refused                                       | refused                       |
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial, singledispatch
from typing import Any

import numpy as np

from cloister.errors import UnsupportedMechanismError
from cloister.privacy import binomial, discrete_gaussian, fixed_size
from cloister.privacy.events import (
    Adjacency,
    BestOfTrials,
    BinomialSum,
    DiscreteGaussianSum,
    Event,
    FixedSizeGaussian,
    Gaussian,
    NonPrivate,
    NoOp,
    PoissonGaussian,
    ReleasedSizeGaussian,
    Unsupported,
    to_json,
)
from cloister.privacy.gaussian_price import LEAST_NOISE, cut_off, gaussian_pld, gaussian_record
from cloister.privacy.price_record import Pricing, infinite, no_pld
from cloister.privacy.selection import TrialCount, TrialPrice


@lru_cache(maxsize=4096)
def pricing_of(event: Event) -> Pricing:
    """The event's record."""
    return replace(_record(event), json=to_json(event))


def adjacency_of(event: Event) -> Adjacency | None:
    """The adjacency under which an event is priced, or None where it says nothing about one."""
    return pricing_of(event).adjacency


def common_adjacency(events: Iterable[Event]) -> Adjacency:
    """The one adjacency that all events of a ledger share; refused where there is none."""
    found = {adjacency for adjacency in map(adjacency_of, events) if adjacency is not None}
    if len(found) > 1:
        raise UnsupportedMechanismError(
            "Expected one way of drawing cohorts in a ledger, found Poisson (add or remove one) beside fixed "
            "size (replace one): their epsilons speak of different neighbors, so use one of them throughout."
        )
    return found.pop() if found else Adjacency.ADD_OR_REMOVE_ONE


@singledispatch
def _record(event: Event) -> Pricing:
    return _refused(event, f"an event of kind {event.kind} has no record of its price")


def _refused(event: Event, reason: str) -> Pricing:
    sentence = f"Expected a cohort and a mechanism with a known price, found none: {reason}."
    return Pricing(lambda drawn: str(event), refusal=sentence)


@_record.register
def _(event: Unsupported) -> Pricing:
    return _refused(event, event.reason)


@_record.register
def _(event: NonPrivate) -> Pricing:
    return Pricing(lambda drawn: "without noise: no guarantee", unbounded=True)


@_record.register
def _(event: NoOp) -> Pricing:
    words = "rounds of a cycle that was paid for when it began"
    return Pricing(lambda drawn: words, free=True, rdp=lambda orders: np.zeros(len(orders)))


@_record.register
def _(event: Gaussian) -> Pricing:
    z = event.noise_multiplier
    return gaussian_record(
        lambda drawn: f"one release to each who takes part, noise multiplier {z:.6g}, no amplification",
        Adjacency.ADD_OR_REMOVE_ONE,
        z,
        moved=1,
        share=1.0,
        pld=partial(gaussian_pld, z, 1.0),
        dp_event=lambda dp: dp.GaussianDpEvent(z),
    )


@_record.register
def _(event: PoissonGaussian) -> Pricing:
    z, sampling_rate = event.noise_multiplier, event.sampling_rate
    return gaussian_record(
        lambda drawn: f"Poisson {drawn}, rate {sampling_rate:g}, noise multiplier {z:.6g}",
        Adjacency.ADD_OR_REMOVE_ONE,
        z,
        moved=1,
        share=sampling_rate,
        pld=partial(gaussian_pld, z, sampling_rate),
        dp_event=lambda dp: dp.PoissonSampledDpEvent(sampling_rate, dp.GaussianDpEvent(z)),
        directions=2,
    )


@_record.register
def _(event: FixedSizeGaussian) -> Pricing:
    # One client leaves and another comes: the sum moves by twice the bound of one contribution.
    z, size, population = event.noise_multiplier, event.size, event.population
    return gaussian_record(
        lambda drawn: (
            f"uniform {drawn} of exactly {size} of {population}, noise multiplier {z:.6g} of half the distance that a "
            "replacement can move the sum (at most twice the clip)"
        ),
        Adjacency.REPLACE_ONE,
        z,
        moved=2,
        share=2 * size / population,
        pld=lambda interval: fixed_size.sampled(
            partial(fixed_size.gaussian, shift=2 / z), size / population, cut_off(2 / z), interval
        ),
        dp_event=lambda dp: dp.SampledWithoutReplacementDpEvent(population, size, dp.GaussianDpEvent(z / 2)),
    )


@_record.register
def _(event: ReleasedSizeGaussian) -> Pricing:
    # Given the size, the cohort is one of fixed size: amplification is by the share that came, and not by the rate.
    z, sampling_rate, population = event.noise_multiplier, event.sampling_rate, event.population
    record = gaussian_record(
        lambda drawn: (
            f"Poisson {drawn}, rate {sampling_rate:g} of {population}, whose actual sizes are released: uniform ones "
            f"of each size, noise multiplier {z:.6g} of half the distance that a replacement can move the sum"
        ),
        Adjacency.REPLACE_ONE,
        z,
        moved=2,
        share=2 * sampling_rate,
        pld=lambda interval: fixed_size.sampled_by_size(
            partial(fixed_size.gaussian, shift=2 / z),
            fixed_size.binomial_sizes(population, sampling_rate),
            cut_off(2 / z),
            interval,
        ),
        dp_event=no_pld,
    )
    return replace(record, has_rdp=False, rdp=infinite)


@_record.register
def _(event: DiscreteGaussianSum) -> Pricing:
    rate, everybody = event.sampling_rate, {"cohorts": "all clients", "batches": "all samples"}
    unbounded = event.noise_multiplier < LEAST_NOISE
    return Pricing(
        lambda drawn: (
            f"{everybody.get(drawn, drawn) if rate == 1 else f'Poisson {drawn}, rate {rate:g}'}, "
            f"{event.shares} discrete Gaussians of scale {event.scale:.6g} in the modular sum of "
            f"{event.dimension} coordinates, noise multiplier {event.noise_multiplier:.6g} after rounding"
        ),
        Adjacency.ADD_OR_REMOVE_ONE,
        event.noise_multiplier,
        unbounded=unbounded,
        has_pld=False,
        rdp=infinite if unbounded else partial(discrete_gaussian.rdp, event),
    )


@_record.register
def _(event: BinomialSum) -> Pricing:
    # Moments are known of what is left when a chance is set aside, and only of that: no divergence is finite.
    record = Pricing(
        lambda drawn: (
            f"{drawn} of a share {event.sampling_rate:g}, drawn without replacement, Bin({event.trials}, 1/2) on "
            f"{event.levels} levels within +-{event.range:g} in {event.dimension} coordinates, a replaced sample "
            f"moving the vector by {2 * event.clip_norm:g}, {2 * event.step_delta:g} set aside in a step"
        ),
        Adjacency.REPLACE_ONE,
        event.noise_multiplier,
        unbounded=event.noise_multiplier < LEAST_NOISE,
        has_rdp=False,
    )
    try:
        loss = binomial.loss(event)
    except UnsupportedMechanismError as too_few_trials:
        return replace(record, refusal=str(too_few_trials), more_noise_helps=True)
    return replace(
        record,
        typical_loss=event.sampling_rate * loss.shift,
        largest_loss=loss.top,
        pld=partial(fixed_size.sampled, partial(binomial.profile, of=loss), event.sampling_rate, loss.top),
    )


@_record.register
def _(event: BestOfTrials) -> Pricing:
    count = TrialCount(event.mean, event.shape)
    price = TrialPrice(event.order, event.divergence, event.order_hat, event.divergence_hat)

    def rdp(orders: Sequence[float]) -> Any:
        """Known at one order; it is no smaller than at those below, and nothing is said of those above."""
        selected = price.selected(count)
        return np.array([selected if order <= event.order else math.inf for order in orders])

    return Pricing(
        lambda drawn: (
            f"the best of a random number of trials ({count.words}, {event.mean:g} on average), each of a Renyi "
            f"divergence of {event.divergence:.6g} at order {event.order:g} and {event.divergence_hat:.6g} at order "
            f"{event.order_hat:g} ({count.theorem})"
        ),
        Adjacency(event.adjacency),
        has_pld=False,
        rdp=rdp,
    )
