"""Fed-SPA: every agent trains a random part of the coordinates, and the server steps adaptively. DP-Fed: all of them.

Hu, Gong & Guo, "Federated learning with sparsification-amplified privacy and adaptive optimization", IJCAI 2021.

    g = (sum over the batch of clip(active part of a sample's gradient, sqrt(p) G) + noise on the active part) / (B p)

The active k = p d coordinates are drawn for each agent and round, from nobody's data, and stay for all of its steps; k
numbers are sent. A sample's active part is clipped to sqrt(p) G as a whole (clipping = "norm"), or each of its
coordinates to G / sqrt(d) ("coordinate"), which comes to the same bound.

The paper takes G from the agents' gradients without paying for it: G / sqrt(d) is the median of absolute gradient
values in an initial round. Here there are four ways (`bound`):

    public         G is a constant, clip_norm (the default)
    median         the paper's median, at the first model, by one query that has a share of the budget
    public_median  the same median over public samples, which is free
    quantile       G follows a quantile of the gradients' norms, by a query in every step, which is priced

With trust = "sum" a round is one step of all agents together, on the same active coordinates for all of them, and the
noise is in their secure sum.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated, Literal

from cloister import client, transforms
from cloister.client.gradient_median import ReleasedNumber
from cloister.client.training import BatchSize, Epochs, LearningRate, LearningRateDecay, Steps, sgd_optimizer
from cloister.core import BatchSampling, BindContext, LocalRule, Method
from cloister.core.arguments import flat_arguments
from cloister.core.schedules import Schedule
from cloister.core.sparsity import expect_fraction, kept_of
from cloister.errors import expect, expect_one_of, expect_positive
from cloister.mechanisms.gaussian import in_steps
from cloister.methods.arguments import (
    BatchSamplingOfMode,
    ClipLearningRate,
    Keep,
    MedianShare,
    NoiseMultiplier,
    PoissonRate,
    Quantile,
    QueryNoise,
    SampleClipNorm,
    Server,
)
from cloister.methods.gradient_bounds import asked_for, bound_notes, expect_paid, public_bound, with_bound
from cloister.methods.published import Mode, as_published, claim
from cloister.methods.registry import EVERY_UPDATE, register
from cloister.methods.secure_sum import SECURE_SUM, UPDATE_OR_SUM, SumTrust, in_one_sum
from cloister.methods.weighting import PublicWeights
from cloister.server import optimizers

_BATCH_SIZE = 10
_PUBLISHED = (
    "batches of fixed size, priced strictly, with the paper's Theorem 1 beside (and whether its conditions hold)"
)


@register("Hu, Gong & Guo, IJCAI 2021", UPDATE_OR_SUM, SECURE_SUM, published=_PUBLISHED, unit="sample", server="adam")
@flat_arguments
def fed_spa(
    clip_norm: Annotated[float, "G, the bound on a sample's whole gradient"] = 1.0,
    keep_fraction: Keep = 0.4,
    lr: LearningRate = 0.1,
    batch_size: BatchSize = _BATCH_SIZE,
    local_steps: Steps = None,
    local_epochs: Epochs = None,
    clipping: Annotated[
        Literal["norm", "coordinate"], "a sample's gradient is clipped by its norm, or coordinate by coordinate"
    ] = "norm",
    bound: Annotated[
        Literal["public", "quantile", "median", "public_median"],
        "where G comes from: public (clip_norm), priced queries (quantile, median), or public samples (public_median)",
    ] = "public",
    quantile: Quantile = 0.5,
    clip_lr: ClipLearningRate = 0.2,
    query_noise: QueryNoise = 5.0,
    median_share: MedianShare = 0.02,
    lr_decay: LearningRateDecay = 1.0,
    batch_sampling: BatchSamplingOfMode = None,
    poisson_rate: PoissonRate = "pass",
    noise_multiplier: NoiseMultiplier = None,
    mode: Mode = "sound",
    server: Server = None,
    *,
    schedule: Schedule,
    weighting: PublicWeights,
    secure: SumTrust,
) -> Method:
    """A random part of the coordinates for each agent and round. `clip_norm` is G, the bound on a whole gradient.
    With `trust = "sum"` a round is one step, on a part that is the same for all agents, under noise in their sum.

    Guarantee: every update of an agent (or, with trust = "sum", every secure sum of all agents) is differentially
    private for any one of its samples, over all rounds that it took part in, at the epsilon that the run's certificate
    states for it.
    """
    if secure.in_sum:
        _refuse(secure, "fed_spa", weighting, local_steps, local_epochs, batch_sampling, mode, bound, batch_size)
    batch_sampling = _batch_sampling(batch_sampling, mode)
    expect_positive("clip_norm", clip_norm, "the bound on a sample's whole gradient")
    expect_fraction("keep_fraction", keep_fraction)
    expect_one_of("clipping", clipping, ("norm", "coordinate"))
    expect_one_of("bound", bound, ("public", "quantile", "median", "public_median"))
    expect_paid(bound, mode)

    def rule(numbers: int, whole: float, number: ReleasedNumber | None = None) -> LocalRule:
        """For a model of so many numbers and G = whole: the part of them that is active is a whole number."""
        within = whole * math.sqrt(kept_of(numbers, keep_fraction) / numbers)
        if number is not None:
            threshold = client.released(number)
        elif bound == "quantile":
            threshold = client.quantile(within, quantile, clip_lr, query_noise, within * 1e-3, within * 1e3)
        else:
            threshold = client.fixed(within)
        how = client.by_norm()
        if clipping == "coordinate" and number is None:
            how = client.by_coordinate(lambda d: whole / math.sqrt(d))
        elif clipping == "coordinate":
            how = client.by_active_coordinate(keep_fraction)
        return client.dp_sgd(
            threshold,
            sgd_optimizer(lr, lr_decay=lr_decay, schedule=schedule),
            batch_size,
            local_steps,
            local_epochs,
            batch_sampling,
            "reset",
            how,
            keep_fraction,
            poisson_rate,
        )

    def summed(numbers: int, whole: float) -> LocalRule:
        """The same for one step of all agents together."""
        within = whole * math.sqrt(kept_of(numbers, keep_fraction) / numbers)
        how = client.by_norm() if clipping == "norm" else client.by_coordinate(lambda d: whole / math.sqrt(d))
        told = {"active": ("0", "active")}
        return client.clipped_sum(within, batch_size, poisson_rate, secure.sample_rate, how, keep_fraction, told)

    if secure.in_sum:
        return in_one_sum(
            "fed_spa",
            secure,
            summed(_ANY, clip_norm),
            sgd_optimizer(lr, lr_decay=lr_decay, schedule=schedule),
            server or optimizers.adam(),
            noise_multiplier,
            transforms.common_part(keep_fraction),
            lambda context: summed(context.layout.size, public_bound("fed_spa", bound, clip_norm, context)),
            bound_notes(bound),
        )

    def bind(method: Method, context: BindContext) -> Method:
        size = context.layout.size
        active = kept_of(size, keep_fraction)
        return with_bound(method, bound, median_share, clip_norm, context, active, partial(rule, size))

    return Method(
        name="fed_spa",
        local=rule(_ANY, clip_norm),
        transform=weighting.after(transforms.active_part(keep_fraction)),
        mechanism=in_steps(noise_multiplier),
        server=server or optimizers.adam(),
        released=EVERY_UPDATE,
        bind=bind,
        claims=claim(mode, "fed_spa"),
        notes=(*weighting.notes, *bound_notes(bound)),
        public_sizes=weighting.public_sizes,
        first_query=asked_for(bound, median_share),
    )


_ANY = 1000
"""Before the model is known: what is priced does not depend on its size."""


def _refuse(
    secure: SumTrust,
    name: str,
    weighting: PublicWeights,
    local_steps: int | None,
    local_epochs: int | None,
    batch_sampling: BatchSampling | None,
    mode: Mode,
    bound: str,
    batch_size: int,
) -> None:
    """What does not go with trust = sum."""
    secure.refuse(
        name,
        weighting,
        local_steps=None if local_steps == 1 else local_steps,  # which is what a round is
        local_epochs=local_epochs,
        batch_sampling=None if batch_sampling == "poisson" else batch_sampling,
        mode=mode if as_published(mode) else None,
        bound=bound if bound in ("quantile", "median") else None,
        batch_size=None if secure.sample_rate is None or batch_size == _BATCH_SIZE else batch_size,
    )


@register("Hu, Gong & Guo, IJCAI 2021", UPDATE_OR_SUM, SECURE_SUM, published=_PUBLISHED, unit="sample")
@flat_arguments
def dp_fed(
    clip_norm: SampleClipNorm = 1.0,
    lr: LearningRate = 0.1,
    batch_size: BatchSize = _BATCH_SIZE,
    local_steps: Steps = None,
    local_epochs: Epochs = None,
    lr_decay: LearningRateDecay = 1.0,
    batch_sampling: BatchSamplingOfMode = None,
    poisson_rate: PoissonRate = "pass",
    noise_multiplier: NoiseMultiplier = None,
    mode: Mode = "sound",
    server: Server = None,
    bound: Annotated[
        Literal["public", "median", "public_median"],
        "where the clip comes from: public (clip_norm), a priced query (median), or public samples (public_median)",
    ] = "public",
    median_share: MedianShare = 0.02,
    *,
    schedule: Schedule,
    weighting: PublicWeights,
    secure: SumTrust,
) -> Method:
    """Fed-SPA's yardstick: all coordinates, and a server that averages. Guarantee: that of Fed-SPA."""
    if secure.in_sum:
        _refuse(secure, "dp_fed", weighting, local_steps, local_epochs, batch_sampling, mode, bound, batch_size)
    drawn = _batch_sampling(batch_sampling, mode)
    expect_positive("clip_norm", clip_norm, "the bound on a sample's gradient")
    expect_one_of("bound", bound, ("public", "median", "public_median"))
    expect_paid(bound, mode)

    def summed(whole: float) -> LocalRule:
        return client.clipped_sum(whole, batch_size, poisson_rate, secure.sample_rate)

    if secure.in_sum:
        return in_one_sum(
            "dp_fed",
            secure,
            summed(clip_norm),
            sgd_optimizer(lr, lr_decay=lr_decay, schedule=schedule),
            server or optimizers.sgd(),
            noise_multiplier,
            rule_of=lambda context: summed(public_bound("dp_fed", bound, clip_norm, context)),
            notes=bound_notes(bound),
        )

    def rule(whole: float, number: ReleasedNumber | None = None) -> LocalRule:
        return client.dp_sgd(
            client.fixed(whole) if number is None else client.released(number),
            sgd_optimizer(lr, lr_decay=lr_decay, schedule=schedule),
            batch_size,
            local_steps,
            local_epochs,
            drawn,
            poisson_rate=poisson_rate,
        )

    def bind(method: Method, context: BindContext) -> Method:
        return with_bound(method, bound, median_share, clip_norm, context, context.layout.size, rule)

    return Method(
        name="dp_fed",
        local=rule(clip_norm),
        transform=weighting.after(transforms.identity()),
        mechanism=in_steps(noise_multiplier),
        server=server or optimizers.sgd(),
        released=EVERY_UPDATE,
        bind=None if bound == "public" else bind,
        claims=claim(mode, "fed_spa"),
        notes=(*weighting.notes, *bound_notes(bound)),
        public_sizes=weighting.public_sizes,
        first_query=asked_for(bound, median_share),
    )


def _batch_sampling(batch_sampling: BatchSampling | None, mode: Mode) -> BatchSampling:
    """BatchSampling of a fixed size are what was published; Poisson batches cost less."""
    published = as_published(mode)
    expect(
        not published or batch_sampling != "poisson",
        "fixed batches for mode = as_published",
        batch_sampling,
        "leave batch_sampling out",
    )
    return batch_sampling or ("fixed_size" if published else "poisson")
