"""The median of absolute gradient values: how Fed-SPA's authors choose G / sqrt(d), "during an initialization round".

A median of private gradients is a release like any other. `asked_median` makes a priced query of it: every sample
contributes a histogram of the |values| of its own gradient at the model that a run starts from. Its entries are shares
of the coordinates and add up to 1, so that its norm is at most 1, whatever the sample. The median is read off the noisy
mean of all histograms. On public samples `public_median` is free.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor

from cloister.core import Batch, FirstQuery, Objective, Samples, Tensors
from cloister.errors import CloisterError, expect_share, note

LOWEST, HIGHEST, BINS = 1e-7, 10.0, 80
"""Between these values, by tenths of a decade; what is below or above counts as the lowest or the highest."""
_MOST_NUMBERS = 2**24
"""How many numbers the gradients that are computed at once may have."""


_DROWNED = 0.15
"""A median that may as well be a quantile of a third is hardly one."""


class ReleasedNumber:
    """A number that a query sets before the first round, in place: what was captured with it reads the new one."""

    def __init__(self, start: float) -> None:
        self.value = start
        self._placed: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def on(self, like: Tensor) -> Tensor:
        """The number [1], where another tensor is."""
        place = like.device, like.dtype
        if place not in self._placed:
            self._placed[place] = torch.full((1,), self.value, device=like.device, dtype=like.dtype)
        return self._placed[place]

    def set(self, value: float) -> None:
        """Everywhere, from now on."""
        self.value = value
        for tensor in self._placed.values():
            tensor.fill_(value)


def asked_median(share: float, bound: ReleasedNumber, scale: float) -> FirstQuery:
    """The query, whose answer c sets `bound` to `scale` c."""
    expect_share("median_share", share, "the share of the budget that goes into the median; 0.02 is usual")

    def load(released: Tensors) -> None:
        bound.set(scale * float(released["median"]))

    def answer(mean: Tensor, noise: float) -> Tensors:
        spread = noise * math.sqrt(BINS) / 2  # of the share below the middle of the range
        if spread > _DROWNED:
            note(
                f"the median of gradient values is drowned by its noise (the share below it is known to {spread:.2g}): "
                "raise median_share or epsilon, or give a public bound."
            )
        return {"median": torch.tensor([median_of(mean)], dtype=torch.float64)}

    return FirstQuery("median", share, _RELEASED, BINS + 1, histograms, answer, load)


_RELEASED = "a noisy median of the absolute values of samples' gradients, before the first round"


def edges() -> Tensor:
    """The upper edges of all bins but the last, in rising order."""
    found: Tensor = torch.logspace(math.log10(LOWEST), math.log10(HIGHEST), BINS, dtype=torch.float64)
    return found


def histograms(objective: Objective, w: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
    """For every sample the shares [BINS + 1] of its gradient's |values| in each bin; zeros where it is not finite."""
    cuts, found = edges().to(w.device), []
    for rows in sample_gradients(objective, w, inputs, labels):
        bins = torch.bucketize(rows.abs().double(), cuts)  # a value on an edge belongs below it
        counts = torch.zeros(len(rows), BINS + 1, dtype=torch.float64, device=w.device)
        counts.scatter_add_(1, bins, torch.ones_like(bins, dtype=torch.float64))
        found.append(counts / rows.shape[1] * rows.isfinite().all(1, keepdim=True))
    return torch.cat(found) if found else torch.zeros(0, BINS + 1, dtype=torch.float64, device=w.device)


def median_of(histogram: Tensor) -> float:
    """Where a (noisy) histogram of shares passes one half, by geometric interpolation within the bin.

    Shares add up to 1, so that what noise makes of their sum is spread over them. Where noise lets them pass one half
    several times, the median is taken halfway (of the logarithms) between the first time and the last.

    >>> one = torch.zeros(BINS + 1); one[50] = 1.0
    >>> bool(edges()[49] < median_of(one) < edges()[50])
    True
    """
    found = histogram.double()
    reached: list[float] = torch.cumsum(found + (1 - found.sum()) / len(found), 0).tolist()
    before = [0.0, *reached[:-1]]
    passed = [n for n in range(len(reached)) if reached[n] >= 0.5 > before[n]] or [BINS]
    cuts: list[float] = edges().log().tolist()

    def place(number: int) -> float:
        if number in (0, BINS):
            return cuts[0] if number == 0 else cuts[-1]
        part = (0.5 - before[number]) / (reached[number] - before[number])
        return cuts[number - 1] + part * (cuts[number] - cuts[number - 1])

    median: float = math.exp((place(passed[0]) + place(passed[-1])) / 2)
    if passed[-1] == 0 or passed[0] == BINS:
        note(
            f"half of all gradient values are {'below' if passed[-1] == 0 else 'above'} {median:g}, which the bound "
            "becomes: choose a public one (bound = public) unless that is meant."
        )
    return median


def public_median(objective: Objective, w: Tensor, public_samples: Samples) -> float:
    """The median over public samples and all coordinates, exactly; of very many values, over the first samples."""
    inputs, labels = public_samples
    rows = [g.abs().flatten() for g in islice(sample_gradients(objective, w, inputs, labels), 4)]
    values = torch.cat(rows) if rows else w.new_zeros(1)
    found = float(values[values.isfinite()].median()) if bool(values.isfinite().any()) else 0.0
    if not found > 0:
        raise CloisterError(
            "Expected a median above 0 of the absolute gradient values on public samples, found 0: half of them are "
            "zero, so give clip_norm (bound = public)."
        )
    return found


def sample_gradients(objective: Objective, w: Tensor, inputs: Tensor, labels: Tensor) -> Iterator[Tensor]:
    """The gradients [c, d] of some samples after the others, each in a batch of its own."""
    key, one = torch.zeros((), dtype=torch.int64, device=w.device), torch.ones((), device=w.device)
    mask, live = torch.ones(1, dtype=torch.bool, device=w.device), torch.ones((), dtype=torch.bool, device=w.device)

    def gradient(sample: Tensor, label: Tensor) -> Tensor:
        batch = Batch(sample[None], label[None], mask, one, key, live, w.new_empty(0))
        found: Tensor = torch.func.grad(objective.loss)(w, batch)
        return found

    several = torch.func.vmap(gradient)
    count = max(1, _MOST_NUMBERS // len(w))
    for first in range(0, len(labels), count):
        yield several(inputs[first : first + count], labels[first : first + count]).detach()
