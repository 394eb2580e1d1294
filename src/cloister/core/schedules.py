"""Learning-rate schedules: a factor on a learning rate that depends on the round, and on nothing else.

A factor that follows from the round's number is public: it costs no privacy, whoever applies it. In round t (from 1),
with W rounds of warm-up and p = (t - 1 - W) / (lr_rounds - W), kept between 0 and 1:

    warm-up      t / (W + 1), in the first W rounds
    constant     1
    linear       1 - (1 - lr_final) p
    cosine       lr_final + (1 - lr_final) (1 + cos(pi p)) / 2
    exponential  lr_final^p
    step         lr_final^floor((t - 1 - W) / lr_rounds)

The last of `lr_rounds` rounds is a small step above `lr_final`, as with torch's schedulers: no round that was paid for
has a learning rate of zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from cloister.errors import CloisterError, expect, expect_count, expect_one_of, expect_share

ScheduleName = Literal["constant", "linear", "cosine", "exponential", "step"]

LearningRateSchedule = Annotated[
    ScheduleName, "how the learning rate goes over the rounds: constant, linear, cosine, exponential or step"
]
LearningRateWarmup = Annotated[int, "rounds in which the learning rate rises to its full value"]
LearningRateFinal = Annotated[float, "part of the learning rate that a schedule ends with (step: factor of each drop)"]
LearningRateRounds = Annotated[
    int | None,
    "rounds over which a schedule runs, on the command line by default those of the run (step: between two drops)",
]


@dataclass(frozen=True)
class Schedule:
    """The factor on a learning rate in each round. Its fields are arguments of whatever has a learning rate."""

    lr_schedule: LearningRateSchedule = "constant"
    lr_warmup: LearningRateWarmup = 0
    lr_final: LearningRateFinal = 0.0
    lr_rounds: LearningRateRounds = None
    given_as_keywords: ClassVar[bool] = True
    prefix: ClassVar[str] = ""
    """What the keys of a run begin with."""

    def __post_init__(self) -> None:
        name, prefix = self.lr_schedule, self.prefix
        expect_one_of(f"{prefix}lr_schedule", name, get_args(ScheduleName))
        expect_count(f"{prefix}lr_warmup", self.lr_warmup, "0 begins with the full learning rate", least=0)
        if name == "constant":
            unused = self.lr_rounds is None and self.lr_final == 0
            remedy = f'choose {prefix}lr_schedule = "cosine", say, or leave these out'
            expect(unused, f"no {prefix}lr_final or {prefix}lr_rounds for a constant schedule", "some", remedy)
            return
        zero = name in ("linear", "cosine")
        remedy = "0.1 keeps a tenth" if zero else f"a schedule that is {name} multiplies by it, such as 0.1"
        expect_share(f"{prefix}lr_final", self.lr_final, remedy, zero=zero, one=True)
        if self.lr_rounds is None:
            what = "that lie between two drops" if name == "step" else "over which it runs"
            raise CloisterError(
                f"Expected {prefix}lr_rounds for a learning rate whose schedule is {name}, found none: give the "
                f"number of rounds {what}."
            )
        expect_count(f"{prefix}lr_rounds", self.lr_rounds, "rounds over which the schedule runs")
        longer = name == "step" or self.lr_rounds > self.lr_warmup
        expect(longer, f"{prefix}lr_rounds > {prefix}lr_warmup", self.lr_rounds, "rounds of warm-up count as well")

    @property
    def varies(self) -> bool:
        """Whether the factor is ever another than 1."""
        return self.lr_schedule != "constant" or self.lr_warmup > 0

    @property
    def settings(self) -> dict[str, Any]:
        """All that says what it does; nothing where it does nothing."""
        return {field.name: getattr(self, field.name) for field in fields(Schedule)} if self.varies else {}

    def factor(self, round: Tensor) -> Tensor:
        """The factor in a round, whose number (from 1) is a float64 tensor, so that compiled code serves every one."""
        after = round - 1 - self.lr_warmup
        found = self._after_warmup(after)
        if self.lr_warmup:
            found = torch.where(after < 0, round / (self.lr_warmup + 1), found)
        return found

    def _after_warmup(self, after: Tensor) -> Tensor:
        """The factor so many rounds after the first one at the full learning rate."""
        final, rounds = self.lr_final, self.lr_rounds
        if rounds is None:
            return torch.ones_like(after)
        if self.lr_schedule == "step":
            return final ** torch.floor(after.clamp(min=0) / rounds)
        part = (after / (rounds - self.lr_warmup)).clamp(0, 1)
        if self.lr_schedule == "linear":
            return 1 - (1 - final) * part
        if self.lr_schedule == "cosine":
            return final + (1 - final) * (1 + torch.cos(math.pi * part)) / 2
        return final**part


class ServerSchedule(Schedule):
    """The same for the server's learning rate."""

    prefix: ClassVar[str] = "server_"


def needs_rounds(name: object) -> bool:
    """Whether a schedule runs over as many rounds as a run has, unless it is told otherwise."""
    return name in ("linear", "cosine", "exponential")


def rate_in(settings: Mapping[str, Any], round: int) -> float | None:
    """The learning rate in a round of a part with these settings; None where it has none."""
    settings = settings.get("optimizer", settings)
    if "lr" not in settings:
        return None
    schedule = Schedule(**{field.name: settings[field.name] for field in fields(Schedule) if field.name in settings})
    factor = float(schedule.factor(torch.tensor(float(round), dtype=torch.float64)))
    return float(settings["lr"] * settings.get("lr_decay", 1.0) ** (round - 1) * factor)
