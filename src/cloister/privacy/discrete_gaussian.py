"""What a sum of discrete Gaussians gives away (DDGauss; Kairouz, Liu & Steinke 2021), and on which grid it is taken.

Guarantee: `rdp` bounds the Renyi divergences of one `DiscreteGaussianSum`, in both directions. The proof is ours
where it could be made shorter or sharper than the paper's (constants 4 and 8 for its 10 in steps 2 and 3, no factor 3
in 5).

Notation. N(s^2) is the discrete Gaussian: weight e^(-x^2 / 2 s^2) on every integer x. P is the law of the sum of n
independent N(s^2), in every one of d coordinates; P_v is P moved by an integer vector v with |v|_2 <= l2; S^2 = n s^2,
D2 = l2 / S, and D1 = min(sqrt(d), l2) D2 bounds |v|_1 / S, because |v_j| <= v_j^2 for integers.

1. *The sum is nearly one discrete Gaussian.* Take y ~ N(s^2), z ~ N(k s^2), x = y + z. Completing the square,
   P(x) is proportional to e^(-x^2 / 2(k+1)s^2) h(x), h(x) = sum over y of e^(-(y - x/(k+1))^2 / 2r^2), with
   r^2 = s^2 k/(k+1). By Poisson's summation h(x) is proportional to 1 + 2 sum_j>0 e^(-2 pi^2 r^2 j^2) cos(2 pi j
   x/(k+1)), hence lies between 1 - e and 1 + e with e = 2 sum_j>0 e^(-2 pi^2 r^2 j^2). One share after the other:
   averaging does not widen the range of what was found for k, so that on Z the ratio R = P / N(S^2) fulfils
   max ln R - min ln R <= W = sum_k<n ln((1 + e_k) / (1 - e_k)), and as both are laws, min ln R <= 0 <= max ln R.
   (The paper: |ln R| <= 5 sum_k e^(-2 pi^2 r_k^2) for s >= 1/2. Ours is about 4 of these; where some e_k >= 1 we
   say infinity.)
2. *First bound*, for any real order a > 1, one coordinate: with z ~ P the loss at v + z is
   (v^2 + 2vz) / 2S^2 + ln R(z)/R(v+z) <= (v^2 + 2vz) / 2S^2 + W. A discrete Gaussian has E e^(tz) <= e^(t^2 s^2 / 2)
   for all t (the sum of a shifted Gaussian over the integers is largest without a shift, by Poisson again), so P has
   E e^(tz) <= e^(t^2 S^2 / 2), and E e^((a-1) loss) <= exp((a-1) (W + a v^2 / 2S^2)). Coordinates are independent,
   and those with v_j = 0, all but l2^2 at most, lose nothing: D_a(P_v || P) <= a D2^2 / 2 + W min(d, l2^2).
3. *Second bound.* |ln R| <= W makes D_a(P || N) and D_a(N || P) at most a W^2 / 2, and D_a(N_v || N) <= a v^2 / 2S^2
   (Bun & Steinke 2016, 3.3; Canonne, Kamath & Steinke 2020). Bounds of the form a e^2 / 2 at all orders obey the
   triangle inequality in e (from Bun & Steinke's Lemma 5.2 with k = 1 + e1/e2), so one coordinate costs at most
   a (|v_j|/S + 2W)^2 / 2, and together a (D2^2 + 2 D1 t + t^2 d) / 2 with t = 2W. With D1 <= sqrt(d) D2 this is the
   paper's third bound or better, so that one is not computed.
4. *Which direction is worse, when a client joins with probability q.* Let M = (1-q) P + q P_v and L = P_v / P. P is
   symmetric, so x -> v - x swaps P and P_v and turns L into 1/L: E_P f(L) = E_P[f(L) + L f(1/L)] / 2. Now
   e^((a-1) D_a(M || P)) = E_P u^a and e^((a-1) D_a(P || M)) = E_P u^(1-a) with u = 1-q+qL. With w = 1-q+q/L it is
   enough that u^a - u^(1-a) + L (w^a - w^(1-a)) >= 0 for every L, and, L and 1/L being alike, for L >= 1, where
   u >= 1 >= w. Put c = a - 1/2, U = ln u, V = -ln w: the claim is sqrt(u) sinh(cU) >= L sqrt(w) sinh(cV). At a = 1
   both sides are equal (u - 1 + L(w - 1) = 0). Since u w = 1 + q(1-q)(L + 1/L - 2) >= 1, U >= V, and
   sinh(cU) / sinh(cV) does not fall with c, because t coth(ct) does not fall with t. So the claim holds for all
   a >= 1: the first direction is the worse one. (After Mironov, Talwar & Zhang 2019, Theorem 5.)
5. *Its price*, for a whole order a: E_P u^a = sum_l C(a, l) (1-q)^(a-l) q^l E_P L^l, where E_P L^l = 1 for l < 2 and
   is at most e^((l-1) eps(l)) by 2 and 3, whatever v. Between whole orders, ln E_P u^a is convex in a and 0 at 1, so
   it lies below the chord.
6. *From there to the release.* The other clients' draws, their vectors and shares, the rotation, and which v the
   client's rounding gives are independent of this noise and the same under both neighbors: e^((a-1) D_a) is jointly
   convex, so the mixture over them costs no more than the worst case. Reduction modulo 2^b, rotating back, averaging
   and all that follows is post-processing; wrapping around costs accuracy, never privacy.
7. *Who is a neighbor.* One client's data are there or not (its vector becomes 0); its place on the roster stays, and
   it still does its part of the noise: zero-out. A client that takes its share along is not covered.
8. *How many shares.* Fewer than n void the bound. More are post-processing, but only if their number is the same
   whether this client joins or not. One share for everyone who joined is NOT covered when q < 1: P would be wider in
   the branch with the client than in the one without, and over 2^20 coordinates a hundredth more variance is plain
   to see. So let the round's shares be n, or any number fixed before the cohort is drawn: whoever is missing is stood
   in for, and whoever is too many adds none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cloister.errors import expect, expect_count, expect_positive
from cloister.privacy.events import DiscreteGaussianSum

Array = np.ndarray[Any, np.dtype[np.float64]]


def rdp(event: DiscreteGaussianSum, orders: Sequence[float]) -> Array:
    """The Renyi divergence of one release at every order (step 5 above)."""
    asked = np.array(orders, dtype=float)
    unsampled = _unsampled(event, asked)
    if event.sampling_rate == 1 or np.isinf(unsampled).any():
        return unsampled
    from scipy.special import logsumexp

    knots = np.unique(np.concatenate([[1.0], np.floor(asked), np.ceil(asked)]))
    taken = np.arange(2.0, knots[-1] + 1)
    # Binomial probabilities add up to 1, so only what the moments have above 1 counts: nothing cancels.
    excess = _log_expm1((taken - 1) * _unsampled(event, taken))
    cumulants = [np.logaddexp(0.0, logsumexp(_log_binomial(a, taken, event.sampling_rate) + excess)) for a in knots[1:]]
    found: Array = np.interp(asked, knots, [0.0, *cumulants]) / (asked - 1)
    return found


def _log_binomial(trials: float, taken: Array, sampling_rate: float) -> Array:
    """ln of the probabilities to be taken so often; more often than tried is impossible."""
    from scipy.special import gammaln

    left = np.maximum(trials - taken, 0.0)
    ways = gammaln(trials + 1) - gammaln(taken + 1) - gammaln(left + 1)
    return np.where(
        taken > trials, -math.inf, ways + taken * math.log(sampling_rate) + left * math.log1p(-sampling_rate)
    )


def _unsampled(event: DiscreteGaussianSum, orders: Array) -> Array:
    """The smaller of the two bounds (steps 2 and 3)."""
    shift = event.l2 / (math.sqrt(event.shares) * event.scale)
    shift_l1 = shift * min(math.sqrt(event.dimension), event.l2)
    width = distance(event.scale, event.shares)
    if math.isinf(width):
        return np.full(len(orders), math.inf)
    first = orders / 2 * shift**2 + width * min(event.dimension, event.l2**2)
    tau = 2 * width
    second = orders / 2 * (shift**2 + 2 * shift_l1 * tau + tau**2 * event.dimension)
    found: Array = np.minimum(first, second)
    return found


def distance(scale: float, shares: int) -> float:
    """W of step 1: by how much (in logarithms) the sum of so many discrete Gaussians may differ from one.

    >>> distance(3.0, 1), distance(3.0, 100) < 1e-30, distance(0.2, 2)
    (0.0, True, inf)
    """
    before = np.arange(1, shares)
    main = np.exp(-2 * math.pi**2 * scale**2 * before / (before + 1))
    ripple = 2 * (main + main**4 / (1 - main))  # terms main^(j^2), those from the second on at most main^4, main^5, ...
    if np.any(ripple >= 1):
        return math.inf
    return float(np.sum(np.log1p(ripple) - np.log1p(-ripple)))


def _log_expm1(x: Array) -> Array:
    """ln(e^x - 1) for x > 0, without overflow."""
    found: Array = x + np.log(-np.expm1(-x))
    return found


@dataclass(frozen=True)
class Grid:
    """The integers on which a sum is taken: a number x becomes about `scale` * x."""

    scale: float
    sigma: float
    """Of one share of the noise, in units of the grid."""
    l2: float
    """The bound on one client's rounded vector, in units of the grid, to be enforced by `walsh.round_within`."""
    shares: int
    dimension: int
    bits: int
    overflow: float
    """Bounds the probability that a given coordinate of the sum wraps around (see `grid`)."""

    @property
    def any_overflow(self) -> float:
        """The same for any coordinate at all, by the union bound: often 1, although few of many would wrap."""
        return min(1.0, self.dimension * self.overflow)

    def event(self, sampling_rate: float = 1.0) -> DiscreteGaussianSum:
        """What one release on this grid is priced as."""
        return DiscreteGaussianSum(self.sigma, self.shares, self.l2, self.dimension, sampling_rate)


