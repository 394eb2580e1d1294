"""Adap DP-FL: clipping thresholds that follow the gradients, and noise that falls while the loss does.

Fu, Chen & Han, "Adap DP-FL: differentially private federated learning with adaptive noise", TrustCom 2022.

    g = (sum over the batch of clip(gradient of a sample, C) + N(0, z^2 C^2 I)) / L,  a step of Adam along it
    repaired:  C <- alpha (sum over the batch of min(||gradient||, R) + noise) / L;   z <- noise_decay z at times

Every client takes a step (or a few) in a round, by Adam, whose state it keeps. Its threshold follows the norms of its
own samples' gradients; the printed recursion cuts norms at the threshold itself and drives it to zero, so that there
are others beside it (`threshold`):

    repaired     norms are cut at a public bound (the default)
    as_written   the printed one, above a floor
    quantile     a quantile of the norms is followed instead (Andrew et al. 2021)
    fixed        always clip_norm: adaptive noise alone, as in the paper's Fig. 4

The first three ask the data for something, and all are priced; the paper leaves it out. A fixed one asks nothing, and
pays for the gradient alone. (`dp_fl` is the baseline in which the noise is constant, too.)

The noise multiplier falls by `noise_decay` when the loss of the global model on PUBLIC samples has fallen three times
in a row. Noise that is chosen on the way needs a Renyi filter, whose order is fixed when the run begins.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Annotated, Any, Literal, get_args

from cloister import client, transforms
from cloister.client.thresholds import Threshold
from cloister.client.training import BatchSize, LearningRate
from cloister.core import BindContext, LocalRule, Method, State
from cloister.core.arguments import flat_arguments
from cloister.core.schedules import Schedule
from cloister.errors import CloisterError, expect_one_of, expect_positive, expect_share, shown
from cloister.mechanisms.gaussian import in_steps
from cloister.methods.arguments import (
    BatchSampling,
    ClipLearningRate,
    NoiseMultiplier,
    PoissonRate,
    Quantile,
    QueryNoise,
    Server,
)
from cloister.methods.published import Mode, as_published, claim
from cloister.methods.registry import EVERY_UPDATE, NOBODY, OWN_STEPS, register
from cloister.methods.weighting import PublicWeights
from cloister.server import optimizers

_PUBLIC = "the public samples: they are protected by nothing, and count as public"
Follows = Literal["repaired", "as_written", "quantile", "fixed"]
_OF_THE_QUERY = ("norm_bound", "alpha_clip", "floor", "quantile", "clip_lr", "query_noise")


@register(
    "Fu, Chen & Han, 2022",
    OWN_STEPS,
    NOBODY,
    published="the printed threshold, with the claim that leaves out its query",
    unit="sample",
)
@flat_arguments
def adap_dp_fl(
    clip_norm: Annotated[float | None, "threshold to start from (by default computed on samples made of noise)"] = None,
    threshold: Annotated[
        Follows | None, "how the clipping threshold follows: repaired, as_written, quantile, or not at all (fixed)"
    ] = None,
    norm_bound: Annotated[float, "the most that a gradient's norm counts for in the threshold's query; public"] = 10.0,
    alpha_clip: Annotated[float, "the threshold as a multiple of the mean norm"] = 1.0,
    floor: Annotated[float, "the threshold is never below this"] = 0.01,
    quantile: Quantile = 0.5,
    clip_lr: ClipLearningRate = 0.2,
    query_noise: QueryNoise = 5.0,
    noise_decay: Annotated[
        float, "factor on the noise multiplier when the public loss has fallen three times; 1 keeps it"
    ] = 0.9999,
    lr: LearningRate = 0.002,
    batch_size: BatchSize = 78,
    local_steps: Annotated[int, "local steps in a round"] = 1,
    batch_sampling: BatchSampling = "poisson",
    poisson_rate: PoissonRate = "pass",
    noise_multiplier: NoiseMultiplier = None,
    mode: Mode = "sound",
    server: Server = None,
    *,
    schedule: Schedule,
    weighting: PublicWeights,
) -> Method:
    """Adaptive clipping on every client, adaptive noise for all. Needs public samples, unless noise_decay = 1.

    `clip_norm` is the threshold to start from; left out, it is the mean norm of gradients on samples made of noise. A
    fixed threshold needs one, and takes no key of the query that the others ask.

    Guarantee: every update of a client is differentially private for any one of its samples, over all rounds that it
    took part in. A client whose next step would exceed its budget drops out before it computes it.
    """
    kind = threshold or ("as_written" if as_published(mode) else "repaired")
    expect_one_of("threshold", kind, get_args(Follows))
    expect_share("noise_decay", noise_decay, "1 keeps the noise as it is", one=True)
    expect_positive("floor", floor, "a threshold of zero would clip everything away")
    expect_positive("norm_bound", norm_bound, "the most that a gradient's norm counts for")

    if kind == "fixed":
        given = (norm_bound, alpha_clip, floor, quantile, clip_lr, query_noise)
        _expect_no_query(clip_norm, dict(zip(_OF_THE_QUERY, given, strict=True)))

    def follows(start: float) -> Threshold:
        if kind == "fixed":
            return client.fixed(start)
        if kind == "repaired":
            return client.repaired(start, norm_bound, alpha_clip, floor, query_noise)
        if kind == "as_written":
            return client.as_written(start, alpha_clip, floor)
        return client.quantile(start, quantile, clip_lr, query_noise, floor, norm_bound)

    def bind(method: Method, context: BindContext) -> Method:
        if noise_decay < 1 and context.public_samples is None:
            raise CloisterError(
                f"Expected public samples on which the loss is watched, found none: a loss on the clients' own samples "
                f"would be a query that nobody pays for, so set some aside (public_samples = 1000), or keep the noise "
                f"(noise_decay = 1, now {noise_decay:g})."
            )
        if clip_norm is None and context.norms is None:
            raise CloisterError("Expected a clip to start from, found none: give clip.")
        if clip_norm is not None or context.norms is None:
            return method
        found = float(context.norms().mean())
        return replace(method, local=rule(min(max(found, floor), norm_bound)))

    def rule(start: float) -> LocalRule:
        return client.dp_sgd(
            follows(start),
            client.adam(lr, schedule=schedule),
            batch_size,
            local_steps,
            batch_sampling=batch_sampling,
            memory="kept",
            poisson_rate=poisson_rate,
        )

    inner = server or optimizers.sgd()
    return Method(
        name="adap_dp_fl",
        local=rule(min(max(1.0, floor), norm_bound) if clip_norm is None else clip_norm),
        transform=weighting.after(transforms.identity()),
        mechanism=in_steps(noise_multiplier),
        server=inner if noise_decay == 1 else optimizers.decay_on_loss(inner, noise_decay),
        released=EVERY_UPDATE,
        bind=bind,
        claims=claim(mode, "adap_dp_fl"),
        notes=(*(() if noise_decay == 1 else (_PUBLIC,)), *weighting.notes),
        noise_schedule=None if noise_decay == 1 else _noise_scale,
        public_sizes=weighting.public_sizes,
    )


def _noise_scale(state: State) -> float:
    return float(state["noise"]) if "noise" in state else 1.0


def _expect_no_query(clip_norm: float | None, given: dict[str, Any]) -> None:
    """Refuse what a fixed threshold would have no use for, and one that nobody has chosen."""
    if clip_norm is None:
        raise CloisterError(
            "Expected a clip_norm for a fixed threshold, found none: give one, such as clip_norm = 1 of the paper's "
            "Fig. 4."
        )
    usual = inspect.signature(adap_dp_fl).parameters
    for name, value in given.items():
        if value != usual[name].default:
            raise CloisterError(
                f"Expected no {name} beside a fixed threshold, which asks the data nothing, found {shown(value)}: "
                'leave it out, or choose threshold = "repaired".'
            )
