"""How much noise: what a target asks for, of all clients together or of each, and what the ledger enforces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cloister.errors import CloisterError, expect
from cloister.federation import account_of
from cloister.joints import Method
from cloister.privacy.calibrate import calibrate
from cloister.privacy.events import Event
from cloister.privacy.filters import best_order, filtered_epsilon
from cloister.privacy.ledger import Bill, Budget

Target = float | Sequence[float] | None
"""Epsilon: the same for everybody, or one for each client (where samples are protected)."""


@dataclass(frozen=True)
class Noise:
    """A method whose noise is settled, clients' own multipliers where they differ, and budgets by account."""

    method: Method
    multipliers: tuple[float, ...]
    budgets: dict[str, Budget]


@dataclass(frozen=True)
class People:
    """What noise depends on: the clients' numbers of samples, and how often one of them takes part."""

    sizes: Sequence[int]
    turns: int
    bill: Callable[[Method, float, int], Bill]


def settle(
    method: Method,
    price: Callable[[Method], Event],
    releases: int,
    people: People,
    epsilon: Target,
    delta: float | None,
    known: Mapping[str, Any] | None,
) -> Noise:
    """The method with its noise, and the budgets. `price` is for methods that protect clients."""
    clients = len(people.sizes)
    if epsilon is not None and delta is None:
        raise CloisterError(
            f"Expected a delta beside epsilon {epsilon}, found none: choose one well below 1/{clients}, such as 1e-5."
        )
    mechanism = method.mechanism
    if mechanism.place == "nowhere" or mechanism.noise_multiplier == 0:
        if epsilon is not None:
            raise CloisterError(
                f"Expected a private method for epsilon {epsilon}, found {method.name} without noise: choose "
                "dp_fedavg, or leave epsilon out."
            )
        return Noise(method, (), {})
    if mechanism.noise_multiplier is None and epsilon is None and known is None:
        raise CloisterError(
            f"Expected epsilon and delta, or a noise_multiplier, for {method.name}, found neither: say how private "
            "the run shall be."
        )
    if delta is None:
        raise CloisterError(
            f"Expected a delta for {method.name}, found none: choose one well below 1/{clients}, such as 1e-5."
        )
    if method.unit == "sample":
        return _for_samples(method, people, _targets(epsilon, clients), delta, known)
    if isinstance(epsilon, Sequence):
        raise CloisterError(f"Expected one epsilon for all clients, found {epsilon}: {method.name} has one account.")
    budget = None if epsilon is None else Budget(float(epsilon), delta)
    if mechanism.noise_multiplier is None:
        if known is not None:
            multiplier = float(known["method"]["mechanism"]["noise_multiplier"])
        else:
            assert budget is not None
            multiplier = calibrate(lambda z: price(with_noise(method, z)), releases, budget.epsilon, delta)
        method = with_noise(method, multiplier)
    return Noise(method, (), {} if budget is None else {method.unit: budget})


def with_noise(method: Method, multiplier: float) -> Method:
    """The method at a noise multiplier."""
    return replace(method, mechanism=replace(method.mechanism, noise_multiplier=multiplier))


def _targets(epsilon: Target, clients: int) -> list[float] | None:
    if epsilon is None:
        return None
    if not isinstance(epsilon, Sequence):
        return [float(epsilon)] * clients
    expect(len(epsilon) == clients, f"an epsilon for each of {clients} clients", len(epsilon), "give one, or a number")
    return [float(one) for one in epsilon]


def _for_samples(
    method: Method, people: People, targets: list[float] | None, delta: float, known: Mapping[str, Any] | None
) -> Noise:
    """Each client's own noise, for its own target and number of samples, over the rounds it is likely to be in."""
    adaptive = method.tempered is not None
    if adaptive and targets is None:
        raise CloisterError(
            f"Expected an epsilon for {method.name}, whose noise is chosen on the way, found none: its filter needs to "
            "know when to stop, so give one."
        )
    given = method.mechanism.noise_multiplier
    multipliers, most, budgets, found = [], 0.0, {}, dict[tuple[float, Bill], float]()
    for client, samples in enumerate(people.sizes):
        target = None if targets is None else targets[client]
        if given is not None:
            multiplier = given
        elif known is not None:
            own = known["noise_multipliers"] or [known["method"]["mechanism"]["noise_multiplier"]] * len(people.sizes)
            multiplier = float(own[client])
        else:
            assert target is not None
            key = (target, people.bill(method, 1.0, max(samples, 1)))
            if key not in found:
                found[key] = _calibrated(method, people, max(samples, 1), Budget(target, delta), adaptive)
            multiplier = found[key]
        multipliers.append(multiplier)
        most = max(most, multiplier if samples else 0.0)
        if target is not None:
            bill = people.bill(method, multiplier, max(samples, 1))
            order = best_order(bill.event, bill.count * people.turns, delta) if adaptive else None
            budgets[account_of(client)] = Budget(target, delta, order)
    if method.local.private is None:  # noise on messages is the same for all: what the neediest client needs
        multipliers = []
    return Noise(with_noise(method, most), tuple(multipliers), budgets)


def _calibrated(method: Method, people: People, samples: int, target: Budget, adaptive: bool) -> float:
    def event(noise: float) -> Event:
        return people.bill(method, noise, samples).event

    releases = people.bill(method, 1.0, samples).count * people.turns
    price = filtered_epsilon if adaptive else None
    return calibrate(event, releases, target.epsilon, target.delta, price=price)
