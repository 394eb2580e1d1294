"""Weights by data size: a client with more samples counts for more.

FedAvg weighs an update by its client's share of the samples, n_i / sum of n_j (McMahan et al. 2017). That is no bounded
contribution, and its denominator is a function of everybody's data, so under differential privacy there are two cases:

* Sizes are public (single samples are protected, and replaced or declared): `size_weights`. Messages are private by
  themselves, and what is done to them by public numbers is post-processing.
* Sizes are private (whole clients are protected): `capped_weights`, w_i = min(n_i / cap, 1) on the CLIPPED update, over
  a constant. That is the estimator f_f of McMahan, Ramage, Talwar & Zhang, "Learning differentially private recurrent
  language models", ICLR 2018: sum of w_i u_i / (q W), with W the sum of all clients' weights. They take W for known.
  Here it is declared (W = clients * mean_weight) or left out (every client counts 1, which makes smaller steps and
  nothing else): W of the actual clients, or the sum of a cohort's weights, would tell how large a client is.

How many samples a client has comes from `Context.samples`, whichever engine computes it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cloister.core import Context, Layout, Sensitivity, State, Transform, Weighting
from cloister.errors import LEAST, CloisterError, expect, expect_count, expect_positive, expect_probability


def size_weights() -> Transform:
    """Send n_i u_i, and n_i as a last number: decoding gives the mean over whoever took part, weighted by size.

    Who has no samples, or whose update is not finite, sends zeros and has no part in the mean. Guarantee: none. A
    message is as long as its client is large, so that noise on sums of them is refused; where messages are private by
    themselves, the sizes have to be public (`round/bind.py` sees to that).
    """

    def encode(update: Tensor, context: Context) -> Tensor:
        samples = _samples(context).to(update.dtype)
        return torch.cat([update * samples, samples[None]])

    def decode(total: Tensor, context: Context, state: State) -> tuple[Tensor, State]:
        return total[:-1] / total[-1].clamp(min=1), {}  # nobody: zero

    def sensitivity(known: Sensitivity, layout: Layout) -> Sensitivity:
        return Sensitivity(length=None if known.length is None else known.length + 1)

    told = Weighting(lambda size: "the samples of all who took part", averages=True)
    return Transform("size_weights", {}, encode, sensitivity, decode, weighting=told)


def capped_weights(cap: float, mean_weight: float = 1.0, spared: int = 0) -> Transform:
    """Multiply the (clipped) update by min(n_i / cap, 1); the sum is divided by mean_weight more.

    `cap` and `mean_weight` are public constants, never computed from the clients. The last `spared` numbers of a
    message are left as they are.

    Guarantee: no weight is above 1, whatever n_i is, so that a message keeps the bound that it had. It depends on its
    own client alone, and the denominator on nobody: adding or removing a client moves the sum by that bound.

    | samples            | weight    |
    |--------------------|-----------|
    | none               | 0         |
    | n < cap            | n / cap   |
    | n >= cap           | 1         |
    | not a number       | 0         |
    """
    expect_positive("weight_cap", cap, "from so many samples on a client counts 1")
    expect_probability("mean_weight", mean_weight, "what a client weighs on average, at most 1")
    expect(mean_weight >= LEAST, f"mean_weight >= {LEAST:g}", mean_weight, "what a client weighs on average")
    expect_count("spared", spared, "how many numbers at the end are not weighted", least=0)

    def encode(update: Tensor, context: Context) -> Tensor:
        weight = (_samples(context).double() / cap).nan_to_num(0.0, 1.0, 0.0).clamp(0, 1).to(update.dtype)
        if not spared:
            return update * weight
        return torch.cat([update[:-spared] * weight, update[-spared:]])

    def decode(total: Tensor, context: Context, state: State) -> tuple[Tensor, State]:
        if not spared:
            return total / mean_weight, {}
        return torch.cat([total[:-spared] / mean_weight, total[-spared:]]), {}

    declared = f", times the declared mean weight {mean_weight:g}" if mean_weight < 1 else ""
    return Transform(
        "capped_weights",
        {"weight_cap": cap, "mean_weight": mean_weight},
        encode,
        lambda known, layout: known,
        None if mean_weight == 1 else decode,
        weighting=Weighting(lambda size: f"{size}{declared}", mean_weight),
        stays_finite=True,
    )


def _samples(context: Context) -> Tensor:
    if context.samples is None:
        raise CloisterError("Expected a context that says how many samples a client has, found none: give samples.")
    return context.samples
