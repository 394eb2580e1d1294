"""Shamir's secret sharing over the prime field of 2^521 - 1: any `threshold` shares give the secret, fewer say nothing.

The prime is far above the 32-byte secrets that are shared, so that a secret is one element and a share 66 bytes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod

PRIME = 2**521 - 1
SHARE_BYTES = 66
SECRET_BYTES = 32


def split(secret: bytes, threshold: int, points: Sequence[int]) -> dict[int, bytes]:
    """A share for every point: a random polynomial of degree threshold - 1 through the secret at 0, from the OS.

    >>> shares = split(bytes(31) + b"x", 2, [1, 2, 3])
    >>> combine({1: shares[1], 3: shares[3]})[-1:]
    b'x'
    """
    assert len(secret) == SECRET_BYTES
    assert 1 <= threshold <= len(points) == len(set(points))
    assert all(0 < point < PRIME for point in points)  # at 0 lies the secret itself
    coefficients = [int.from_bytes(secret), *(_element() for _ in range(threshold - 1))]
    return {point: _value(coefficients, point).to_bytes(SHARE_BYTES) for point in points}


def combine(shares: Mapping[int, bytes]) -> bytes | None:
    """The secret that shares give, of which there must be at least as many as the threshold; None where it is none.

    Shares that belong to different secrets give one that nobody had: whoever calls this compares it with what its owner
    signed.
    """
    points = tuple(sorted(shares))
    weights = _weights(points)
    found = sum(int.from_bytes(shares[at]) * weight for at, weight in zip(points, weights, strict=True)) % PRIME
    return found.to_bytes(SECRET_BYTES) if found < 256**SECRET_BYTES else None


def is_share(data: bytes) -> bool:
    """Whether the bytes are an element of the field, in its one form."""
    return len(data) == SHARE_BYTES and int.from_bytes(data) < PRIME


def _element() -> int:
    """A uniform element: 521 bits of the operating system's, drawn again in the one case that is none."""
    while (drawn := int.from_bytes(os.urandom(SHARE_BYTES)) & PRIME) == PRIME:
        pass
    return drawn


def _value(coefficients: Sequence[int], point: int) -> int:
    """The polynomial's value, by Horner's rule."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * point + coefficient) % PRIME
    return value


@lru_cache(maxsize=64)
def _weights(points: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's weights at 0; the same for all secrets that the same members open."""
    above = [prod(other for other in points if other != point) for point in points]
    below = [prod(other - point for other in points if other != point) for point in points]
    return tuple(top * pow(bottom, -1, PRIME) % PRIME for top, bottom in zip(above, below, strict=True))