def grid(
    noise_multiplier: float,
    clip_norm: float,
    shares: int,
    dimension: int,
    bits: int,
    deviations: float = 4.0,
    beta: float = math.exp(-0.5),
) -> Grid:
    """The finest grid on which a sum of `shares` clipped vectors and their noise fits into `bits` bits.

    The shares together are as wide as the Gaussian of that multiplier: sigma / scale = multiplier clip / sqrt(n). With
    g = 1 / scale, half the range of 2^b points shall be `deviations` times sqrt(V), where V = c^2 n^2 / (d g^2) + n/4
    + n sigma^2: the rotated sum, the rounding and the noise. Solved for g:
    g^2 (4^b - k^2 n) = 4 k^2 (c^2 n^2 / d + n sigma_loc^2).

    Each part is sub-Gaussian with that variance: random signs before the rotation (Hoeffding), errors of rounding that
    live on an interval of length 1, and discrete Gaussians. Hence `overflow` = 2 e^(-k^2 / 2) for each coordinate. It
    is a bound for n members at most and for rounding that is not drawn again; drawing again within the norm's bound,
    and cohorts beyond n, can exceed it a little. In practice updates do not all point the same way, and it is far less.

    The bound on the rounded norm is the paper's (Proposition 22): at most a share beta of roundings would exceed it.
    Privacy does not rest on that, for the bound is enforced. Its price is that noise can do no more than so much:
    however large the multiplier, about sqrt(d)/2 of rounding remains to be hidden.

    >>> found = grid(1.0, clip_norm=0.03, shares=100, dimension=2**20, bits=16)
    >>> 800 < found.sigma < 820, 0.98 < found.event().noise_multiplier < 1.0
    (True, True)
    """
    expect_positive("noise_multiplier", noise_multiplier, "without noise there is no grid to choose")
    expect_positive("clip_norm", clip_norm, "the sum of updates without a bound fits into no number of bits")
    expect_count("shares", shares, "somebody has to add the noise")
    expect_count("dimension", dimension, "give the padded number of coordinates")
    expect_count("bits", bits, "give the bits of one coordinate on the wire")
    expect_positive("deviations", deviations, "how many standard deviations shall fit")
    expect(0 < beta < 1, "0 < beta < 1", beta, "the share of roundings that may be drawn again")
    room = 4.0**bits - deviations**2 * shares
    needed = math.floor(math.log2(deviations**2 * shares) / 2) + 1
    remedy = f"{shares} clients' rounding errors alone need {needed}, so give more bits or make the cohort smaller"
    expect(room > 0, "enough bits for the sum", bits, remedy)
    share = noise_multiplier * clip_norm / math.sqrt(shares)
    variance = clip_norm**2 * shares**2 / dimension + shares * share**2
    scale = math.sqrt(room / (4 * deviations**2 * variance))
    overflow = min(1.0, 2 * math.exp(-(deviations**2) / 2))
    l2 = rounded_norm(scale * clip_norm, dimension, beta)
    return Grid(scale, scale * share, l2, shares, dimension, bits, overflow)


def rounded_norm(norm: float, dimension: int, beta: float) -> float:
    """The L2 norm that stochastic rounding of a vector of the given norm exceeds with probability beta at most."""
    root = math.sqrt(dimension)
    likely = norm**2 + dimension / 4 + math.sqrt(2 * math.log(1 / beta)) * (norm + root / 2)
    return min(norm + root, math.sqrt(likely))
