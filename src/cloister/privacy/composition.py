"""Composing privacy losses where sums are products, so that one more release costs microseconds.

dp-accounting describes the loss of ONE release: masses p_k >= 0 at the losses k h and a mass at infinity, which
together dominate the release (Doroshenko et al. 2022). The losses of releases add up, so their spectra multiply.
What is asked of the total X is read off the spectrum Q itself: with v = e^(2 pi i f / L),

    P(X >= a h)                  =  1/L sum_f Q_f (v^a - v^A) / (1 - v)
    E[e^(a h - X) ; X >= a h]    =  1/L sum_f Q_f (v^a - e^(-h (A + L - a)) v^A) / (1 - e^-h v)

where [A, A + L) is the window of losses, in units of h, that the spectrum holds (for f = 0, the first quotient is
A + L - a). The first minus the second is delta at epsilon = a h. After some dozen releases only the lowest hundred
frequencies or so are alive. The others stay dead, because no spectrum exceeds 1, and are dropped for good.

Guarantee: no epsilon returned is below that of the exact composition of the given masses, whatever the window. A
spectrum wraps around: what lies below the window is counted inside it, at a larger loss, which can only raise
delta; for what lies above it, a Chernoff bound is added to delta in full. Rounding is paid for as well
(`_ROUNDING`). So the window decides about tightness alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Self

import numpy as np

from cloister.errors import UnsupportedMechanismError

Array = np.ndarray[Any, np.dtype[Any]]

_TAIL = 1e-15  # the mass that a window may leave out on either side, as in dp-accounting
_DEAD = 1e-19  # a frequency below this is dead: all of them together move delta by less than 1e-17
_ROUNDING = 1e-15  # added to delta for each release; against extended precision, less than 3e-16 were found
_NOISE = 1e-10  # where losses are negative, masses below this are made of rounding as much as of anything
_FEW = 256  # frequencies that are not worth thinning out
_ORDERS = 2.0 ** np.arange(-6, 15)  # of the Chernoff bounds
_FINE = 9  # bits: the smallest window has 2^9 points
_MOST_POINTS = 2**22


class Step:
    """The privacy loss of one release in one direction, with its cumulant generating function at +-`_ORDERS`."""

    def __init__(self, interval: float, first: int, masses: Array, at_infinity: float) -> None:
        something = np.flatnonzero(masses)
        self.interval, self.first = interval, first + int(something[0])
        self.masses = masses[something[0] : something[-1] + 1]
        self.log_finite = math.log1p(-at_infinity)
        ends = (self.first + len(self.masses) - 1) * interval, -self.first * interval
        self.cumulants = np.stack(
            [_cumulants(ends[0], self.masses, interval), _cumulants(ends[1], self.masses[::-1], interval)]
        )


def steps_of(pld: Any) -> tuple[Step, ...]:
    """One release as dp-accounting describes it, in its two directions (or in one that stands for both).

    At negative losses the library's masses are differences of numbers close to one, and where they should be
    tiny, rounding leaves up to 1e-12 each and 1e-7 in all. That is harmless, but a window would have to hold it.
    Such masses follow from the other direction, p(-x) = e^-x p'(x), without any cancellation. What is then missing
    from one (some 1e-12) is put at the loss zero, above all losses from which it can be missing.
    """
    # The fields have no public names; the tests hold the outcome against the library's own compositions.
    sides = [pmf.to_dense_pmf() for pmf in (pld._pmf_remove, pld._pmf_add)]
    steps = []
    for side, other in (sides, sides[::-1])[: 1 if pld._symmetric else 2]:
        interval, first, masses = float(side._discretization), int(side._lower_loss), side._probs.copy()
        if not first <= 0 < first + len(masses):
            raise UnsupportedMechanismError(
                f"Expected losses on both sides of zero, found them from {first} on: use more noise."
            )
        index = np.arange(max(first, 1 - int(other._lower_loss) - len(other._probs)), min(0, first + len(masses)))
        mirrored = np.exp(interval * index) * other._probs[-index - int(other._lower_loss)]
        small = mirrored < _NOISE
        masses[index[small] - first] = mirrored[small]
        masses[-first] += max(0.0, 1 - float(side._infinity_mass) - masses.sum())
        steps.append(Step(interval, first, masses, float(side._infinity_mass)))
    return tuple(steps)


class Composition:
    """The composed loss of many releases in one direction. It does not change: `plus` gives another one."""

    def __init__(self, interval: float, first: int, points: int) -> None:
        self.interval, self.first, self.points = interval, first, points
        self.releases = 0
        self._log_finite = 0.0
        self._frequencies = np.arange(points // 2 + 1)
        self._spectrum = np.ones(points // 2 + 1, dtype=np.complex128)
        self._kernels: Array | None = None
        # ln of the Chernoff bounds on the mass above the window and below it, for each order
        self._outside = -_ORDERS * interval * np.array([[first + points], [-first]])

    @classmethod
    def of(cls, parts: Sequence[tuple[Step, int]], headroom: float = 1.0) -> Self | None:
        """All of these releases, in a window that suits up to `headroom` times as many, or at least these.

        None where not even that can be had with `_MOST_POINTS`: epsilon is in the thousands.
        """
        interval = parts[0][0].interval
        now = np.sum([count * step.cumulants for step, count in parts], axis=0)
        for most in (np.maximum(now, headroom * now), now):
            top, bottom = np.min((most - math.log(_TAIL)) / _ORDERS, axis=1) / interval
            if top + bottom < _MOST_POINTS - 2:
                first = math.floor(-bottom)
                total = cls(interval, first, 1 << max(math.ceil(top) - first, 2**_FINE - 1).bit_length())
                for step, count in parts:
                    total = total.plus(step, count)
                return total
        return None

    def plus(self, step: Step, count: int) -> Self:
        """This and `count` more releases."""
        more = object.__new__(type(self))
        more.__dict__.update(self.__dict__)
        more.releases += count
        more._log_finite += count * step.log_finite
        more._outside = self._outside + count * step.cumulants
        factor = _spectrum(step, self.points)[self._frequencies]
        if count > 1:
            alive = _alive(factor, _DEAD ** (1 / count))  # only these are worth a power
            more._keep(alive)
            factor = factor[alive] ** count
        more._spectrum = more._spectrum * factor
        if len(factor) > _FEW:
            alive = _alive(more._spectrum, _DEAD)
            if 4 * np.count_nonzero(alive) < 3 * len(alive):
                more._keep(alive)
        return more

    def _keep(self, alive: Array) -> None:
        self._frequencies, self._spectrum = self._frequencies[alive], self._spectrum[alive]
        self._kernels = None if self._kernels is None else self._kernels[:, alive]

    @property
    def fits(self) -> bool:
        """Whether the window still suits; the answers are valid either way, but may no longer be tight."""
        above, below = self._outside.min(axis=1)
        return max(float(above), float(below)) <= math.log(_TAIL)

    def epsilon(self, delta: float, least: float = 0.0, guess: float = 0.0) -> float:
        """The smallest epsilon proven at this delta, but not below `least`; `guess` is where to begin.

        As a function of e^epsilon, delta falls along straight lines from one point of the grid to the next. The
        search closes in on the piece that crosses the given delta, by Newton's steps on ln(delta), and solves it.
        """
        above_window = math.exp(min(0.0, float(self._outside[0].min())))
        # In a narrow window terms of the size 1 / (h L) cancel, and what rounding leaves of them grows with that.
        rounded = rounding(self.releases) * max(1.0, 4 / (self.interval * self.points))
        spare = delta + math.expm1(self._log_finite) - above_window - rounded
        if spare <= 0 or math.isinf(least):
            return math.inf
        if self._kernels is None:
            self._kernels = _kernels(self._frequencies, self.points, self.interval, self.first)
        edge = _total(self._kernels * self._spectrum)
        low = max(math.floor(least / self.interval), self.first, 0) - 1  # as if delta were too large here
        high = self.first + self.points - 1  # nothing lies above, so delta is small enough here
        too_low = -math.inf  # where delta was found to be too large
        index, tries = math.ceil(min(max(low + 1, guess / self.interval), high)), 0
        while low < high:
            tail, tilted = self._from(index, edge)
            here, tries = tail - tilted, tries + 1
            if here > spare:
                low = too_low = index
            else:
                high = index
                root = index + math.log((tail - spare) / tilted) / self.interval if tail > spare else -math.inf
                if root > index - 1 or high - low == 1:
                    return max(max(root, too_low) * self.interval, least)
            if high - low == 1:
                index = high
            elif tries > 8 or here <= 0 or tilted <= 0:
                index = (low + high) // 2
            else:
                newton = here / tilted * math.log(here / spare) / self.interval
                index = min(max(index + math.ceil(newton), low + 1), high - 1)
        return max(high * self.interval, least)

    def _from(self, index: int, edge: tuple[float, float]) -> tuple[float, float]:
        """P(X >= a h) and E[e^(a h - X) ; X >= a h] for a = index, the mass at infinity left aside."""
        assert self._kernels is not None
        room = self.first + self.points - index
        turned = self._spectrum * _turn(self._frequencies * (index - self.first), self.points)
        tail, tilted = _total(self._kernels * turned)
        tail += float(self._spectrum[0].real) * room - edge[0]
        tilted -= math.exp(-self.interval * room) * edge[1]
        return tail / self.points, tilted / self.points


def _alive(spectrum: Array, least: float) -> Array:
    found: Array = np.abs(spectrum) > least
    found[0] = True  # the total mass
    return found


def rounding(releases: int) -> float:
    """What rounding can add to or take from delta, with room to spare."""
    return _ROUNDING * (releases + 8)


def _cumulants(largest: float, masses: Array, interval: float) -> Array:
    """ln E[e^(order * loss)] for every order, from the losses that end in `largest`, `interval` apart.

    An order's weights are the squares of those before. What is too far down to count is left out, and where a
    sum falls so low that this could matter, infinity says that the order knows nothing.
    """
    weights = np.exp(_ORDERS[0] * interval * np.arange(1 - len(masses), 1))
    found = []
    for order in _ORDERS:
        near = math.ceil(690 / (order * interval))
        weights, masses = weights[-near:], masses[-near:]
        moment = float((weights * masses).sum())
        found.append(order * largest + math.log(moment) if moment > 1e-250 else math.inf)
        weights = weights * weights
    return np.array(found)


@lru_cache(maxsize=8)
def _spectrum(step: Step, points: int) -> Array:
    """Of one release's masses, wrapped into a window of so many points."""
    from scipy import fft

    places = (step.first + np.arange(len(step.masses))) & (points - 1)
    found: Array = fft.rfft(np.bincount(places, step.masses, points))
    return found


