"""cpSGD: gradients on a few levels under the noise of tossed coins, so that few bits are sent.

Agarwal, Suresh, Yu, Kumar & McMahan, "cpSGD: communication-efficient and differentially-private distributed SGD",
NeurIPS 2018; here as Fed-SPA's authors compare with it: a secret batch, one gradient, clipped, in every round.

    rotate (optional) -> cut off at +-X -> round at random to k levels -> add Bin(m, 1/2) - m/2

Levels may be odd in number, so that 0 is one of them, or even: 2^b of them are Fed-SPA's "b-bit quantization". Then one
more coin is tossed, which makes points halfway between whole numbers whole, and for which nothing is priced.

Two trust models, which are not to be compared with each other: `trust = "message"` prices the coins of one client,
whose message is private by itself; `trust = "sum"` those of all, and needs secure aggregation. X is a constant. The
published code takes it from the gradients, which nothing pays for; and the paper's theorem is not true for large
epsilon, so the price here rests on a proof of its own (`privacy/binomial.py`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated

from cloister import client, mechanisms, transforms
from cloister.client.training import BatchSize, LearningRate
from cloister.core import BindContext, Method
from cloister.core.arguments import flat_arguments
from cloister.core.schedules import Schedule
from cloister.errors import LEAST, expect, expect_count, expect_delta, expect_positive, expect_type
from cloister.mechanisms.binomial import Trust
from cloister.methods.arguments import NoiseMultiplier
from cloister.methods.published import Mode, as_published, claim
from cloister.methods.registry import register
from cloister.methods.weighting import ClientWeights, refuse_weights
from cloister.privacy.binomial import trials_for
from cloister.privacy.unit import ProtectedUnit
from cloister.server import optimizers
from cloister.transforms.hadamard import padded


@register(
    "Agarwal et al., NeurIPS 2018",
    "every message by itself, or the sum",
    "nobody, or secure sum",
    published="the coins of all clients are counted, as in Fed-SPA's comparison, with the paper's theorem beside",
    unit="sample",
)
@flat_arguments
def cpsgd(
    clip_norm: Annotated[float, "L2 norm to which a client's gradient is clipped"] = 1.0,
    levels: Annotated[int, "to how many values a number is rounded: any number of them, 2^b for b bits"] = 17,
    rotate: Annotated[bool, "true: spread every gradient over its coordinates first"] = True,
    value_range: Annotated[
        float | None, "numbers beyond it are cut off (by default the clip, or what a rotated gradient seldom exceeds)"
    ] = None,
    trust: Annotated[Trust | None, "message (each is private by itself) or sum (secure aggregation)"] = None,
    lr: LearningRate = 0.1,
    batch_size: BatchSize = 10,
    step_delta: Annotated[float, "chance that the proof sets aside in every step"] = 1e-8,
    noise_multiplier: NoiseMultiplier = None,
    mode: Mode = "sound",
    client_weights: ClientWeights = "equal",
    *,
    schedule: Schedule,
) -> Method:
    """One quantized, noisy gradient of every client in a round; the server steps along their mean.

    `value_range` is X: by default the clip, or with rotation what a rotated gradient hardly ever exceeds.
    `noise_multiplier` is that of the Gaussian which the coins resemble (of those that are priced), and says how many
    are tossed; left out, it is calibrated. `step_delta` is a chance that the proof sets aside in every step.

    Guarantee: a client's messages (trust = "message"), or the sums of all clients' (trust = "sum"), are differentially
    private for any one sample, over all rounds, at the epsilon that the run's certificate states.
    """
    refuse_weights(client_weights, "cpsgd", _NO_WEIGHTS)
    expect_positive("clip_norm", clip_norm, "the norm to which a client's gradient is clipped")
    expect_count("levels", levels, "17 is usual, and 16 is four bits", least=2, most=2**20)
    expect_delta(step_delta)
    expect(step_delta >= LEAST, f"step_delta >= {LEAST:g}", step_delta, "1e-8 is usual")
    expect_type("rotate", rotate, bool, "True or False", "True spreads every gradient over its coordinates first")
    if value_range is not None:
        expect_positive("value_range", value_range, "the largest number that is not cut off")
    trusting: Trust = trust or ("sum" if as_published(mode) else "message")

    def bind(method: Method, context: BindContext) -> Method:
        size = padded(context.layout.size) if rotate else context.layout.size
        usual = clip_norm * min(1.0, math.sqrt(2 * math.log(100 * size) / size)) if rotate else clip_norm
        cut_off = value_range or usual
        shares = max(1, math.ceil(context.expected)) if trusting == "sum" else 1
        noise = method.mechanism.noise_multiplier
        assert noise is not None
        trials = trials_for(noise, clip_norm, cut_off, levels, shares)
        coded = transforms.quantize_to_levels(cut_off, levels, rotate, trials, shares)
        return replace(
            method,
            transform=transforms.chain(transforms.clip_l2(clip_norm), coded),
            mechanism=mechanisms.binomial(trials, levels, clip_norm, cut_off, step_delta, trusting, shares),
        )

    return Method(
        name="cpsgd",
        local=client.one_gradient(batch_size),
        transform=transforms.clip_l2(clip_norm),
        mechanism=replace(mechanisms.gaussian(noise_multiplier, "distributed"), unit=ProtectedUnit.SAMPLE),
        server=optimizers.sgd(lr, schedule=schedule),
        released=_RELEASED[trusting],
        bind=bind,
        claims=claim(mode, "cpsgd"),
        notes=(_KNOWN_COINS,) if trusting == "sum" else (),
    )


_KNOWN_COINS = (
    "the server, in rounds in which fewer clients took part than are counted on: it tosses the missing coins itself, "
    "and against it only the others' count"
)
_RELEASED = {
    "message": "every client's message in every round, each private by itself, and so every model computed from them",
    "sum": "the sum of all clients' messages in every round, and so every model computed from these sums",
}


_NO_WEIGHTS = "whole numbers are sent, whose levels and coins are priced for messages of equal weight"
