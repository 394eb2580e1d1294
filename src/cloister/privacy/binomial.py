"""What the binomial mechanism gives away (cpSGD; Agarwal, Suresh, Yu, Kumar & McMahan, NeurIPS 2018).

Guarantee: `profile` bounds delta at every eps >= 0 for one `BinomialSum`, before its batch is sampled. The proof is
ours. The paper's Theorem 1 (`theorem`, kept for what papers claim) is not true for large eps: like the classical
Gaussian mechanism, whose term it has, it leaves out half the square of the shift. One coordinate that moves by 5,000
under 4,000,000 trials meets its condition, and by it is (19.3, 0.001)-DP; but at this eps delta is 0.06.

Notation. N trials, V = (N + 1)/4, d coordinates, k levels from -X to X. All that follows is in units of the grid, which
are 2X/(k - 1). L stands for the logarithm of one over a chance.

1. *How far neighbors are apart.* A unit and its replacement make vectors x and y of what is rounded, |x - y|_2 <= r =
   clip (k - 1)/X: two vectors of norm `clip_norm` are twice that apart, and a unit of the grid is two parts of the
   range. A rotation keeps r; cutting off at +-X shortens it, if anything, and makes u = |x - y| at most k - 1
   everywhere.
2. *Rounding* makes floor(x_j + U_j) of x_j, U_j uniform. Let both neighbors have the same U: this says nothing else of
   either, and shows that U need not be secret. Then the distance w_j = |floor(x_j + U_j) - floor(y_j + U_j)| is one of
   the two whole numbers next to u_j, and u_j in the mean. Let f be the fraction of u_j, e = w - u and A = sqrt(d) r.
   - w_j <= k - 1, and w_j is less than r + 1.
   - The sum of w has mean |u|_1 <= A, and variance sum f(1 - f) <= A, because f(1 - f) <= min(u_j, 1/4). By Bernstein's
     inequality |w|_1 <= A + sqrt(2 A L) + 2L/3, but for a chance e^-L.
   - |w|^2 = |u|^2 + 2 u.e + |e|^2. By Hoeffding's inequality 2 u.e <= r sqrt(2L), but for a chance e^-L. The e_j^2 are
     in [0, 1]; their means, and their variances, add up to E = min(A, d/4) at most; so |e|^2 <= E + sqrt(2 E L) + 2L/3,
     but for a chance e^-L.
   With L = ln(2/step_delta) in the former and ln(4/step_delta) in the latter two, all this is true but for a chance
   step_delta. It is never more than the paper's bounds, which are k + 1, A + sqrt(2 A L) + 4L/3 and
   r + sqrt(A + 2 sqrt(2 A L) + 4L/3), L = ln(2/step_delta).
   With an even number of levels the points lie halfway between whole numbers: floor(x_j + 1/2 + U_j) - 1/2. A fair
   coin toss of 1/2 or -1/2, which is not secret, makes them whole. Let both neighbors have the same coin, like the same
   U: w_j is as above, and nothing here asks whether the number of levels is odd.
   (Draws of 24 bits do to x what endless ones do to x rounded up to a multiple of 2^-24, and float32 rounds numbers up
   to k/2. Together they move u_j by less than 2^-23 k, which is added to r. Adding 1/2 is another such rounding of
   both: where levels are even, 2^-22 k.)
3. *The loss.* Let outputs differ by w; noise is symmetric, so that signs do not matter. Where the noise is N/2 + z_j,
   the loss is the sum over j and over i = 1 .. w_j of ln((N/2 + z_j + i)/(N/2 - z_j - i + 1)) = 2 artanh(h), with
   h = (z_j + i - 1/2)/2V. By Hoeffding all |z_j| <= Z = sqrt(N ln(2d/step_delta)/2), but for a chance step_delta. Then
   all |h| <= m = (Z + max w - 1/2)/2V. Let m < 1 (this is where trials can be too few) and c = artanh(m)/m - 1: then
   artanh(h) <= h + c max(h, 0). Coordinate j loses at most (w_j g(z_j) + (1 + c) w_j^2/2)/V, g(z) = z + c max(z, 0).
4. *Its moments.* z_j is a sum of N independent +-1/2. Changing one changes g by 1 + c at most, so that McDiarmid's
   inequality says ln E e^(s g) <= s E g + s^2 (1 + c)^2 N/8; and E g = c E|z_j|/2 <= c sqrt(N)/4. With s = a w_j/V and
   N < 4V, summed over the coordinates: for every a > 0, and where no chance of 3 is met,

       ln E e^(a loss) <= a ((1 + a) rho + extra),    rho = (1 + c)^2 |w|_2^2 / 2V,    extra = c |w|_1 / 2 sqrt(V).

   These are a Gaussian's moments, but for c, which is about 2 ln(2d/step_delta)/3N.
5. *From moments to delta.* delta(eps) = E max(0, 1 - e^(eps - loss)), and max(0, 1 - e^-t) <= K e^(at) for all t, with
   K = a^a/(1 + a)^(1 + a). So delta(eps) <= 2 step_delta + K e^(a ((1 + a) rho + extra - eps)) for any a > 0. This is
   least where ln(a/(1 + a)) + (1 + 2a) rho + extra = eps. The minimum is convex in e^eps: with b = a (1 + a), its
   second derivative has the sign of b - b/(1 + 2 rho b).
6. *From there to the release.* What others add to a sum, data and noise, is independent of this noise. The mixture over
   U costs no more than the worst U that 2 does not set aside. Surplus trials are post-processing, as long as their
   number does not depend on data. `fixed_size.py` samples batches; of (eps, 2 step_delta) it makes
   (ln(1 + q (e^eps - 1)), 2 q step_delta), and the like of every other eps. Then PLDs compose, and what was set aside
   is mass at infinity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from cloister.errors import UnsupportedMechanismError
from cloister.privacy.events import BinomialSum

Array = np.ndarray[Any, np.dtype[np.float64]]

_ROUNDING = 2.0**-23  # of the numbers that are rounded, as a share of k; twice that where k is even (end of 2)
_ORDERS = 2**14  # of a: between two of them, what is nearly the best is found


@dataclass(frozen=True)
class Moves:
    """By how much replacing a unit moves the whole numbers, in units of the grid, but for a chance `step_delta`."""

    l1: float
    l2: float
    most: int
    """In any one coordinate."""


def moves(event: BinomialSum) -> Moves:
    """Step 2 above.

    >>> moves(BinomialSum(17, 7114, 1.0, 1.0, 21840, 10 / 600, 1e-6)).most
    16
    """
    d, widest = event.dimension, event.levels - 1
    root = math.sqrt(d)
    rounding = event.levels * _ROUNDING * (1 + (event.levels % 2 == 0))
    reach = min(event.clip_norm / event.range, root) * widest + root * rounding
    far = root * reach
    rare, rarer = math.log(2 / event.step_delta), math.log(4 / event.step_delta)
    errors = min(_bernstein(min(far, d / 4), rarer), d)
    square = min(reach**2 + reach * math.sqrt(2 * rarer) + errors, (reach + root) ** 2)
    return Moves(_bernstein(far, rare), math.sqrt(square), min(widest, math.ceil(reach)))


def _bernstein(mean: float, log_rarity: float) -> float:
    """What a sum hardly ever exceeds: of independent numbers, each from an interval of length 1, their variances adding
    up to no more than the mean."""
    return mean + math.sqrt(2 * mean * log_rarity) + 2 / 3 * log_rarity


@dataclass(frozen=True)
class Loss:
    """ln E e^(a loss) <= a ((1 + a) rho + extra) for every a > 0, but for the chance `set_aside`."""

    rho: float
    extra: float
    set_aside: float

    @property
    def shift(self) -> float:
        """That of the Gaussian mechanism with these moments, in standard deviations."""
        return math.sqrt(2 * self.rho)

    @property
    def top(self) -> float:
        """What it exceeds with a chance of e^-50 at most."""
        return self.rho + self.extra + 10 * self.shift


@lru_cache(maxsize=1024)
def loss(event: BinomialSum) -> Loss:
    """The loss of one step whose batch is everybody; refused where there are too few trials."""
    found = loss_of(moves(event), event.trials, event.dimension, event.step_delta)
    if found is None:
        rare, most = _log_rarity(event.dimension, event.step_delta) / 2, moves(event).most
        needed = math.floor((math.sqrt(rare) + math.sqrt(rare + 2 * (most - 1))) ** 2) + 1
        raise UnsupportedMechanismError(
            f"Expected at least {needed} trials for {event.levels} levels in {event.dimension} coordinates, found "
            f"{event.trials}: noise may come to the end of its range and tell, so add trials or take fewer levels."
        )
    return found


def loss_of(moved: Moves, trials: int, dimension: int, step_delta: float) -> Loss | None:
    """The same for given moves (steps 3 and 4); None where trials are too few."""
    spread = (trials + 1) / 4
    far = math.sqrt(trials * _log_rarity(dimension, step_delta) / 2) + moved.most - 0.5
    if far >= 2 * spread:
        return None
    bend = math.atanh(far / (2 * spread)) / (far / (2 * spread)) - 1
    rho = (1 + bend) ** 2 * moved.l2**2 / (2 * spread)
    return Loss(rho, bend * moved.l1 / (2 * math.sqrt(spread)), 2 * step_delta)


def _log_rarity(dimension: int, step_delta: float) -> float:
    return math.log(2 * dimension / step_delta)


def profile(eps: Array, of: Loss) -> Array:
    """delta at every eps >= 0 (step 5)."""
    orders = np.geomspace(1e-12, 1 + (of.top + 1) / of.rho, _ORDERS)
    best_for = np.log(orders / (1 + orders)) + (1 + 2 * orders) * of.rho + of.extra
    a = np.interp(eps, best_for, orders)
    exponent = a * np.log(a) - (1 + a) * np.log1p(a) + a * ((1 + a) * of.rho + of.extra - eps)
    found: Array = np.minimum(1.0, of.set_aside + np.exp(np.minimum(exponent, 0.0)))
    return found


def published(event: BinomialSum) -> tuple[float, float]:
    """(eps, delta) of a step as the paper has it: to be compared with, not to be relied on."""
    eps = theorem(published_moves(event), event.trials, event.dimension, event.step_delta)
    return amplified(eps, 2 * event.step_delta, event.sampling_rate)


def published_moves(event: BinomialSum) -> Moves:
    """The paper's sensitivities."""
    reach, rare = event.clip_norm * (event.levels - 1) / event.range, math.log(2 / event.step_delta)
    far = math.sqrt(event.dimension) * reach
    width = math.sqrt(2 * far * rare)
    l1 = far + width + 4 / 3 * rare
    return Moves(l1, reach + math.sqrt(l1 + width), event.levels + 1)


