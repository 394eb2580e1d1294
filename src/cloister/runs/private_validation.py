"""Validation on samples that clients hold out of their own training data: a priced query, whenever a model is judged.

Every sample contributes a number from 0 to 1: whether the model is right, or 1 - exp(-loss). Where clients are
protected, what is released is the noisy mean over clients of their own means (one without held-out samples counts as
zero); where samples are, the noisy mean over all held-out samples. A sample is either trained on or held out, so that
charging both to one account is more than it loses.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cloister.client.losses import Loss
from cloister.client.population import Population
from cloister.core import Objective
from cloister.privacy.ledger import Ledger
from cloister.round.queries import Query, ask
from cloister.runs.prepare import Ready

Vectors = Callable[[Tensor, Tensor], Tensor]


@torch.no_grad()
def one_by_one(vector: Callable[[Tensor, Tensor], Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
    """What every sample contributes [n, 1], each as a batch of one.

    In a batch, a model or a loss that mixes samples would let one of them move what all others contribute. Models that
    `vmap` cannot map (a branch on what they compute, an operation without a batching rule) are asked sample by sample
    in a loop: the same numbers, more slowly. An error that is the model's own is raised there once more.
    """
    if not len(labels):
        return torch.zeros(0, 1, dtype=torch.float64)
    try:
        return torch.func.vmap(vector)(inputs, labels)
    except RuntimeError:  # of which torch makes what it cannot map
        return torch.stack([vector(x, y) for x, y in zip(inputs, labels, strict=True)])


def validation_vectors(objective: Objective, loss: Loss, accuracy: bool, w: Tensor) -> Vectors:
    """What samples contribute to a validation of a model: whether it is right on each, or 1 - exp(-loss)."""

    def vector(sample: Tensor, label: Tensor) -> Tensor:
        outputs, labels = objective.outputs(w, sample[None]), label[None]
        if accuracy:
            return (loss.predict(outputs) == labels).double().mean().reshape(1)
        return 1 - (-loss(outputs, labels).double().mean().clamp(min=0)).exp().reshape(1)

    return lambda inputs, labels: one_by_one(vector, inputs, labels)


def private_validation(ready: Ready, ledger: Ledger, held_out: Population, round: int, w: Tensor) -> float:
    """The watched number of a model, as released after a round."""
    fed, noises = ready.fed, ready.noise_of_query("validation")
    vectors = validation_vectors(fed.objective, ready.loss, ready.selection.watch == "accuracy", w)
    charges = ready.queries.charges(noises, held_out.counts.tolist())
    return float(ask(fed, ledger, Query("validation", 1, vectors, noises), charges, held_out, round).mean)
