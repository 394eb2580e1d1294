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
| anything else     | -              | refused                                       | refused                       |
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial, singledispatch
from typing import Any

import numpy as np

from cloister.errors import UnsupportedMechanismError
from cloister.privacy import binomial, discrete_gaussian, fixed_size
from cloister.privacy.events import (
    Adjacency,
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

_LOG_TAIL = -50.0  # ln of the probability mass that may be moved to infinity, as in dp-accounting
_TAIL_DEVIATIONS = 9.9  # P(Z > 9.9) < exp(-50) for a standard normal Z
_LEAST_NOISE = 1e-5  # less is priced as none
_MOST_STEP_POINTS = 2**19  # the finest grid for one step


def _infinite(orders: Sequence[float]) -> Any:
    return np.full(len(orders), math.inf)


def _no_pld(interval: float) -> Any:
    raise AssertionError("asked for the privacy loss distribution of an event that has none")


@dataclass(frozen=True)
class Pricing:
    """The record of one event; `pricing_of` makes it, once."""

    words: Callable[[str], str]
    """For a certificate. The argument is what is drawn: cohorts, or batches."""
    adjacency: Adjacency | None = None
    """Which pairs of populations its price is about; None where it says nothing about any."""
    noise_multiplier: float | None = None
    refusal: str | None = None
    """Why a ledger refuses it, in a sentence, where no price is proven."""
    more_noise_helps: bool = False
    """Whether what is refused would have a price with more noise."""
    free: bool = False
    """Whether it costs nothing, because another event has paid for it."""
    unbounded: bool = False
    """Whether nothing is known but that it costs a great deal; with next to no noise the arithmetic overflows."""
    has_pld: bool = True
    """False where RDP alone has a price."""
    has_rdp: bool = True
    """False where PLD alone has a price."""
    directions: int = 1
    """Two where adding a unit and removing one lose differently."""
    typical_loss: float = 0.0
    """The size of one release's privacy loss, roughly."""
    largest_loss: float = 0.0
    """Where one release's privacy loss is cut off, whatever the sampling."""
    pld: Callable[[float], Any] = _no_pld
    """One release's privacy loss distribution on a grid of this interval."""
    rdp: Callable[[Sequence[float]], Any] = _infinite
    """One release's Renyi divergences at these orders."""
    json: dict[str, Any] = field(default_factory=dict)
    """The event as a ledger writes it."""

    @property
    def protects(self) -> bool:
        """Whether it hides anything: noise of a positive scale, drawn in a way that has a price."""
        return self.free or bool(self.noise_multiplier)

    @property
    def interval(self) -> float:
        """The grid of the privacy loss: a hundredth of the loss's typical size in one release.

        Connecting the dots on a grid of width h adds at most h^2/4 to the variance of one release's loss, so a
        hundredth costs about 1/40,000 of it. Very small or very wide losses get a coarser grid than that, which
        moves epsilon upwards, never downwards.
        """
        finest = max(1e-5, self.largest_loss / _MOST_STEP_POINTS)
        return max(finest, min(0.01 * self.typical_loss, 1e-2))


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
    return _gaussian(
        lambda drawn: f"one release to each who takes part, noise multiplier {z:.6g}, no amplification",
        Adjacency.ADD_OR_REMOVE_ONE,
        z,
        moved=1,
        share=1.0,
        pld=partial(_gaussian_pld, z, 1.0),
        dp_event=lambda dp: dp.GaussianDpEvent(z),
    )


@_record.register
def _(event: PoissonGaussian) -> Pricing:
    z, sampling_rate = event.noise_multiplier, event.sampling_rate
    return _gaussian(
        lambda drawn: f"Poisson {drawn}, rate {sampling_rate:g}, noise multiplier {z:.6g}",
        Adjacency.ADD_OR_REMOVE_ONE,
        z,
        moved=1,
        share=sampling_rate,
        pld=partial(_gaussian_pld, z, sampling_rate),
        dp_event=lambda dp: dp.PoissonSampledDpEvent(sampling_rate, dp.GaussianDpEvent(z)),
        directions=2,
    )


@_record.register
def _(event: FixedSizeGaussian) -> Pricing:
    # One client leaves and another comes: the sum moves by twice the bound of one contribution.
    z, size, population = event.noise_multiplier, event.size, event.population
    return _gaussian(
        lambda drawn: (
            f"uniform {drawn} of exactly {size} of {population}, noise multiplier {z:.6g} of half the distance that a "
            "replacement can move the sum (at most twice the clip)"
        ),
        Adjacency.REPLACE_ONE,
        z,
        moved=2,
        share=2 * size / population,
        pld=lambda interval: fixed_size.sampled(
            partial(fixed_size.gaussian, shift=2 / z), size / population, _cut_off(2 / z), interval
        ),
        dp_event=lambda dp: dp.SampledWithoutReplacementDpEvent(population, size, dp.GaussianDpEvent(z / 2)),
    )


@_record.register
def _(event: ReleasedSizeGaussian) -> Pricing:
    # Given the size, the cohort is one of fixed size: amplification is by the share that came, and not by the rate.
    z, sampling_rate, population = event.noise_multiplier, event.sampling_rate, event.population
    record = _gaussian(
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
            _cut_off(2 / z),
            interval,
        ),
        dp_event=_no_pld,
    )
    return replace(record, has_rdp=False, rdp=_infinite)


@_record.register
def _(event: DiscreteGaussianSum) -> Pricing:
    rate, everybody = event.sampling_rate, {"cohorts": "all clients", "batches": "all samples"}
    unbounded = event.noise_multiplier < _LEAST_NOISE
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
        rdp=_infinite if unbounded else partial(discrete_gaussian.rdp, event),
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
        unbounded=event.noise_multiplier < _LEAST_NOISE,
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


def _gaussian(
    words: Callable[[str], str],
    adjacency: Adjacency,
    noise_multiplier: float,
    *,
    moved: float,
    share: float,
    pld: Callable[[float], Any],
    dp_event: Callable[[Any], Any],
    directions: int = 1,
) -> Pricing:
    """Gaussian noise on a sum that neighbors move by `moved` bounds, and by about `share` of one in the mean."""
    if noise_multiplier < _LEAST_NOISE:
        return Pricing(words, adjacency, noise_multiplier, unbounded=True)
    return Pricing(
        words,
        adjacency,
        noise_multiplier,
        directions=directions,
        typical_loss=share / noise_multiplier,
        largest_loss=_cut_off(moved / noise_multiplier),
        pld=pld,
        rdp=partial(_library_rdp, dp_event, adjacency),
    )


def _cut_off(shift: float) -> float:
    return shift * shift / 2 + _TAIL_DEVIATIONS * shift


def _gaussian_pld(noise_multiplier: float, sampling_rate: float, interval: float) -> Any:
    from dp_accounting.pld import privacy_loss_distribution as pld

    return pld.from_gaussian_mechanism(
        noise_multiplier,
        sampling_prob=sampling_rate,
        value_discretization_interval=interval,
        log_mass_truncation_bound=_LOG_TAIL,
    )


def _library_rdp(dp_event: Callable[[Any], Any], adjacency: Adjacency, orders: Sequence[float]) -> Any:
    """By dp-accounting, of the event that it knows by another name."""
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(list(orders), dp.NeighboringRelation[adjacency.name])
    with quiet():
        accountant.compose(dp_event(dp))
    return accountant._rdp


@contextmanager
def quiet() -> Iterator[None]:
    """dp-accounting warns about every order that it leaves out; leaving orders out is harmless."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
