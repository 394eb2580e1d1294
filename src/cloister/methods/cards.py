"""What is known of a method: whose it is, whom it protects from whom, and what is proven."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from cloister import transforms
from cloister.errors import expect_one_of
from cloister.joints import Method, Transform

Mode = Literal["honest", "as_published"]
"""honest: one clip for the whole update, priced as executed. as_published: what the authors ran, priced as executed,
with the epsilon that the paper would claim beside it."""


@dataclass(frozen=True)
class Card:
    """A line of `cloister methods`."""

    paper: str
    unit: str
    trust: str
    proven: str
    published: str = ""
    """What mode = as_published replicates, where there is one."""


CARDS: dict[str, Card] = {}
"""By the method's name."""

Make = TypeVar("Make", bound=Callable[..., Method])


def card(paper: str, proven: str, trust: str = "", published: str = "", unit: str = "client") -> Callable[[Make], Make]:
    """Say what is known of the method that a function makes."""

    def keep(function: Make) -> Make:
        CARDS[function.__name__] = Card(paper, unit, trust or SERVER_OR_SECURE_SUM, proven, published)
        return function

    return keep


OWN_STEPS = "every client's update by itself"
NOBODY = "nobody"
EVERY_UPDATE = "every client's update in every round, each private by itself, and so every model computed from them"
SERVER_OR_SECURE_SUM = "server or secure sum"
NOISY_SUM = "noisy sum of each round"
ONLY_THE_CLAIM = "the same computation, with the paper's claim (Poisson cohorts, Renyi accountant) beside its price"
EACH_TENSOR = "each tensor clipped by itself, taken for a clip of the whole"


def as_published(mode: Mode) -> bool:
    """Whether the authors' choices are replicated, and so their claim is shown; refuses a mode that does not exist."""
    expect_one_of("mode", mode, get_args(Mode))
    return mode == "as_published"


def claim(mode: Mode, arithmetic: str = "poisson_cohorts") -> str | None:
    """By which arithmetic the paper's claim is shown, where its choices are replicated."""
    return arithmetic if as_published(mode) else None


def clipping(clip: float, mode: Mode) -> Transform:
    """The clip of the whole update, or the published one of each tensor."""
    return transforms.clip_each_tensor(clip) if as_published(mode) else transforms.clip_l2(clip)
