"""What a method asks of the data before the first round, for a share of the budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from cloister.core.objective import Objective
from cloister.core.state import Tensors


@dataclass(frozen=True)
class FirstQuery:
    """A noisy mean over everybody's samples, of which one number or more are computed that the method then uses.

    `vectors(objective, w, inputs, labels)` [b, length] are what single samples contribute, each of norm at most 1
    (which is enforced where it is asked, `round/queries.py`), at the model w that the run starts from.
    `answer(mean, noise)` makes of the noisy mean, whose numbers have noise of that deviation, what is released, and
    `load` puts it in its place, once and before the first round; a run that is resumed loads what was released before.
    """

    name: str
    """What the ledger calls it."""
    share: float
    """Of the budget, in the sense of `runs/queries.py`."""
    released: str
    """What becomes known, in words for the certificate."""
    length: int
    vectors: Callable[[Objective, Tensor, Tensor, Tensor], Tensor]
    answer: Callable[[Tensor, float], Tensors]
    load: Callable[[Tensors], None]
