"""On which data candidates are tried: the one choice that decides what a tuning costs, and so has no default."""

from __future__ import annotations

from typing import Any, Literal

from cloister.errors import CloisterError, expect

On = Literal["public", "simulated", "private"]
_CHOICES = (
    "public (samples set aside by public_samples, or another data set as public_data: free), simulated (nobody's data, "
    "or a benchmark: the tuning is not charged, and the certificate says so) or private (charged: the best of a random "
    "number of trials)"
)


def expect_on(on: Any) -> None:
    """Refuse to tune on data of which nobody said whose they are."""
    if on is None:
        raise CloisterError(f"Expected to know on which data to tune, found nothing said: choose {_CHOICES}.")
    known = ("public", "simulated", "private")
    expect(on in known, "on to be public, simulated or private", on, f"choose {_CHOICES}")
