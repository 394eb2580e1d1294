"""What can go wrong, and how it is said: one sentence with the value, the expectation and the remedy."""

from __future__ import annotations

import difflib
import math
import sys
import warnings
from collections.abc import Iterable
from importlib.util import find_spec
from types import FunctionType


class CloisterError(ValueError):
    """A request that cannot be honored; the command line prints it in one line and exits with status 2."""


class BudgetExceededError(CloisterError):
    """A charge would take a unit beyond its budget; nothing was computed and nothing was written."""


class UnsupportedMechanismError(CloisterError):
    """No proven bound on the privacy loss is known for what was about to be released."""


class RankLost(CloisterError):
    """A process that took part in a run is gone."""


class Corrupted(CloisterError):
    """A file of a run is not what was written."""


class Note(UserWarning):
    """Something that a user should know and that is no error; the command line prints it in one line."""


def note(message: str) -> None:
    """Give a note at the line, outside of this library, from which it was called."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).split(".")[0] == "cloister":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, Note, stacklevel=level)


class RepeatedRounds(Note):
    """A resumed run computes rounds again that were charged, with other noise, and pays for them again."""


LEAST, MOST = 1e-18, 1e18
"""Between these a number, its square and its product with another one stay within what a float32 can hold."""

MOST_COUNT = 10**9
"""More rounds, steps or samples than this are a slip of the hand: nobody would see them end."""


def expect(condition: bool, expectation: str, found: object, remedy: str) -> None:
    """Raise `CloisterError` in the one form that all errors have unless the condition holds.

    >>> expect(False, "clip_norm > 0", -1.0, "choose a positive clipping norm")
    Traceback (most recent call last):
    cloister.errors.CloisterError: Expected clip_norm > 0, found -1.0: choose a positive clipping norm.
    """
    if not condition:
        raise CloisterError(f"Expected {expectation}, found {shown(found)}: {remedy}.")


def shown(value: object) -> str:
    """A value as an error message shows it: on one line, and cut where it is long.

    >>> shown("loud"), shown(10**400), shown(int)
    ("'loud'", 'about 10^400', 'the class int')
    """
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, FunctionType):
        return f"the function {value.__name__}"
    if isinstance(value, int) and value.bit_length() > 80:
        return f"about {'-' if value < 0 else ''}10^{round(value.bit_length() * math.log10(2))}"
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # whole numbers of thousands of digits, inside something else, have no text
        text = f"a {type(value).__name__}"
    return text if len(text) <= 120 else f"{text[:100]}... ({type(value).__name__})"


def expect_type(name: str, value: object, kinds: type | tuple[type, ...], wanted: str, remedy: str = "") -> None:
    """The value is of a type; whoever passes a function or a class that makes one is told to call it.

    >>> expect_type("folder", 3, str, "the path of a folder", "give a text")
    Traceback (most recent call last):
    cloister.errors.CloisterError: Expected folder to be the path of a folder, found 3: give a text.
    """
    uncalled = "call it, with its arguments" if isinstance(value, (type, FunctionType)) else "give one"
    expect(isinstance(value, kinds), f"{name} to be {wanted}", value, remedy or uncalled)


def expect_one_of(name: str, value: object, known: Iterable[str], remedy: str = "choose one") -> None:
    """The value is one of a few words."""
    words = tuple(known)
    expect(isinstance(value, str) and value in words, f"{name} to be one of {', '.join(words)}", value, remedy)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def expect_positive(name: str, value: float, remedy: str, *, or_infinite: bool = False) -> None:
    """The value is a number above zero (and finite, unless infinity is said to be welcome), of a usable size."""
    fine = _is_number(value) and value > 0 and (or_infinite or value < math.inf)  # isfinite(10**400) overflows
    expect(fine, f"{name} > 0" + ("" if or_infinite else " and finite"), value, remedy)
    usable = LEAST <= value <= MOST or (or_infinite and value == math.inf)
    expect(usable, f"{name} between {LEAST:g} and {MOST:g}", value, remedy)


def expect_not_negative(name: str, value: float, remedy: str) -> None:
    """The value is a finite number of at least zero, of a usable size."""
    fine = _is_number(value) and value >= 0 and value < math.inf
    expect(fine, f"{name} >= 0 and finite", value, remedy)
    expect(value <= MOST, f"{name} <= {MOST:g}", value, remedy)


def expect_share(name: str, value: float, remedy: str, *, zero: bool = False, one: bool = False) -> None:
    """The value lies between 0 and 1, which are themselves refused unless they are said to be welcome.

    >>> expect_share("momentum", "fast", "0 switches it off", zero=True)
    Traceback (most recent call last):
    cloister.errors.CloisterError: Expected 0 <= momentum < 1, found 'fast': 0 switches it off.
    """
    fine = _is_number(value) and (0 < value < 1 or (zero and value == 0) or (one and value == 1))
    expect(fine, f"0 {'<=' if zero else '<'} {name} {'<=' if one else '<'} 1", value, remedy)


def expect_probability(name: str, value: float, remedy: str) -> None:
    """The value lies in (0, 1]."""
    expect_share(name, value, remedy, one=True)


def expect_epsilon(value: float) -> None:
    """The value is an epsilon that promises something."""
    expect_positive("epsilon", value, "give a number such as 2, or leave it out where nothing is to be promised")
    expect(
        value <= MOST_EPSILON,
        f"epsilon <= {MOST_EPSILON}",
        value,
        "more promises nothing: 1 to 10 is usual, or give a noise_multiplier",
    )


MOST_EPSILON = 300
"""Beyond it, accountants that agree to seven digits elsewhere differ by a thousandth, and nothing is promised."""


def expect_noise(name: str, value: float) -> None:
    """The value is a noise multiplier: 0 for none, or one that has a price."""
    expect_not_negative(name, value, "give the noise's scale, or leave it out")
    least, most = NOISE_LIMITS
    remedy = "less has no price worth the name, and more drowns everything"
    expect(value == 0 or least <= value <= most, f"{name} to be 0 or between {least:g} and {most:g}", value, remedy)


NOISE_LIMITS = (1e-3, 1e6)


def expect_count(name: str, value: int, remedy: str, *, least: int = 1, most: int = MOST_COUNT) -> None:
    """The value is a whole number of at least `least`, and not absurdly large."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    expect(whole and value >= least, f"{name} to be a whole number of at least {least}", value, remedy)
    expect(value <= most, f"{name} to be at most {most:,}", value, remedy)


