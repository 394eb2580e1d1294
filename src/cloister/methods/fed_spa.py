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
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

from cloister import client, transforms
from cloister.client.gradient_median import ReleasedNumber, asked_median
from cloister.client.training import BatchSize, Epochs, LearningRate, LearningRateDecay, Steps, sgd_optimizer
from cloister.core import BatchSampling, BindContext, FirstQuery, LocalRule, Method
from cloister.core.arguments import flat_arguments
from cloister.core.schedules import Schedule
from cloister.core.sparsity import expect_fraction, kept_of
from cloister.errors import CloisterError, expect, expect_one_of, expect_positive
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
from cloister.methods.published import Mode, as_published, claim
from cloister.methods.registry import EVERY_UPDATE, NOBODY, OWN_STEPS, register
from cloister.methods.weighting import PublicWeights
from cloister.server import optimizers

_PUBLISHED = (
    "batches of fixed size, priced strictly, with the paper's Theorem 1 beside (and whether its conditions hold)"
)


@register("Hu, Gong & Guo, IJCAI 2021", OWN_STEPS, NOBODY, published=_PUBLISHED, unit="sample", server="adam")
@flat_arguments
def fed_spa(
    clip_norm: Annotated[float, "G, the bound on a sample's whole gradient"] = 1.0,
    keep_fraction: Keep = 0.4,
    lr: LearningRate = 0.1,
    batch_size: BatchSize = 10,
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
) -> Method:
    """A random part of the coordinates for each agent and round. `clip_norm` is G, the bound on a whole gradient.

    Guarantee: every update of an agent is differentially private for any one of its samples, over all rounds that it
    took part in, at the epsilon that the run's certificate states for it.
    """
    batch_sampling = _batch_sampling(batch_sampling, mode)
    expect_positive("clip_norm", clip_norm, "the bound on a sample's whole gradient")
    expect_fraction("keep_fraction", keep_fraction)
    expect_one_of("clipping", clipping, ("norm", "coordinate"))
    expect_one_of("bound", bound, ("public", "quantile", "median", "public_median"))
    _expect_paid(bound, mode)

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

    def bind(method: Method, context: BindContext) -> Method:
        size = context.layout.size
        active = kept_of(size, keep_fraction)
        return _bound(method, bound, median_share, clip_norm, context, active, partial(rule, size))

    return Method(
        name="fed_spa",
        local=rule(_ANY, clip_norm),
        transform=weighting.after(transforms.active_part(keep_fraction)),
        mechanism=in_steps(noise_multiplier),
        server=server or optimizers.adam(),
        released=EVERY_UPDATE,
        bind=bind,
        claims=claim(mode, "fed_spa"),
        notes=(*weighting.notes, *_notes(bound)),
        public_sizes=weighting.public_sizes,
        first_query=_first_query(bound, median_share),
    )


_ANY = 1000
"""Before the model is known: what is priced does not depend on its size."""
Rule = Callable[[float, ReleasedNumber | None], LocalRule]
"""Local training with G, which a query may set before the first round."""


def _bound(
    method: Method, bound: str, share: float, clip_norm: float, context: BindContext, active: int, rule: Rule
) -> Method:
    """The method for a model of which so many numbers are active, with the bound G that was asked for."""
    if bound == "public_median":
        if context.public_samples is None or context.public_median is None:
            raise CloisterError(
                f"Expected public samples for bound = public_median of {method.name}, found none: set some aside "
                "(public_samples = 500), or pay for the clients' own median (bound = median)."
            )
        return replace(method, local=rule(math.sqrt(context.layout.size) * context.public_median(), None))
    if bound != "median":
        return replace(method, local=rule(clip_norm, None))
    # The active coordinates, each within c, are together within c times the root of their number.
    number = ReleasedNumber(clip_norm * math.sqrt(active / context.layout.size))
    return replace(method, local=rule(clip_norm, number), first_query=asked_median(share, number, math.sqrt(active)))


def _first_query(bound: str, share: float) -> FirstQuery | None:
    """What will be asked; where the answer goes is known when the model is."""
    return asked_median(share, ReleasedNumber(1.0), 1.0) if bound == "median" else None


def _notes(bound: str) -> tuple[str, ...]:
    return ("the public samples: they are protected by nothing, and count as public",) if "public_" in bound else ()


def _expect_paid(bound: str, mode: Mode) -> None:
    """Refuse the paper's own way to its bound: a statistic of private gradients that nobody pays for."""
    if bound == "median" and as_published(mode):
        raise CloisterError(
            "Expected a bound that is paid for or public beside mode = as_published, found 'median': the paper takes "
            "it from private gradients for free, which has no price, so use bound = median with mode = sound, where "
            "it has a share of the budget, or bound = public_median."
        )


@register("Hu, Gong & Guo, IJCAI 2021", OWN_STEPS, NOBODY, published=_PUBLISHED, unit="sample")
@flat_arguments
def dp_fed(
    clip_norm: SampleClipNorm = 1.0,
    lr: LearningRate = 0.1,
    batch_size: BatchSize = 10,
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
) -> Method:
    """Fed-SPA's yardstick: all coordinates, and a server that averages. Guarantee: that of Fed-SPA."""
    drawn = _batch_sampling(batch_sampling, mode)
    expect_positive("clip_norm", clip_norm, "the bound on a sample's gradient")
    expect_one_of("bound", bound, ("public", "median", "public_median"))
    _expect_paid(bound, mode)

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
        return _bound(method, bound, median_share, clip_norm, context, context.layout.size, rule)

    return Method(
        name="dp_fed",
        local=rule(clip_norm),
        transform=weighting.after(transforms.identity()),
        mechanism=in_steps(noise_multiplier),
        server=server or optimizers.sgd(),
        released=EVERY_UPDATE,
        bind=None if bound == "public" else bind,
        claims=claim(mode, "fed_spa"),
        notes=(*weighting.notes, *_notes(bound)),
        public_sizes=weighting.public_sizes,
        first_query=_first_query(bound, median_share),
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
