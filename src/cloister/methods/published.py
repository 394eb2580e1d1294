"""mode = as_published: what a paper's authors ran, priced as executed, with their claim beside the price."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from cloister import transforms
from cloister.core import Transform
from cloister.errors import expect_one_of

ModeName = Literal["sound", "as_published"]
"""sound: one clip for the whole update, priced as executed. as_published: what the authors ran, priced as executed,
with the epsilon that the paper would claim beside it."""
Mode = Annotated[ModeName, "sound, or as_published: what the authors ran, with their claim beside the price"]

ONLY_THE_CLAIM = "the same computation, with the paper's claim (Poisson cohorts, Renyi accountant) beside its price"
EACH_TENSOR = "each tensor clipped by itself, taken for a clip of the whole"


def as_published(mode: Mode) -> bool:
    """Whether the authors' choices are replicated, and so their claim is shown; refuses a mode that does not exist."""
    expect_one_of("mode", mode, get_args(ModeName))
    return mode == "as_published"


def claim(mode: Mode, arithmetic: str = "poisson_cohorts") -> str | None:
    """By which arithmetic the paper's claim is shown, where its choices are replicated."""
    return arithmetic if as_published(mode) else None


def clipping(clip_norm: float, mode: Mode) -> Transform:
    """The clip of the whole update, or the published one of each tensor."""
    return transforms.clip_each_tensor(clip_norm) if as_published(mode) else transforms.clip_l2(clip_norm)
