"""What a server accepts as a reply: shape, type, finite numbers, and a norm within what the method promises."""

from __future__ import annotations

import math

from torch import Tensor

from cloister.deploy.halves.prepared import Prepared, declared_sizes, finite
from cloister.deploy.halves.steps import OfferBody, ReplyBody
from cloister.errors import expect
from cloister.privacy.unit import ProtectedUnit
from cloister.round.queries import Query

_FAR = 12.0
"""So many deviations beyond its mean the norm of noise never is: the chance is below exp(-_FAR^2 / 2) = 1e-31."""


def expect_asked(offer: OfferBody, reply: ReplyBody) -> None:
    """Refuse a reply of somebody who was not asked, or of another form."""
    expect(reply.client in offer.asked, f"a reply of {list(offer.asked)}, who were asked", reply.client, "leave it out")
    expect(set(reply.tensors) == {"message"}, "one tensor, message", sorted(reply.tensors), "leave the reply out")
    expect(not reply.content, "nothing beside the message", sorted(reply.content), "leave the reply out")


def expect_message(reply: ReplyBody, blank: Tensor, most: float) -> None:
    """Refuse a message that no honest node could have sent."""
    message = reply.tensors["message"]
    alike = (message.shape, message.dtype) == (blank.shape, blank.dtype)
    wanted, found = (f"{one.dtype}, {tuple(one.shape)}" for one in (blank, message))
    expect(alike, f"a message of {wanted}", f"{found} from client {reply.client}", "leave it out")
    expect(finite(message), "finite numbers", f"others from client {reply.client}", "leave it out")
    norm = float(message.double().norm())
    expect(norm <= most * (1 + 1e-6), f"a norm of at most {most:g}", f"{norm:g} from {reply.client}", "leave it out")


def expect_weight(side: Prepared, reply: ReplyBody) -> None:
    """Refuse a reply that weighs more than its node's declared number of rows."""
    weighting, sizes = side.fed.method.transform.weighting, declared_sizes(side.terms)
    if weighting is None or not weighting.averages or sizes is None:
        return
    weight, size = float(reply.tensors["message"][-1]), sizes[reply.client]
    expect(weight in (0, size), f"a weight of {size}, as declared", f"{weight:g} from {reply.client}", "leave it out")


def largest_norm(side: Prepared) -> float:
    """The largest norm that a message can have; with noise in it, that it has but for a chance of nothing."""
    fed = side.fed
    mechanism, bound, length = fed.method.mechanism, fed.sensitivity.l2, fed.sensitivity.length
    declared = side.terms.federation.largest_norm
    if mechanism.place == "distributed" and length is not None and math.isfinite(bound):
        samples = max(declared_sizes(side.terms) or [1]) if fed.method.local.sample_l2 is not None else 1
        return samples * bound + _share(side) * (math.sqrt(length) + _FAR)
    if fed.unit is ProtectedUnit.CLIENT and math.isfinite(bound):
        return bound
    weighting = fed.method.transform.weighting
    rows = max(declared_sizes(side.terms) or [10**6]) if weighting is not None and weighting.averages else 1
    return declared * rows


def largest_answer(side: Prepared, query: Query, size: int) -> float:
    """The same of a client's answer to a query: of so many vectors of norm 1, or of their mean."""
    noise, own = max(query.noise_multipliers), side.fed.unit is ProtectedUnit.SAMPLE
    added = noise if own or side.fed.method.mechanism.place == "distributed" else 0.0
    return (size if own else 1.0) + added * (math.sqrt(query.numbers) + _FAR)


def _share(side: Prepared) -> float:
    """The deviation of one client's share of the noise, in each coordinate."""
    mechanism, fed = side.fed.method.mechanism, side.fed
    settings = mechanism.settings
    if "trials" in settings:
        return math.sqrt(settings["trials"]) / 2
    if "scale" in settings:
        return float(settings["scale"])
    fewest = side.terms.federation.fewest * (mechanism.honest_fraction or 1.0)
    return (mechanism.noise_multiplier or 0.0) * fed.sensitivity.unit / math.sqrt(fewest)
