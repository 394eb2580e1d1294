"""Planning: what a target costs in noise, what noise gives in epsilon, and what is left of the signal."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cloister.errors import (
    CloisterError,
    expect,
    expect_count,
    expect_delta,
    expect_epsilon,
    expect_noise,
    expect_positive,
)
from cloister.privacy.accountant import PrivacyLoss
from cloister.privacy.accountant import epsilon as epsilon_of
from cloister.privacy.calibration import calibrate
from cloister.privacy.certificate import STRICT_DELTA, deltas_beside
from cloister.privacy.certificate_text import large_delta
from cloister.privacy.events import Event, FixedSizeGaussian, Gaussian, PoissonGaussian
from cloister.privacy.pricing import adjacency_of


@dataclass(frozen=True)
class Point:
    """Epsilon after some rounds."""

    round: int
    epsilons: list[float]
    """One for each of the plan's deltas."""


@dataclass(frozen=True)
class Plan:
    """A run that has not happened."""

    clients: int
    rounds: int
    delta: float
    event: Event
    expected: float
    noise_multiplier: float
    target: float | None
    rdp: float
    curve: list[Point]
    parameters: int

    @property
    def relation(self) -> str:
        """The neighbors that the epsilon speaks of."""
        return f"{adjacency_of(self.event)} client"

    @property
    def epsilon(self) -> float:
        """Epsilon of the whole run at the plan's delta."""
        return self.curve[-1].epsilons[0]

    @property
    def deltas(self) -> list[float]:
        """The plan's own delta, and the strict one beside it."""
        return deltas_beside(self.delta)

    @property
    def signal_to_noise(self) -> tuple[float, float]:
        """||mean update|| / ||noise on the mean||, when all updates have the clip's norm: at worst, at best.

        The noise on the mean has norm about z C sqrt(d) / m for m = the expected cohort. The mean update has
        norm C if all point the same way, and about C / sqrt(m) if they have nothing to do with one another.
        """
        best = self.expected / (self.noise_multiplier * math.sqrt(self.parameters))
        return best / math.sqrt(max(self.expected, 1.0)), best

    @property
    def delta_means(self) -> str:
        """What delta promises to a population of this size."""
        exposed = self.delta * self.clients
        if large_delta(self.delta, self.clients):
            return (
                f"weak: delta {self.delta:g} is not below 1/{self.clients} = {1 / self.clients:g}, and publishing one "
                "random client's data whole would satisfy it; choose at most "
                f"{min(STRICT_DELTA, 0.1 / self.clients):.0e}"
            )
        return (
            f"the guarantee may fail with probability {self.delta:g} for a client; times {self.clients} clients that "
            f"is {exposed:.2g} clients" + (", which is a lot" if exposed > 0.1 else "")
        )


def plan(
    clients: int,
    rounds: int,
    delta: float,
    sampling_rate: float | None = None,
    clients_per_round: int | None = None,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    parameters: int = 650,
    points: int = 10,
) -> Plan:
    """From a target to the noise, or from the noise to epsilon. Without sampling_rate or clients_per_round everyone
    takes part.

    >>> plan(300, 60, 1e-3, sampling_rate=0.5, noise_multiplier=5.8).epsilon < 2
    True
    """
    expect_count("clients", clients, "the number of clients of the federation")
    expect_count("rounds", rounds, "a run has at least one round")
    expect_count("parameters", parameters, "the number of the model's parameters")
    expect_delta(delta)
    if epsilon is not None:
        expect_epsilon(epsilon)
    expect(
        sampling_rate is None or clients_per_round is None,
        "a sampling_rate or clients_per_round",
        f"rate {sampling_rate}, size {clients_per_round}",
        "a cohort is drawn one way",
    )
    if (epsilon is None) == (noise_multiplier is None):
        raise CloisterError(
            f"Expected either epsilon or noise_multiplier, found epsilon {epsilon} and noise_multiplier "
            f"{noise_multiplier}: give one, and the other is computed."
        )

    def event(noise: float) -> Event:
        if sampling_rate is not None:
            return PoissonGaussian(noise, sampling_rate)
        return Gaussian(noise) if clients_per_round is None else FixedSizeGaussian(noise, clients_per_round, clients)

    if noise_multiplier is None:
        assert epsilon is not None
        noise_multiplier = calibrate(event, rounds, epsilon, delta)
    expect_positive("noise_multiplier", noise_multiplier, "without noise epsilon is infinite")
    expect_noise("noise_multiplier", noise_multiplier)
    expected = clients * sampling_rate if sampling_rate is not None else float(clients_per_round or clients)
    priced = event(noise_multiplier)
    return Plan(
        clients=clients,
        rounds=rounds,
        delta=delta,
        event=priced,
        expected=expected,
        noise_multiplier=noise_multiplier,
        target=epsilon,
        rdp=epsilon_of(priced, rounds, delta, "rdp"),
        curve=[_point(priced, count, delta) for count in _spread(rounds, points)],
        parameters=parameters,
    )


def _point(event: Event, count: int, delta: float) -> Point:
    loss = PrivacyLoss()
    loss.add(event, count)
    return Point(count, [loss.epsilon(one) for one in deltas_beside(delta)])


def _spread(rounds: int, points: int) -> list[int]:
    return sorted({1, *(max(1, round(rounds * i / points)) for i in range(1, points + 1))})
