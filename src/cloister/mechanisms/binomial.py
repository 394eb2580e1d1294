"""Noise of coin tosses, for messages of whole numbers (cpSGD)."""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor

from cloister.core import Mechanism, Sensitivity
from cloister.errors import expect, expect_count, expect_one_of
from cloister.privacy.binomial import message_norm
from cloister.privacy.events import BinomialSum, Event, FixedSizeGaussian, Unsupported
from cloister.privacy.unit import ProtectedUnit
from cloister.random.binomial import fair_coins
from cloister.random.streams import Streams

Trust = Literal["message", "sum"]
"""What is private: every message by itself, or only a sum of messages that reveals nothing else."""


def binomial(
    trials: int,
    levels: int,
    clip_norm: float,
    range: float,
    step_delta: float,
    trust: Trust,
    shares: int = 1,
) -> Mechanism:
    """Bin(trials, 1/2) - trials/2 on every coordinate of every message, whose whole numbers `quantize_to_levels` makes.

    With trust "message" a client's own trials are all that is priced: nobody has to be trusted, and who else comes or
    stays away makes no difference. With "sum", those of `shares` clients, whom secure aggregation makes one. Whoever
    else comes adds noise, too: the unit is a sample, and who comes does not depend on samples, so that surplus noise
    is post-processing. Where fewer come, the server adds what is missing, and knows it.

    A message is a vector of norm at most `clip_norm`, rounded to `levels` within `range`, and a sample can make it any
    other.

    Guarantee: a message (or a released sum, that of nobody included) carries the noise of at least as many trials as
    were priced, whatever the data.
    """
    expect_one_of("trust", trust, get_args(Trust))
    expect_count("shares", shares, "say how many clients' noise is counted on")
    expect(trials % 2 == 0, "an even number of trials", trials, "half of it is subtracted, so take one more")
    alone = trust == "message"
    expect(shares == 1 or not alone, "one share where each message is private by itself", shares, "leave it out")

    def accounted(dimension: int, batch_size: int = 1, of: int = 1) -> BinomialSum:
        return BinomialSum(levels, trials * shares, clip_norm, range, dimension, batch_size / of, step_delta)

    def draw(
        multiplier: float, streams: Streams, like: Tensor, sensitivity: Sensitivity, round: int, client: int, of: int
    ) -> Tensor:
        return fair_coins(like.numel(), trials, streams, like.device, "noise", round, client) - trials // 2

    def account(event: Event, sensitivity: Sensitivity) -> Event:
        if sensitivity.rounded != (levels, range):
            return Unsupported(
                "binomial noise is priced for messages that quantize_to_levels makes, of the same levels"
            )
        if isinstance(event, FixedSizeGaussian) and sensitivity.length is not None:
            return accounted(sensitivity.length, event.size, event.population)
        return Unsupported("binomial noise is priced for batches of a fixed size, drawn without replacement")

    def most_l2(sensitivity: Sensitivity) -> float:
        return 0.0 if sensitivity.length is None else message_norm(clip_norm, range, levels, sensitivity.length)

    return Mechanism(
        "binomial",
        "distributed",
        accounted(dimension=1).noise_multiplier,  # which depends on no dimension
        draw,
        _TRUST[trust],
        ProtectedUnit.SAMPLE,
        {"trust": trust, "trials": trials, "shares": shares, "step_delta": step_delta},
        integer=True,
        most_l2=most_l2,
        missing=lambda cohort: 0 if alone else max(0, shares - cohort),
        account=account,
    )


_TRUST = {
    "message": "nobody but the client itself: each of its messages is private before it leaves, and the server, other "
    "clients and whoever listens may see them all; which samples it drew, and its noise, stay secret",
    "sum": "secure aggregation that reveals the sum alone (to nobody else, and no single message), and every member of "
    "a cohort to add its share of the noise and keep it secret; members know their own shares, so against them, or a "
    "server that colludes with them, less noise is left; the server adds the noise of those who are missing, and knows "
    "it",
}