def _kernels(frequencies: Array, points: int, interval: float, first: int) -> Array:
    """v^A / (1 - v) and v^A / (1 - e^-h v). Frequencies that stand for two count twice.

    With t the tangent of half v's angle, 1 - v = 2 t (t - i) / (1 + t^2), which cancels nothing.
    """
    half = np.tan(np.pi / points * frequencies)
    gap = 2 * half * (half - 1j) / (1 + half * half)
    tail = np.zeros_like(gap)
    tail[1:] = 0.5 + 0.5j / half[1:]
    tilted = 1 / (math.exp(-interval) * gap - math.expm1(-interval))
    twice = np.where((frequencies == 0) | (frequencies == points // 2), 1.0, 2.0)
    found: Array = np.stack([tail, tilted]) * (twice * _turn(frequencies * first, points))
    return found


def _total(terms: Array) -> tuple[float, float]:
    """Of the real parts, pairwise: more precise than a dot product, and without its threads."""
    one, other = terms.real.sum(axis=1)
    return float(one), float(other)


def _turn(steps: Array, points: int) -> Array:
    """e^(2 pi i steps / points) for whole steps, precise in the angle."""
    found: Array = _circle(points)[steps & (points - 1)]
    return found


@lru_cache(maxsize=4)
def _circle(points: int) -> Array:
    coarse, fine = np.arange(points >> _FINE) * 2**_FINE, np.arange(2**_FINE)
    found: Array = np.exp(2j * np.pi / points * coarse)[:, None] * np.exp(2j * np.pi / points * fine)
    return found.ravel()
