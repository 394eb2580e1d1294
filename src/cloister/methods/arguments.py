"""Arguments that several methods share, each with its help. Those of local SGD are in `client/training.py`."""

from __future__ import annotations

from typing import Annotated, Literal

from cloister import core
from cloister.core import ServerOptimizer, sparsity

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
Ties = Annotated[sparsity.Ties, "coordinates that tie at the border: keep all of them, or the first ones only"]

Quantile = Annotated[float, "share of what is clipped that shall be within the clip"]
ClipLearningRate = Annotated[float, "how fast the clip follows"]
QueryNoise = Annotated[float, "noise of the query behind a threshold, in multiples of the gradient's"]
BatchSampling = Annotated[core.BatchSampling, "how a step's samples are drawn: poisson, or a fixed number of them"]
PoissonRate = Annotated[
    core.PoissonRate,
    "how likely a sample joins a poisson batch: pass (1 / steps of a pass) or exact (batch_size / samples)",
]
BatchSamplingOfMode = Annotated[
    core.BatchSampling | None, "how a step's samples are drawn: poisson, or fixed_size, as was published"
]
