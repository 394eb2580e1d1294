"""What can go wrong, and how it is said: one sentence with the value, the expectation and the remedy."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable


class CloisterError(ValueError):
    """A request that cannot be honoured; the command line prints it in one line and exits with status 2."""


class BudgetExceeded(CloisterError):
    """A charge would take a unit beyond its budget; nothing was computed and nothing was written."""


class CannotPrice(CloisterError):
    """No proven bound on the privacy loss is known for what was about to be released."""


class RankLost(CloisterError):
    """A process that took part in a run is gone."""


class Corrupted(CloisterError):
    """A file of a run is not what was written."""


class RepeatedRounds(UserWarning):
    """A resumed run computes rounds again that were charged, with other noise, and pays for them again."""


def expect(condition: bool, expectation: str, found: object, remedy: str) -> None:
    """Raise `CloisterError` in the house's one form unless the condition holds.

    >>> expect(False, "clip > 0", -1.0, "choose a positive clipping norm")
    Traceback (most recent call last):
    cloister.errors.CloisterError: Expected clip > 0, found -1.0: choose a positive clipping norm.
    """
    if not condition:
        raise CloisterError(f"Expected {expectation}, found {found!r}: {remedy}.")


def expect_positive(name: str, value: float, remedy: str, *, or_infinite: bool = False) -> None:
    """The value is a number above zero (and finite, unless infinity is said to be welcome)."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    fine = number and value > 0 and (or_infinite or math.isfinite(value))
    expect(fine, f"{name} > 0" + ("" if or_infinite else " and finite"), value, remedy)


def expect_not_negative(name: str, value: float, remedy: str) -> None:
    """The value is a finite number of at least zero."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    expect(number and value >= 0 and math.isfinite(value), f"{name} >= 0 and finite", value, remedy)


def expect_probability(name: str, value: float, remedy: str) -> None:
    """The value lies in (0, 1]."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    expect(number and 0 < value <= 1, f"0 < {name} <= 1", value, remedy)


def expect_count(name: str, value: int, remedy: str, *, least: int = 1) -> None:
    """The value is a whole number of at least `least`."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    expect(whole and value >= least, f"{name} to be a whole number of at least {least}", value, remedy)


def expect_delta(delta: float) -> None:
    """delta is a probability strictly between 0 and 1."""
    number = isinstance(delta, (int, float)) and not isinstance(delta, bool)
    expect(number and 0 < delta < 1, "0 < delta < 1", delta, "choose one well below 1/clients, such as 1e-5")


def number_in(text: str) -> float | None:
    """The number that a text says, a fraction such as 1/3400 included; None where it says none.

    >>> number_in("1/4"), number_in("1e-5"), number_in("few")
    (0.25, 1e-05, None)
    """
    numerator, slash, denominator = text.partition("/")
    try:
        return float(numerator) / float(denominator) if slash else float(text)
    except (ValueError, ZeroDivisionError):
        return None


def nearest(name: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """The clause that helps somebody who mistyped a name.

    >>> nearest("clipp", ["clip", "rounds"])
    'perhaps you mean "clip"'
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f'perhaps you mean "{close[0]}"'
    return "known are " + ", ".join(names) if otherwise is None else otherwise
