"""What a release of a method costs: whom it protects, the noise that its updates are under, and who was drawn."""

from __future__ import annotations

import math

from cloister.core import Cohort, Layout, Method, Sensitivity
from cloister.privacy.events import Adjacency, Event, Gaussian, NonPrivate, PoissonGaussian, ReleasedSizeGaussian
from cloister.privacy.ledger import Charge
from cloister.privacy.pricing import adjacency_of
from cloister.privacy.unit import ProtectedUnit


def sensitivity_of(method: Method, layout: Layout) -> Sensitivity:
    """What is known of any client's message under a method; or, where it is a sum over samples, of one's part in it."""
    within = math.inf if method.local.sample_l2 is None else method.local.sample_l2
    return method.transform.sensitivity(Sensitivity(within, layout.size), layout)


def charge_of(method: Method, noise: float, samples: int, steps: int, copies: int, layout: Layout) -> Charge:
    """What so many steps cost a sample of a client with so many samples, if it lies with `copies` such clients."""
    batching, private = method.local.batching, method.local.private
    if not noise:
        return Charge(NonPrivate())
    if private is not None:
        return Charge(batching.event(private.worth(noise), samples), steps * copies)
    event = method.mechanism.account(batching.event(noise, samples), sensitivity_of(method, layout))
    return Charge(event, steps * copies)


def event_of(method: Method, cohort: Cohort, layout: Layout, clients: int) -> Event:
    """What a release of the (bound) method costs: its noise as a multiple of what a client can contribute."""
    noise = method.mechanism.noise_multiplier
    if not noise or method.unit is ProtectedUnit.SAMPLE:
        return NonPrivate()
    sensitivity = sensitivity_of(method, layout)
    sound = noise if sensitivity.assumed_l2 is None else noise * sensitivity.assumed_l2 / sensitivity.l2
    if method.local_only:  # a message becomes any other, under one share of the noise, and everybody sees whose it is
        return Gaussian(sound * sensitivity.l2 / (sensitivity.replaced * math.sqrt(cohort.expected(clients))))
    event = cohort_event(method, cohort, sound, clients)
    if adjacency_of(event) is Adjacency.REPLACE_ONE:  # which is priced as if the sum moved by twice the bound
        event = cohort_event(method, cohort, sound * 2 * sensitivity.l2 / sensitivity.replaced, clients)
    return method.mechanism.account(event, sensitivity)


def cohort_event(method: Method, cohort: Cohort, noise: float, clients: int) -> Event:
    """What such noise over such cohorts is worth, where clients are protected.

    Whoever divides by a cohort's actual size releases it: the size of the steps and of their noise follow from it. With
    N clients on a public roster it is a sum of N coins, which no client's data have a part in. But given that m came,
    the cohort is one of all subsets of m: a client was in it with probability m/N and not q, and one in whose place
    another is moves the sum by twice the bound, not by one. So what is priced are cohorts of fixed size, over all
    sizes, for replacing a client's data (by none, for one). Cohorts whose size is a constant cost what they cost.
    """
    event = cohort.event(noise, clients)
    if method.average_over == "actual" and isinstance(event, PoissonGaussian):
        return ReleasedSizeGaussian(noise, event.sampling_rate, clients)
    return event