def theorem(moved: Moves, trials: int, dimension: int, delta: float) -> float:
    """The eps of the paper's Theorem 1 for p = 1/2 at this delta, true where it is small."""
    variance = trials / 4
    needed = math.ceil(4 * max(23 * math.log(10 * dimension / delta), 2 * moved.most))
    if trials < needed:
        raise UnsupportedMechanismError(
            f"Expected at least {needed} trials for Theorem 1 of cpSGD, found {trials}: add trials."
        )
    once, ten = math.log(1.25 / delta), math.log(10 / delta)
    first = moved.l2 * math.sqrt(2 * once / variance)
    second = (5 / 2 * moved.l2 * math.sqrt(ten) + moved.l1 / 3) / (variance * (1 - delta / 10))
    return first + second + 2 / 3 * moved.most * (once + math.log(20 * dimension / delta) * ten) / variance


def amplified(eps: float, delta: float, sampling_rate: float) -> tuple[float, float]:
    """What (eps, delta) is worth over a secret batch of fixed size, a share `sampling_rate` of all: one point of
    `fixed_size`.

    >>> eps, delta = amplified(math.log(3), 1e-5, 0.1)
    >>> round(math.exp(eps), 12), delta
    (1.2, 1.0000000000000002e-06)
    """
    return eps + math.log(sampling_rate + (1 - sampling_rate) * math.exp(-eps)), sampling_rate * delta


def message_norm(norm: float, cut_off: float, levels: int, dimension: int) -> float:
    """Bounds the norm of the whole numbers that a vector of norm `norm` becomes when it is cut off and rounded.

    Rounding moves a number by less than 1; where levels are even, a coin toss moves it by 1/2 more.
    """
    root = math.sqrt(dimension)
    return min(norm / cut_off, root) * (levels - 1) / 2 + root * (1.5 if levels % 2 == 0 else 1.0)


def trials_for(noise_multiplier: float, clip_norm: float, cut_off: float, levels: int, shares: int = 1) -> int:
    """The fewest (an even number) that each of `shares` parts takes to be as wide as the Gaussian of that multiplier.

    >>> trials_for(1.0, 1.0, 1.0, 101), trials_for(1.0, 1.0, 1.0, 101, shares=100)
    (10000, 100)
    """
    whole = (noise_multiplier * clip_norm * (levels - 1) / cut_off) ** 2 / shares
    return max(2, 2 * math.ceil(whole / 2 * (1 - 1e-12)))  # of the multiplier that so many have, as many again
