"""A certificate for people as plain values: what the HTML page and the PDF show, whoever made the certificate."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Banner:
    """What must not be overlooked."""

    title: str
    text: str


@dataclass(frozen=True)
class Guess:
    """What an attacker is right with at most, beside what a guess is worth without the data."""

    question: str
    before: float
    after: float

    @property
    def before_text(self) -> str:
        """Such as 10 %."""
        return percent(self.before)

    @property
    def after_text(self) -> str:
        """Rounded upwards, because a smaller number would claim too much."""
        return percent(self.after)


@dataclass(frozen=True)
class Spent:
    """What an account has spent, beside its budget."""

    name: str
    more: str
    epsilon: str
    budget: str
    share: float | None
    """What was spent, as a part of the widest bar; None where nothing is bounded."""
    room: float
    """The budget, as a part of the widest bar; none is as wide as what was spent."""


@dataclass(frozen=True)
class Page:
    """All that is shown, in the order in which it is."""

    title: str
    subject: str
    banners: list[Banner]
    epsilon: str
    """As it is printed large; empty where nothing is promised."""
    at_delta: str
    whom: str
    meaning: list[str]
    guesses: list[Guess]
    formula: str
    unit: list[str]
    names: str
    """What clients are called, where they have names."""
    spending_title: str
    spending: list[Spent]
    spending_note: str
    trusted: list[str]
    not_covered: list[str]
    details: list[tuple[str, list[str]]]
    files: list[tuple[str, str]]
    signature: list[str]
    check: list[str] = field(default_factory=list)


def percent(value: float) -> str:
    """A probability for people, rounded upwards.

    >>> percent(0.01), percent(0.2634), percent(0.0101), percent(0.9996), percent(1.0)
    ('1 %', '27 %', '1.1 %', '99.96 %', '100 %')
    """
    digits = 1 if value < 0.1 else 2 if value > 0.99 else 0
    rounded = math.ceil(value * 100 * 10**digits - 1e-9) / 10**digits
    return f"{rounded:g} %"
