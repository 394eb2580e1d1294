"""Ways to look at many random draws: do any of them come again, do they follow from one another, were any made twice?

What is said of probabilities holds for draws as they should be: `shift_of` and `block_off_by` raise a false alarm with
probability below 2e-9 each, at up to 2^20 numbers, and `comes_again` below 3e-9 at up to 300,000.
"""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy import fft, stats
from torch import Tensor

from cloister.random.streams import Streams

PURPOSES = {"cohort", "poisson batch", "step keys", "round key", "noise", "noise/more", "step noise", "step noise/more"}
"""What protects somebody: who takes part, who is in a batch, what follows from a sample's place in it, and noise."""
HARMLESS = {"batches", "model", "mask", "public", "signs"}
"""What everybody may know."""
CANCELLED = 4e-8
"""How many sums of a few float32 shares are exactly zero, at most: 1e-8 in a simulation of 4e8 sums of three."""


def comes_again(numbers: np.ndarray[Any, Any], run: int = 8) -> bool:
    """Whether so many consecutive numbers occur a second time anywhere, to the bit (or but for all their signs)."""
    bits = np.ascontiguousarray(numbers).view(f"u{numbers.itemsize}").astype(np.uint64)
    odd = np.random.default_rng(0).integers(0, 2**63, run).astype(np.uint64) * np.uint64(2) + np.uint64(1)
    with np.errstate(over="ignore"):
        words = sum(bits[k : len(bits) - run + 1 + k] * odd[k] for k in range(run))
    return len(np.unique(words)) < len(words)


def shift_of(numbers: np.ndarray[Any, Any]) -> int | None:
    """By how much numbers must be shifted to look like themselves; None where no shift does that.

    All shifts are tried, forwards and (as a negative answer) backwards, of the numbers and of their sizes alone: what
    is repeated, negated, mirrored or scaled shows as a correlation of more than eight deviations.
    """
    n = len(numbers)
    length, places = fft.next_fast_len(2 * n, real=True), np.arange(1000, 2 * n - 1000)
    values = numbers.astype(np.float64) - numbers.mean(dtype=np.float64)
    for part in (values, np.abs(values) - np.abs(values).mean()):
        spectrum = fft.rfft(part / part.std(), length)
        there = fft.irfft(spectrum.real**2 + spectrum.imag**2, length)[1 : n - 1000]
        there /= np.sqrt(n - np.arange(1, n - 1000))
        back = fft.irfft(spectrum * spectrum, length)[1000 : 2 * n - 1000]
        back /= np.sqrt(2 * np.minimum(places + 1, 2 * n - 1 - places))
        if np.abs(there).max() > 8:
            return int(np.abs(there).argmax()) + 1
        if np.abs(back).max() > 8:
            return -int(np.abs(back).argmax()) - 1000
    return None


def block_off_by(numbers: np.ndarray[Any, Any], scale: float, block: int = 4096, grid: bool = False) -> float | None:
    """The relative scale of the first block of normal numbers whose scale is not the one given; None if all fit.

    The end is looked at twice, once in a short block of its own. On a `grid` numbers are zero now and then, and so are,
    much more rarely, sums of float32 shares, which cancel to the bit: what was not filled has more zeros than that.
    """
    values = numbers.astype(np.float64) / scale
    real = np.issubdtype(numbers.dtype, np.floating) and not grid  # whole noise is zero now and then
    pieces = [*np.split(values, range(block, len(values), block)), values[-50:]]
    for piece in pieces:
        tail = stats.chi2.cdf(float((piece**2).sum()), len(piece))
        zeros = np.count_nonzero(piece == 0)
        if not 1e-12 < tail < 1 - 1e-12 or (real and zeros > stats.poisson.isf(1e-11, len(piece) * CANCELLED)):
            return float(np.sqrt((piece**2).mean()))
    return None


@dataclass(frozen=True)
class Recording(Streams):
    """Streams that refuse to draw twice under one key, whatever is drawn, and remember all that was drawn.

    `mean`: as few draws as possible are given at a time, so that whoever needs more has to ask again.
    """

    mean: bool = False
    drawn: dict[tuple[Any, ...], tuple[str, int, bytes]] = field(default_factory=dict, compare=False)
    plainly: set[str] = field(default_factory=set, compare=False)
    _lock: Any = field(default_factory=threading.Lock, compare=False)

    def _note(self, kind: str, found: Tensor, purpose: str, position: tuple[int, ...]) -> Tensor:
        digest = hashlib.blake2b(found.numpy().tobytes(), digest_size=16).digest() if found.numel() > 1 else b""
        with self._lock:
            assert (purpose, *position) not in self.drawn, f"{purpose} {position} is drawn twice"
            assert purpose in PURPOSES, f"{purpose} protects nobody that is known"
            self.drawn[purpose, *position] = kind, found.numel(), digest
        return found

    def protective_uniform(self, count: int, purpose: str, *position: int) -> Tensor:
        count = min(count, 3) if self.mean else count
        found = super().protective_uniform(count, purpose, *position)
        return self._note("uniform", found, purpose, position)

    def protective_integers(self, count: int, below: int, purpose: str, *position: int) -> Tensor:
        found = super().protective_integers(count, below, purpose, *position)
        first = not any(key[: len(position)] == (purpose, *position[:-1]) for key in self.drawn)
        self._note("integers", found, purpose, position)
        return torch.zeros_like(found) if self.mean and first else found

    def protective_bits(self, count: int, device: torch.device, purpose: str, *position: int) -> Tensor:
        found = super().protective_bits(count, device, purpose, *position)
        return self._note("bits", found, purpose, position)

    def protective_words(self, count: int, purpose: str, *position: int) -> Tensor:
        found = super().protective_words(count, purpose, *position)
        return self._note("words", found, purpose, position)

    def protective_normal(self, like: Tensor, purpose: str, *position: int) -> Tensor:
        found = super().protective_normal(like, purpose, *position)
        return self._note("normal", found, purpose, position)

    def key(self, purpose: str, *position: int) -> int:
        self.plainly.add(purpose)
        return super().key(purpose, *position)

    def subset(self, count: int, of: int, device: torch.device, purpose: str, *position: int) -> Tensor:
        self.plainly.add(purpose)
        return super().subset(count, of, device, purpose, *position)

    def signs(self, count: int, like: Tensor, purpose: str, *position: int) -> Tensor:
        self.plainly.add(purpose)
        return super().signs(count, like, purpose, *position)

    def expect_sound(self) -> None:
        """No two draws have the same content, and nothing that protects is drawn where everybody could draw it."""
        contents = [digest for kind, count, digest in self.drawn.values() if count >= (24 if kind == "integers" else 2)]
        assert len(set(contents)) == len(contents), "two draws are the same"
        assert self.plainly <= HARMLESS, f"{self.plainly - HARMLESS} can be drawn by everybody"
