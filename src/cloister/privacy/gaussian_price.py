"""What Gaussian noise costs, by dp-accounting: the record of a release, its privacy loss, its Renyi divergences."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from cloister.privacy.events import Adjacency
from cloister.privacy.price_record import Pricing

LOG_TAIL = -50.0  # ln of the probability mass that may be moved to infinity, as in dp-accounting
_TAIL_DEVIATIONS = 9.9  # P(Z > 9.9) < exp(-50) for a standard normal Z
LEAST_NOISE = 1e-5  # less is priced as none


def gaussian_record(
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
    if noise_multiplier < LEAST_NOISE:
        return Pricing(words, adjacency, noise_multiplier, unbounded=True)
    return Pricing(
        words,
        adjacency,
        noise_multiplier,
        directions=directions,
        typical_loss=share / noise_multiplier,
        largest_loss=cut_off(moved / noise_multiplier),
        pld=pld,
        rdp=partial(library_rdp, dp_event, adjacency),
    )


def cut_off(shift: float) -> float:
    """Beyond which a Gaussian's privacy loss is moved to infinity."""
    return shift * shift / 2 + _TAIL_DEVIATIONS * shift


def gaussian_pld(noise_multiplier: float, sampling_rate: float, interval: float) -> Any:
    """By dp-accounting, on a grid of this interval."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    return pld.from_gaussian_mechanism(
        noise_multiplier,
        sampling_prob=sampling_rate,
        value_discretization_interval=interval,
        log_mass_truncation_bound=LOG_TAIL,
    )


def library_rdp(dp_event: Callable[[Any], Any], adjacency: Adjacency, orders: Sequence[float]) -> Any:
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
