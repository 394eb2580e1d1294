"""Fed-SPA: every agent trains a random part of the coordinates, and the server steps adaptively. DP-Fed: all of them.

Hu, Gong & Guo, "Federated learning with sparsification-amplified privacy and adaptive optimization", IJCAI 2021.

    g = (sum over the batch of clip(active part of a sample's gradient, sqrt(p) G) + noise on the active part) / (B p)

The active k = p d coordinates are drawn for each agent and round, from nobody's data, and stay for all of its steps; k
numbers are sent. A sample's active part is clipped to sqrt(p) G as a whole (clipping = "norm"), or each of its
coordinates to G / sqrt(d) ("coordinate"), which comes to the same bound.

The paper takes G from the agents' gradients without paying for it. Here G is a public constant (bound = "public"), or
it follows a quantile of the gradients' norms by a query in every step, which is priced (bound = "quantile").
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Literal

from cloister import client, transforms
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
        Literal["public", "quantile"],
        "where G comes from: public (clip), or a quantile of norms, by priced queries",
    ] = "public",
    quantile: Quantile = 0.5,
    clip_lr: ClipLearningRate = 0.2,
    query_noise: QueryNoise = 5.0,
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
    expect_one_of("bound", bound, ("public", "quantile"))

    def rule(numbers: int) -> LocalRule:
        """For a model of so many numbers: the part of them that is active is a whole number."""
        within = clip_norm * math.sqrt(kept_of(numbers, keep_fraction) / numbers)
        threshold = (
            client.fixed(within)
            if bound == "public"
            else client.quantile(within, quantile, clip_lr, query_noise, within * 1e-3, within * 1e3)
        )
        how = client.by_norm() if clipping == "norm" else client.by_coordinate(lambda d: clip_norm / math.sqrt(d))
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
        return replace(method, local=rule(context.layout.size))

    return Method(
        name="fed_spa",
        local=rule(_ANY),
        transform=weighting.after(transforms.active_part(keep_fraction)),
        mechanism=in_steps(noise_multiplier),
        server=server or optimizers.adam(),
        released=EVERY_UPDATE,
        bind=bind,
        claims=claim(mode, "fed_spa"),
        notes=weighting.notes,
        public_sizes=weighting.public_sizes,
    )


_ANY = 1000
"""Before the model is known: what is priced does not depend on its size."""


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
    *,
    schedule: Schedule,
    weighting: PublicWeights,
) -> Method:
    """Fed-SPA's yardstick: all coordinates, and a server that averages. Guarantee: that of Fed-SPA."""
    rule = client.dp_sgd(
        client.fixed(clip_norm),
        sgd_optimizer(lr, lr_decay=lr_decay, schedule=schedule),
        batch_size,
        local_steps,
        local_epochs,
        _batch_sampling(batch_sampling, mode),
        poisson_rate=poisson_rate,
    )
    return Method(
        name="dp_fed",
        local=rule,
        transform=weighting.after(transforms.identity()),
        mechanism=in_steps(noise_multiplier),
        server=server or optimizers.sgd(),
        released=EVERY_UPDATE,
        claims=claim(mode, "fed_spa"),
        notes=weighting.notes,
        public_sizes=weighting.public_sizes,
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
