"""Weights by data size, as keys: capped where clients are protected, plain where sizes are public, refused elsewhere.

What they do, and why, is in `transforms/weights.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, get_args

from cloister import transforms
from cloister.core import Transform
from cloister.errors import CloisterError, expect, expect_one_of, expect_positive, expect_probability, expect_type

WeightsName = Literal["equal", "size"]
ClientWeights = Annotated[WeightsName, "how much clients count: equal, or by their numbers of samples (size)"]
WeightCap = Annotated[
    float | None,
    "public number of samples from which a client counts 1, with fewer n / weight_cap; for weights by size",
]
MeanWeight = Annotated[
    float | None,
    "public guess of what clients weigh on average: sums are divided by this times the expected cohort (by default 1)",
]
PublicSizes = Annotated[
    bool, "true: the clients' numbers of samples are public, and may weigh updates whose samples are added or removed"
]


@dataclass(frozen=True)
class CappedWeights:
    """The keys of methods that protect clients."""

    client_weights: ClientWeights = "equal"
    weight_cap: WeightCap = None
    mean_weight: MeanWeight = None
    given_as_keywords: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _expect_name(self.client_weights)
        if self.client_weights == "equal":
            for name, value in (("weight_cap", self.weight_cap), ("mean_weight", self.mean_weight)):
                remedy = f'choose client_weights = "size", or leave {name} out'
                expect(value is None, f"no {name} where clients weigh the same", value, remedy)
            return
        if self.weight_cap is None:
            raise CloisterError(
                "Expected weight_cap, from how many samples on a client counts 1, for client_weights = size, found "
                "none: without it there is no bound on what one client weighs, so give a public number, such as "
                "weight_cap = 100, that was not computed from the clients."
            )
        expect_positive("weight_cap", self.weight_cap, "from so many samples on a client counts 1")
        if self.mean_weight is not None:
            expect_probability("mean_weight", self.mean_weight, "what a client weighs on average, at most 1")

    def after(self, clipped: Transform, spared: int = 0) -> Transform:
        """What leaves a client: its clipped update, times its weight."""
        if self.weight_cap is None:
            return clipped
        return _followed_by(clipped, transforms.capped_weights(self.weight_cap, self.mean_weight or 1.0, spared))

    @property
    def notes(self) -> tuple[str, ...]:
        """What a certificate says of them."""
        if self.weight_cap is None:
            return ()
        mean = "" if self.mean_weight is None else f" and mean_weight {self.mean_weight:g}"
        return (
            f"the constants of the weights: weight_cap {self.weight_cap:g}{mean} count as public, and choosing them by "
            "looking at the clients' numbers of samples is a release that was not charged",
        )


@dataclass(frozen=True)
class PublicWeights:
    """The keys of methods that protect samples, whose numbers may be public."""

    client_weights: ClientWeights = "equal"
    public_sizes: PublicSizes = False
    given_as_keywords: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _expect_name(self.client_weights)
        expect_type("public_sizes", self.public_sizes, bool, "True or False", "True declares that sizes are public")
        used = self.client_weights == "size" or not self.public_sizes
        remedy = 'choose client_weights = "size", or leave public_sizes out'
        expect(used, "no public_sizes where clients weigh the same", self.public_sizes, remedy)

    def after(self, transform: Transform) -> Transform:
        """What leaves a client: its update times the number of its samples, and that number."""
        return transform if self.client_weights == "equal" else weighted_by_size(transform)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a certificate says of them."""
        if self.client_weights == "equal":
            return ()
        declared = "were declared public (public_sizes = true)" if self.public_sizes else "count as public"
        return (
            f"the clients' numbers of samples, which weigh their updates: they {declared}, neighbors have the same, "
            "and how many samples a client has is not protected",
        )


def weighted_by_size(transform: Transform) -> Transform:
    """The transform, followed by weights n_i over the sum of those who take part: for sizes that are public."""
    entries = transform.entries
    found = _followed_by(transform, transforms.size_weights())
    return found if entries is None else replace(found, entries=lambda size: entries(size - 1) + 1)


def refuse_weights(client_weights: WeightsName, method: str, reason: str) -> None:
    """For methods whose clients can only count the same."""
    _expect_name(client_weights)
    if client_weights != "equal":
        raise CloisterError(
            f"Expected client_weights = equal for {method}, found {client_weights}: {reason}, so leave it out."
        )


def _expect_name(client_weights: WeightsName) -> None:
    expect_one_of("client_weights", client_weights, get_args(WeightsName), "equal is the default")


def _followed_by(transform: Transform, last: Transform) -> Transform:
    if transform.name == "identity":
        return last
    return transforms.chain(*(transform.parts or (transform,)), last)