def expect_delta(delta: float) -> None:
    """delta is a probability strictly between 0 and 1."""
    expect_share("delta", delta, "choose one well below 1/clients, such as 1e-5")


def expect_package(name: str, use: str, extra: str) -> None:
    """An optional package is installed. A folder of that name in the current directory is none.

    >>> expect_package("cloisterless", "for nothing at all", "none")
    Traceback (most recent call last):
    cloister.errors.CloisterError: Expected the package cloisterless for nothing at all, found none: pip install \
'cloister[none]'.
    """
    found = find_spec(name)
    if found is None or found.origin is None:
        raise CloisterError(f"Expected the package {name} {use}, found none: pip install 'cloister[{extra}]'.")


def number_in(text: str) -> float | None:
    """The number that a text says, a fraction such as 1/3400 included; None where it says none.

    >>> number_in("1/4"), number_in("1e-5"), number_in("few")
    (0.25, 1e-05, None)
    """
    numerator, slash, denominator = text.partition("/")
    try:
        return float(numerator) / float(denominator) if slash else float(text)
    except (ValueError, ZeroDivisionError, OverflowError):
        return None


def nearest(name: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """The clause that helps somebody who mistyped a name.

    >>> nearest("clipp", ["clip_norm", "rounds"])
    'perhaps you mean "clip_norm"'
    """
    names = sorted(known)
    close = closest(name, names)
    if close is not None:
        return f'perhaps you mean "{close}"'
    return "known are " + ", ".join(names) if otherwise is None else otherwise


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that somebody may have meant; None where none is near.

    >>> closest("clipp", ["clip_norm", "rounds"]), closest("x", ["rounds"])
    ('clip_norm', None)
    """
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)), None)
