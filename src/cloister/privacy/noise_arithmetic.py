"""What a certificate says of arithmetic: on which grid noise is exact, what that cost, and where it is only floats."""

from __future__ import annotations

import math

from cloister.privacy.description import MechanismDescription

_WHOLE = ("discrete_gaussian", "binomial")
_FLOATS = "floating-point arithmetic: the proof is for real numbers, the noise is drawn with finite precision"


def in_words(mechanism: MechanismDescription, rounded: bool, numbers: int, asks: bool) -> str:
    """How noise is drawn and added; `rounded`: where that is post-processing, on a grid. A sum has so many `numbers`;
    `asks`: there are queries beside training."""
    beside = "; queries likewise" if asks else ""
    if mechanism.name in _WHOLE:
        before = ", once sums of gradients, in floating point, are rounded to them" if _of_samples(mechanism) else ""
        return f"whole numbers, drawn and added exactly{before}{beside if rounded else ''}"
    grid = mechanism.settings.get("grid")
    if grid is None:
        found = "floating point"
        return (
            f"{found}; queries on a grid, exactly" if rounded and asks and mechanism.place != "distributed" else found
        )
    power = f"2^{math.frexp(grid)[1] - 1}"
    if mechanism.place == "local":
        wider = f"{math.sqrt(numbers) * grid:.1g}"
        return (
            f"exact rounding of an ideal Gaussian to multiples of {power} of the clip, to which sums of gradients are "
            f"rounded as well; noise is {wider} times its width wider for that, and the price is none{beside}"
        )
    return (
        f"exact rounding of an ideal Gaussian to multiples of {power}, to which every message is rounded toward zero, "
        f"within its bound exactly; at no extra price{beside}"
    )


def gaps_of(mechanism: MechanismDescription, rounded: bool, batch_size: int | None, dtype: str) -> list[str]:
    """What of it no proof covers."""
    grid = mechanism.settings.get("grid")
    if grid is not None and mechanism.place == "local":
        return [_steps("private steps", batch_size, dtype), _COINS]
    if mechanism.name in _WHOLE and _of_samples(mechanism):
        return [_steps("messages", batch_size, dtype), _COINS]
    if grid is not None or mechanism.name in _WHOLE:
        return [_COINS]
    if not rounded:
        return [_FLOATS]
    return [f"{_FLOATS}; {_WHY.get(mechanism.name, _OWN) if mechanism.place != 'distributed' else _SHARES}", _COINS]


def _of_samples(mechanism: MechanismDescription) -> bool:
    """Whether single samples are protected, of whose gradients each message is a sum."""
    return mechanism.name == "binomial" or "honest_fraction" in mechanism.settings


def _steps(where: str, batch_size: int | None, dtype: str) -> str:
    bits = 53 if dtype == "float64" else 24
    size = "" if batch_size is None else f" (for {batch_size}: {batch_size**2 * 2.0**-bits:.1g})"
    return (
        f"floating-point sums in {where}: noise is exact, but the gradients of a batch are added up in {dtype}, "
        f"with roundings that depend on all of them; a sum of b clipped gradients is off by up to b^2 2^-{bits} of the "
        f"clip{size}, or more where a gradient is itself a sum that cancels; no price counts that"
    )


_COINS = (
    "floating-point coins: who is drawn follows from random numbers of 53 bits: probabilities are off by about 2^-53"
)
_SHARES = (
    "a sum of shares that were rounded one by one is no rounding of their sum, so that shares are floats (methods with "
    "discrete noise have none)"
)
_WHY = {"banded": "noise that cancels over rounds by real coefficients is on no grid (factorization = tree is)"}
_OWN = "this noise has no exact rounding"
