"""Validation on samples that clients hold out of their own training data: a priced query, whenever a model is judged.

Every sample contributes a number from 0 to 1: whether the model is right, or 1 - exp(-loss). Where clients are
protected, what is released is the noisy mean over clients of their own means (one without held-out samples counts as
zero); where samples are, the noisy mean over all held-out samples. A sample is either trained on or held out, so that
charging both to one account is more than it loses.
"""

from __future__ import annotations

from torch import Tensor

from cloister.client.population import Population
from cloister.privacy.ledger import Ledger
from cloister.round.queries import Query, ask
from cloister.runs.prepare import Ready


def private_validation(ready: Ready, ledger: Ledger, held_out: Population, round: int, w: Tensor) -> float:
    """The watched number of a model, as released after a round."""
    fed, loss, accuracy = ready.fed, ready.loss, ready.selection.watch == "accuracy"

    def vectors(inputs: Tensor, labels: Tensor) -> Tensor:
        outputs = fed.objective.outputs(w, inputs)
        if accuracy:
            right = (loss.predict(outputs) == labels).double()
            return right.reshape(len(right), -1).mean(1, keepdim=True)
        found = loss(outputs, labels).double()
        return 1 - (-found.reshape(len(found), -1).mean(1, keepdim=True).clamp(min=0)).exp()

    noises = ready.noise_of_query("validation")
    charges = ready.queries.charges(noises, held_out.counts.tolist())
    return float(ask(fed, ledger, Query("validation", 1, vectors, noises), charges, held_out, round).mean)
