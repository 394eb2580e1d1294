"""Keeping the largest coordinates of what is noisy already. (Before the noise, it is the local rule's business.)"""

from __future__ import annotations

import torch
from torch import Tensor

from cloister.core import Context, State, Transform
from cloister.core.sparsity import (
    Scope,
    Ties,
    beside_default,
    expect_fraction,
    expect_scope,
    expect_ties,
    largest,
)


def top_k_of_sum(keep_fraction: float, ties: Ties = "keep", scope: Scope = "layer") -> Transform:
    """The server keeps the largest coordinates of the noisy sum, layer by layer or of all together: post-processing,
    and so free."""
    expect_fraction("keep_fraction", keep_fraction)
    expect_ties(ties)
    expect_scope(scope)

    def decode(total: Tensor, context: Context, state: State) -> tuple[Tensor, State]:
        kept = largest(total.abs(), context.objective.layout, keep_fraction, ties, scope)
        return torch.where(kept, total, torch.zeros_like(total)), {}

    settings = {"keep_fraction": keep_fraction, "ties": ties, **beside_default(scope)}
    return Transform("top_k_of_sum", settings, lambda update, context: update, lambda known, layout: known, decode)


def top_k_after_noise(keep_fraction: float, ties: Ties = "keep", scope: Scope = "layer") -> Transform:
    """Each client keeps the largest coordinates of its own NOISY update. Nothing is proven of the sum of such messages.

    It is not a function of the noisy sum, and picks the largest noise: for replication alone.
    """
    expect_fraction("keep_fraction", keep_fraction)
    expect_ties(ties)
    expect_scope(scope)

    def after(message: Tensor, context: Context) -> Tensor:
        kept = largest(message.abs(), context.objective.layout, keep_fraction, ties, scope)
        return torch.where(kept, message, torch.zeros_like(message))

    settings = {"keep_fraction": keep_fraction, "ties": ties, **beside_default(scope)}
    return Transform(
        "top_k_after_noise", settings, lambda update, context: update, lambda known, layout: known, after=after
    )
