"""The sum of clipped gradients over one secret batch: a client's part of a DP-SGD step that all clients take together.

    u = - sum over the batch of clip(gradient of a sample at the round's model)

There is no noise in it and nothing is divided: the sum over all clients has the noise (`methods/secure_sum.py`), and
the server divides it by a constant. Guarantee: adding or removing a sample, whatever its data, moves u by `clip_norm`
at most, and only if the sample was in the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

import torch
from torch import Tensor

from cloister.client.dp_sgd import Clipping, by_norm
from cloister.core import Batch, Batching, Layout, LocalRule, Objective, Phase, PoissonRate, Tensors
from cloister.core.sparsity import expect_fraction, kept_of
from cloister.errors import expect_count, expect_one_of, expect_positive, expect_probability
from cloister.random.streams import fold

PIECE = 1024
"""So many samples of a batch are computed at once: a batch may be all that a client has."""


def clipped_sum(
    clip_norm: float,
    batch_size: int,
    poisson_rate: PoissonRate = "pass",
    sample_rate: float | None = None,
    clipping: Clipping | None = None,
    active: float | None = None,
    told: Mapping[str, tuple[str, ...]] | None = None,
) -> LocalRule:
    """One Poisson batch a round, and the sum of its samples' gradients, each clipped to `clip_norm`, as a descent.

    Args:
        sample_rate: with what probability every sample of every client joins; without it, by `batch_size` and
            `poisson_rate`, as in `dp_sgd`.
        clipping: by the norm, unless another is given.
        active: the fraction of coordinates that count, the same ones for all clients of a round; `told` says where the
            server tells them, as a vector of ones and zeros named "active". The clip is for the active part.

    >>> rule = clipped_sum(0.5, batch_size=64, poisson_rate="exact")
    >>> rule.sample_l2, rule.batching.sampling_rate(640), rule.batching.steps_for(640)
    (0.5, 0.1, 1)
    """
    expect_positive("clip_norm", clip_norm, "choose the norm to which a sample's gradient is clipped")
    expect_count("batch_size", batch_size, "the number of samples in a mini-batch")
    expect_one_of("poisson_rate", poisson_rate, get_args(PoissonRate))
    if sample_rate is not None:
        expect_probability("sample_rate", sample_rate, "1 takes all samples in every round")
    if active is not None:
        expect_fraction("keep_fraction", active)
    how = clipping or by_norm()

    def step(objective: Objective, state: Tensors, start: Tensor, batch: Batch, round: Tensor) -> Tensors:
        size = start.shape[0]
        how.expect(size if active is None else kept_of(size, active), size, clip_norm)
        total = torch.zeros_like(start)
        for piece in _pieces(batch):
            total = total + how.sums(objective, start, piece, clip_norm, state.get("active"))[0]
        return {**state, "sum": total}

    def update(layout: Layout, state: Tensors, start: Tensor) -> Tensor:
        return -state["sum"]

    batching = Batching(
        batch_size, local_steps=1, batch_sampling="poisson", poisson_rate=poisson_rate, sample_rate=sample_rate
    )
    batches = {"batch_size": batch_size, "poisson_rate": poisson_rate} if sample_rate is None else {}
    return LocalRule(
        name="clipped_sum",
        settings={
            **(batches or {"sample_rate": sample_rate}),
            "clip_norm": clip_norm,
            "clipping": how.name,
            "active": active,
        },
        phases=(Phase(batching, step),),
        init=lambda w: {"sum": torch.zeros_like(w)},
        update=update,
        sample_l2=clip_norm,
        told=told or {},
    )


def _pieces(batch: Batch) -> list[Batch]:
    """The batch, a part of its samples at a time; what is random in the model differs from part to part."""
    if len(batch.mask) <= PIECE:
        return [batch]
    found = []
    for number, first in enumerate(range(0, len(batch.mask), PIECE)):
        some = slice(first, first + PIECE)
        key = fold(batch.key, number) if number else batch.key  # as if there were no second part
        found.append(
            replace(batch, inputs=batch.inputs[some], labels=batch.labels[some], mask=batch.mask[some], key=key)
        )
    return found
