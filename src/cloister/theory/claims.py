"""What the papers claim in words, beside their own tables and beside what their settings cost (`claims.toml`).

for claim in cl.theory.CLAIMS:
    print(claim.paper, claim.says, claim.found(), claim.agrees())
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cloister.privacy.accountant import epsilon as epsilon_of
from cloister.privacy.events import FixedSizeGaussian, PoissonGaussian
from cloister.theory import adap_dp_fl, fed_spa, pfl


@dataclass(frozen=True)
class Claim:
    """One statement, and the numbers that it can be held against."""

    paper: str
    """000 to 004."""
    place: str
    says: str
    """In our words, with the paper's figures."""
    table: str
    """What it is held against."""
    how: str
    """By which computation: see `claims.toml`."""
    figures: tuple[float, ...] = ()
    """The words' figures; none where they say which of two is larger."""
    numbers: tuple[float, ...] = ()
    above: tuple[float, ...] = ()
    below: tuple[float, ...] = ()
    rows: tuple[tuple[float, ...], ...] = ()
    of: float = math.nan
    function: str = ""
    within: float = 0.0
    at_least: bool = False
    note: str = ""

    def found(self) -> tuple[float, ...]:
        """What the tables, or the accountant, say: as many numbers as the words have; else how many rows disagree."""
        return _COMPUTATIONS[self.how](self)

    def agrees(self) -> bool:
        """Whether every number is what the words say, as closely as they round."""
        found = self.found()
        if self.how in _COUNTS:
            return found == (0.0,)
        if self.at_least:
            return all(one >= figure for one, figure in zip(found, self.figures, strict=True))
        # The margin is for 4.83 as a difference of floats.
        pairs = zip(found, self.figures, strict=True)
        return all(abs(one - figure) <= self.within + 1e-9 for one, figure in pairs)


def _differences(claim: Claim) -> tuple[float, ...]:
    return tuple(round(one - other, 6) for one, other in zip(claim.above, claim.below, strict=True))


def _count(failures: list[bool]) -> tuple[float, ...]:
    return (float(sum(failures)),)


@cache
def _computed(function: str) -> float:
    """Some are prices, which take a second."""
    return _FUNCTIONS[function]()


_COMPUTATIONS: dict[str, Callable[[Claim], tuple[float, ...]]] = {
    "values": lambda claim: claim.numbers,
    "differences": _differences,
    "range": lambda claim: (min(_differences(claim)), max(_differences(claim))),
    "savings": lambda claim: tuple(100 * (1 - one / claim.of) for one in claim.numbers),
    "computed": lambda claim: (_computed(claim.function),),
    "positive": lambda claim: _count([one <= 0 for one in _differences(claim)]),
    "largest_first": lambda claim: _count([max(row) > row[0] for row in claim.rows]),
    "rising": lambda claim: _count([list(row) != sorted(row) for row in claim.rows]),
}

_COUNTS = ("positive", "largest_first", "rising")


def _noise_of_mean(agents: int) -> float:
    """Variance of a coordinate of the mean of updates with noise of variance S^2 sigma^2 / |P_t| each, S sigma = 1."""
    return sum(1 / agents for _ in range(agents)) / agents**2


def _fed_spa(keep_fraction: float = 1.0) -> fed_spa.Batches:
    """MNIST: 600 samples an agent, 300 steps in each of 4.5 rounds; the batch size is not printed."""
    return fed_spa.Batches(batch_size=10, samples=600, steps=1350, keep_fraction=keep_fraction)


def _fed_spa_noise(keep_fraction: float = 1.0) -> float:
    return fed_spa.noise_for(1.0, 1e-3, _fed_spa(keep_fraction))


def _noise_variance(keep_fraction: float) -> float:
    """What the noise adds to a step, for sigma = 1 in 100 dimensions."""
    with_noise, without = (fed_spa.masked_variance(1.0, 0.0, keep_fraction, 100, noise) for noise in (1.0, 0.0))
    return with_noise - without


def _megabytes(parameters: int, rounds: int) -> float:
    """p d 32 T r bits, for p = 1 and r = 0.1."""
    return parameters * 32 * rounds * 0.1 / 8e6


def _pfl_bound(local_epochs: int, rounds: int) -> float:
    return pfl.degradation(local_epochs, 0.3, 1.0, 0.96, 64, 26_010, 1.0, 0.3, 5.0, rounds=rounds)


def _labels(fragments: int, own: int) -> float:
    """The expected number of ten labels among `own` of so many fragments, a tenth of which have each label."""
    none = math.comb(fragments - fragments // 10, own) / math.comb(fragments, own)
    return 10 * (1 - none)


def mnist_schedule(each: int = 1251) -> list[float]:
    """Adap DP-FL's noise on MNIST, from 6 to 3.03 in twelve equal factors; 1,251 rounds of each are the most that
    Theorem 1 allows within epsilon 2."""
    return [6 * (3.03 / 6) ** (place / 11) for place in range(12) for _ in range(each)]


_FUNCTIONS: dict[str, Callable[[], float]] = {
    "dp_fedavg_speedup": lambda: _noise_of_mean(20) / _noise_of_mean(10),
    "dp_fedsam_price": lambda: epsilon_of(FixedSizeGaussian(0.95, 50, 500), 300, 1 / 500),
    "fed_spa_noise_ratio": lambda: _fed_spa_noise(0.25) / _fed_spa_noise(),
    "fed_spa_noise_variance": lambda: _noise_variance(0.25) / _noise_variance(1.0),
    "fed_spa_cost_mnist": lambda: _megabytes(21_840, 45),
    "fed_spa_cost_cifar": lambda: _megabytes(537_610, 200),
    "fed_spa_within_range": lambda: fed_spa.privacy(_fed_spa(), _fed_spa_noise(), 1e-3).within_range,
    # A noise multiplier of 0.96 is what 20 passes of 94 batches take for 2.93.
    "pfl_overlap_price": lambda: epsilon_of(PoissonGaussian(0.96, 1 / 94), 6 * 20 * 94, 1e-5),
    "pfl_degradation_ratio": lambda: _pfl_bound(1, 20) / _pfl_bound(20, 1),
    "adap_labels_of_fragments": lambda: _labels(400, 40),
    "adap_price_with_query": lambda: adap_dp_fl.true_price(mnist_schedule(), 0.013, 1e-5),
}


def _tupled(value: Any) -> Any:
    return tuple(map(_tupled, value)) if isinstance(value, list) else value


def _read() -> tuple[Claim, ...]:
    content = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    return tuple(Claim(**{name: _tupled(value) for name, value in row.items()}) for row in content["claim"])


CLAIMS = _read()
"""All of them, in the papers' order."""
