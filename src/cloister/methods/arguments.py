"""Arguments that several methods share, each with its help. Those of local SGD are in `client/training.py`."""

from __future__ import annotations

from typing import Annotated, Literal

from cloister import core
from cloister.core import ServerOptimizer, sparsity
from cloister.errors import CloisterError, expect_one_of

ClipNorm = Annotated[float, "L2 norm to which a client's whole update is clipped"]
SampleClipNorm = Annotated[float, "L2 norm to which a sample's gradient is clipped"]
NoiseMultiplier = Annotated[
    float | None, "noise as a multiple of the bound on a message; left out, it is calibrated to epsilon"
]
NoisePlace = Annotated[
    Literal["central", "distributed"], "who adds the noise: central (the server) or distributed (the clients)"
]
Server = Annotated[ServerOptimizer | None, "how the server uses the mean update"]

Keep = Annotated[float, "fraction of the coordinates that is kept"]
Scope = Annotated[
    sparsity.Scope, "among which coordinates the largest are sought: of each layer, or of the whole model"
]
NoiseOn = Annotated[
    Literal["all", "kept"],
    "which coordinates have noise: all of them; kept is refused, because the others would tell what a client kept",
]
Ties = Annotated[sparsity.Ties, "coordinates that tie at the border: keep all of them, or the first ones only"]

Quantile = Annotated[float, "share of what is clipped that shall be within the clip"]
ClipLearningRate = Annotated[float, "how fast the clip follows"]
MedianShare = Annotated[float, "share of the budget for the median of absolute gradient values"]
QueryNoise = Annotated[float, "noise of the query behind a threshold, in multiples of the gradient's"]
BatchSampling = Annotated[core.BatchSampling, "how a step's samples are drawn: poisson, or a fixed number of them"]
PoissonRate = Annotated[
    core.PoissonRate,
    "how likely a sample joins a poisson batch: pass (1 / steps of a pass) or exact (batch_size / samples)",
]
BatchSamplingOfMode = Annotated[
    core.BatchSampling | None, "how a step's samples are drawn: poisson, or fixed_size, as was published"
]


def expect_noise_on_all(noise_on: NoiseOn) -> None:
    """Refuse noise on the kept coordinates alone ("no noise needs to be added to the sparse weight positions").

    A client's own data choose what it keeps. Where nothing covers the rest, an exact zero says that a coordinate was
    not kept and anything else that it was: two neighbors that keep different coordinates can be told apart for certain,
    however much noise the kept ones have. No epsilon is finite then, so that there is no price to run it at.
    """
    expect_one_of("noise_on", noise_on, ("all", "kept"), "all is the only one with a price")
    if noise_on == "kept":
        raise CloisterError(
            "Expected noise_on = all, found 'kept': which coordinates a client keeps depends on its data, and zeros "
            "without noise would tell (the support leaks, at no finite epsilon), so leave it out, or use "
            "fed_smp_rand_k or fed_smp_top_k, whose masks are made of nobody's data."
        )
