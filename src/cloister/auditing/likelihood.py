"""The test: how much more likely what was seen is with the canary than without, by what other trials have shown.

Everything here is found on trials of its own, before those that count. So the test may be as good or as bad as it
likes: a bad one gives a small lower bound, never a false one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

_MOST_VALUES = 32


@dataclass(frozen=True)
class Seen:
    """What an adversary saw in many short runs at once: one number a round and run, [rounds, runs].

    `shown` is how far a release points to the canary: 1 where all of it is there, 0 where it is not, plus noise.
    `clean` is the same without noise: where the canary took part, and where it did not.
    """

    shown: Tensor
    clean: Tensor
    world: Tensor
    """[runs]: whether the canary's data were there (or, where data are replaced, whether they were the one canary)."""

    def of(self, some: Tensor) -> Seen:
        """The same of some of the runs."""
        return Seen(self.shown[:, some], self.clean[:, some] if self.clean.numel() else self.clean, self.world[some])


@dataclass(frozen=True)
class Test:
    """A score for every run: the logarithm of the likelihood ratio, under what was found on other runs."""

    values: list[tuple[Tensor, Tensor, Tensor]]
    """By round: which clean values there are, and how likely each is in either world."""
    deviation: Tensor
    """[rounds]: that of the noise."""
    weights: Tensor | None = None
    """[rounds]: where noise is correlated over rounds and nothing is random in who takes part, a linear score is best;
    it is zero half-way between both worlds."""
    middle: Tensor | None = None

    def score(self, shown: Tensor) -> Tensor:
        """[runs], in float64."""
        if self.weights is not None and self.middle is not None:
            return (self.weights[:, None] * (shown - self.middle[:, None])).sum(0)
        total = torch.zeros(shown.shape[1], dtype=torch.float64, device=shown.device)
        for row, (values, absent, present), deviation in zip(shown, self.values, self.deviation, strict=True):
            if len(values) == 2 and bool((absent + present == 1).all()):  # no chance in it: a line
                centers = [(values * chance).sum() for chance in (absent, present)]
                total += (centers[1] - centers[0]) * (row - (centers[0] + centers[1]) / 2) / deviation**2
                continue
            if len(values) == 1:
                continue
            far = -(((row[:, None] - values) / deviation) ** 2) / 2
            total += torch.logsumexp(far + present.log(), 1) - torch.logsumexp(far + absent.log(), 1)
        return total


def fitted(seen: Seen, correlation: Tensor | None = None) -> Test:
    """The test for runs such as these. `correlation` [rounds, rounds]: the noise of round r is row r of it times
    independent draws."""
    seen = replace(seen, clean=seen.clean * _slope(seen))
    deviation = (seen.shown - seen.clean).std(1).clamp(min=1e-9)
    values = [_values(row, seen.world) for row in seen.clean]
    if correlation is None:
        return Test(values, deviation)
    middle = torch.stack([seen.clean[:, seen.world == present].mean(1) for present in (False, True)])
    noise = correlation.to(middle)
    weights = torch.linalg.solve(noise @ noise.T, middle[1] - middle[0])
    return Test(values, deviation, weights, middle.mean(0))


def _slope(seen: Seen) -> float:
    """How much of the canary is left where noise takes some of it away: what clients send need not be linear in their
    gradients (Adam). All of it, unless the runs say otherwise beyond doubt."""
    x = seen.clean - seen.clean.mean(1, keepdim=True)
    y = seen.shown - seen.shown.mean(1, keepdim=True)
    spread = float(x.square().sum())
    if spread == 0:
        return 1.0
    slope = float((x * y).sum()) / spread
    error = float((y - slope * x).square().mean()) ** 0.5 / spread**0.5
    return slope if abs(slope - 1) > 4 * error else 1.0


def _values(clean: Tensor, world: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The clean values of a round, and how often each is found in either world."""
    rounded = (clean * 1e4).round() / 1e4
    found = torch.from_numpy(np.unique(rounded.cpu().numpy())).to(clean.device)
    if len(found) > _MOST_VALUES:
        edges = torch.linspace(float(found.min()), float(found.max()), _MOST_VALUES, dtype=found.dtype)
        found = edges.to(clean.device)
        rounded = found[(rounded[:, None] - found).abs().argmin(1)]
    chances = []
    for present in (False, True):
        own = rounded[world == present]
        counts = (own[:, None] == found).sum(0).double()
        chances.append(counts / max(len(own), 1))
    return found, chances[0], chances[1]
