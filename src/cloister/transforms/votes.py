"""Votes in place of updates: a client's model labels public samples, and only its labels leave."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cloister.core import Context, Sensitivity, Transform
from cloister.errors import CloisterError, expect


def votes(queries: int) -> Transform:
    """A client's trained model names a class for each of the first `queries` public samples: one-hot, [queries * K].

    Guarantee: a client casts one vote a sample, so its message has norm sqrt(queries), whatever its data, and with
    other data it is at most sqrt(2 queries) away: one vote less and one more for each sample. Noise of
    standard deviation z sqrt(queries) on every count is one Gaussian release of multiplier z, and just as many
    releases, one a query, of multiplier z sqrt(queries).
    """

    def encode(update: Tensor, context: Context) -> Tensor:
        if context.public_samples is None:
            raise CloisterError("Expected public samples, found none: set some aside, such as public_samples = 500.")
        outputs = context.objective.outputs(context.w + update, context.public_samples[0][:queries])
        expect(
            outputs.dim() == 2, "a model that names one class a sample", tuple(outputs.shape), "vote with a classifier"
        )
        named = outputs.argmax(1, keepdim=True) == torch.arange(outputs.shape[1], device=update.device)
        return named.to(update.dtype).flatten()

    # The model alone knows how many classes it names, and so how long a message is.
    cast = Sensitivity(math.sqrt(queries), replace_l2=math.sqrt(2 * queries))
    return Transform("votes", {"queries": queries}, encode, lambda known, layout: cast)
