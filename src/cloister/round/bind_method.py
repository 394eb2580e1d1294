"""Completing a method for a model and a cohort; what no noise would make private, or has no price, is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from cloister.core import BindContext, Cohort, Layout, Method, Samples
from cloister.core.mechanism import as_drawn
from cloister.errors import CloisterError, expect
from cloister.privacy.events import Adjacency, PoissonGaussian
from cloister.privacy.pricing import adjacency_of
from cloister.privacy.unit import ProtectedUnit
from cloister.round.charges import sensitivity_of


def bind_method(
    method: Method,
    cohort: Cohort,
    layout: Layout,
    clients: int,
    public_samples: Samples | None = None,
    norms: Callable[[], Tensor] | None = None,
    public_median: Callable[[], float] | None = None,
) -> Method:
    """The method, completed for a model and a cohort; refused where no noise would make it private."""
    expected, noise = cohort.expected(clients), method.mechanism.noise_multiplier
    expect(
        0 < expected <= clients,
        f"a cohort of at most {clients} clients, as many as there are",
        expected,
        "ask for fewer",
    )
    if noise is not None and method.bind is not None:
        separation = cohort.min_separation(clients)
        context = BindContext(layout, expected, separation, public_samples, norms, public_median, clients)
        method = replace(method.bind(method, context), bind=None)
    _expect_public_sizes(method)
    if method.mechanism.place == "local":
        _expect_private_steps(method)
        return method
    mechanism, sensitivity = method.mechanism, sensitivity_of(method, layout)
    if method.noise_schedule is not None and mechanism.place != "nowhere":
        raise CloisterError(
            f"Expected noise in the steps of clients for {method.name}, which chooses it on the way, found "
            f"{mechanism.name}, {mechanism.place}: its price would follow the schedule, and the noise would not, so "
            "use mechanisms.in_steps."
        )
    summed = method.local.sample_l2 is not None and mechanism.honest_fraction is not None
    _expect_sums_of_samples(method)
    if (
        method.unit is ProtectedUnit.SAMPLE
        and method.bind is None
        and noise
        and mechanism.account is as_drawn
        and not summed
    ):
        raise CloisterError(
            f"Expected noise that is priced for single samples (in_steps, binomial) for the unit sample, found "
            f"{mechanism.name}, {mechanism.place}: use the unit client."
        )
    if noise and not sensitivity.l2 < math.inf:
        raise CloisterError(
            f"Expected a bounded update for the {mechanism.name} mechanism, found none: without a "
            "bound no noise suffices, so add transforms.clip_l2(clip) to the method with a finite clip."
        )
    if mechanism.min_separation > cohort.min_separation(clients):
        raise CloisterError(
            f"Expected cohorts in which a client takes part once in {mechanism.min_separation} rounds at most, "
            f"because the noise of {method.name} is correlated over as many, found cohorts {cohort.name} of {clients} "
            f"clients: use cohort = cyclic, with cohorts of at most {clients // mechanism.min_separation}."
        )
    most = mechanism.most_l2(sensitivity)
    if method.bind is None and noise and (sensitivity.integer is not mechanism.integer or sensitivity.l2 > most):
        raise CloisterError(
            f"Expected messages of norm at most {most:g} for {mechanism.name} noise, and whole numbers for whole noise "
            f"alone, found a bound of {sensitivity.l2:g} and {'whole' if sensitivity.integer else 'real'} numbers: "
            "scale the one to the other."
        )
    if noise and method.transform.after is not None and not method.local_only:
        raise CloisterError(
            f"Expected noise to be the last thing that happens to a message, found {parts_of(method)}, where something "
            "follows it: of a sum of such messages nothing is proven, so leave that out, or price single messages "
            "(local_only)."
        )
    if method.local_only and noise and mechanism.account is not as_drawn:
        raise CloisterError(
            f"Expected Gaussian noise for {method.name}, of which single messages are priced, found {mechanism.name}: "
            "use mechanisms.gaussian."
        )
    if method.local_only and isinstance(cohort.event(1.0, clients), PoissonGaussian):
        raise CloisterError(
            f"Expected cohorts of a fixed size for {method.name}, whose clients are protected by their own shares of "
            "the noise alone, found poisson: use cohort = fixed_size or full."
        )
    return method


def _expect_sums_of_samples(method: Method) -> None:
    """Noise that protects samples in a sum is for messages in which a sample's part is bounded, of one batch a round,
    by a rule that says so; and such messages have no other."""
    local, mechanism = method.local, method.mechanism
    if local.sample_l2 is not None and not method.transform.bounds_distance:
        raise CloisterError(
            f"Expected transforms that bound how far a sample can move a sum, for {local.name}, found "
            f"{parts_of(method)}: leave out what only bounds norms (clip_l2)."
        )
    if (local.sample_l2 is None) == (mechanism.honest_fraction is None) or mechanism.place == "nowhere":
        return
    raise CloisterError(
        f"Expected sums of clipped gradients under shares of noise, the one for the other, found {local.name} and "
        f"{mechanism.name}, {mechanism.place}: use client.clipped_sum with mechanisms.sample_shares."
    )


def _expect_public_sizes(method: Method) -> None:
    """Where single samples are protected, a message may depend on their number only if that is public."""
    if method.transform.weighting is None or method.unit is not ProtectedUnit.SAMPLE or method.public_sizes:
        return
    if adjacency_of(method.local.batching.event(1.0, 1)) is not Adjacency.REPLACE_ONE:
        raise CloisterError(
            f"Expected public numbers of samples for {method.name} with weights by them, found poisson batches, where "
            "a sample is added or removed and its client would weigh more or less: declare them public (public_sizes = "
            'true), replace samples instead (batch_sampling = "fixed_size"), or leave client_weights out.'
        )


def _expect_private_steps(method: Method) -> None:
    """Noise in the steps protects samples whose batches are secret, and a message that is made of nothing else."""
    local = method.local
    private = local.private is not None and len(local.phases) == 1 and local.batching.batch_sampling is not None
    if not private or method.unit is not ProtectedUnit.SAMPLE:
        raise CloisterError(
            f"Expected a local rule of one phase whose steps are private by themselves, over secret batches, and the "
            f"unit sample, for noise that is local, found {local.name} and {method.unit}: use client.dp_sgd."
        )


def parts_of(method: Method) -> str:
    """What happens to a message, in words."""
    parts = method.transform.parts or (method.transform,)
    return f"{', '.join(part.name for part in parts)} under {method.mechanism.name} noise"
