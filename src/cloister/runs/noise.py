"""How much noise: what a target asks for, of all clients together or of each, and what the ledger enforces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from cloister.core import Method
from cloister.errors import CloisterError, expect
from cloister.privacy.accountant import Releases
from cloister.privacy.budgets import Budget
from cloister.privacy.calibration import Cost, calibrate
from cloister.privacy.certificate_text import large_delta
from cloister.privacy.description import RunDescription
from cloister.privacy.events import Event
from cloister.privacy.ledger import Charge
from cloister.privacy.pricing import pricing_of
from cloister.privacy.renyi_filter import best_order, filtered_epsilon
from cloister.privacy.unit import sample_account
from cloister.runs.request import Target


@dataclass(frozen=True)
class Noise:
    """A method whose noise is known, clients' own multipliers where they differ, and budgets by account."""

    method: Method
    multipliers: tuple[float, ...]
    budgets: dict[str, Budget]


@dataclass(frozen=True)
class Clients:
    """What noise depends on: the clients' numbers of samples, and what all rounds of a run cost one of them.

    A sample may lie with several clients (`overlap`), and what these release about it adds up. `always`: every client
    takes part in every round for certain, which no draw leaves to chance.
    """

    sizes: Sequence[int]
    charge: Callable[[Method, float, int], Charge]
    overlap: bool = False
    always: bool = True
    beside: Callable[[float, int], Releases] = lambda target, units: ()
    """What is released beside training to one of so many units, for a target."""

    def differ(self, method: Method) -> bool:
        """Whether clients may come to have spent different things."""
        return not self.always or len({self.charge(method, 1.0, samples) for samples in self.sizes if samples}) > 1


def calibrate_noise(
    method: Method,
    price: Callable[[Method], Event],
    releases: int,
    clients: Clients,
    epsilon: Target,
    delta: float | None,
    known: RunDescription | None,
) -> Noise:
    """The method with its noise, and the budgets. `price` is for methods that protect clients.

    `known` is the description of a run that is being resumed, which keeps its noise.
    """
    noiseless = method.mechanism.place == "nowhere" or method.mechanism.noise_multiplier == 0
    _expect_target(method, noiseless, len(clients.sizes), epsilon, delta, known)
    if noiseless:
        return Noise(method, (), {})
    assert delta is not None
    if method.unit == "sample":
        return _for_samples(method, clients, _targets(epsilon, len(clients.sizes)), delta, known)
    if isinstance(epsilon, Sequence):
        raise CloisterError(f"Expected one epsilon for all clients, found {epsilon}: {method.name} has one account.")
    if method.mechanism.noise_multiplier is None:
        multiplier = _known_noise(known)
        if multiplier is None:
            assert epsilon is not None
            multiplier = calibrate(
                lambda z: price(with_noise(method, z)),
                releases,
                float(epsilon),
                delta,
                beside=clients.beside(float(epsilon), len(clients.sizes)),
            )
        method = with_noise(method, multiplier)
    return Noise(method, (), {} if epsilon is None else {method.unit: Budget(float(epsilon), delta)})


def _expect_target(
    method: Method, noiseless: bool, clients: int, epsilon: Target, delta: float | None, known: RunDescription | None
) -> None:
    """Refuse a target that a method cannot have, or lacks."""
    small = f"choose one well below 1/{clients}, such as 1e-5"
    if epsilon is not None and delta is None:
        raise CloisterError(f"Expected a delta beside epsilon {epsilon}, found none: {small}.")
    if noiseless:
        if epsilon is not None:
            raise CloisterError(
                f"Expected a private method for epsilon {epsilon}, found {method.name} without noise: choose "
                "dp_fedavg, or leave epsilon out."
            )
        return
    if method.mechanism.noise_multiplier is None and epsilon is None and _known_noise(known) is None:
        raise CloisterError(
            f"Expected epsilon and delta, or a noise_multiplier, for {method.name}, found neither: say how private "
            "the run shall be."
        )
    if delta is None:
        raise CloisterError(f"Expected a delta for {method.name}, found none: {small}.")


def expect_small_delta(delta: float | None, noise: Noise, sizes: Sequence[int]) -> None:
    """Refuse a delta that whoever publishes one random unit whole would satisfy.

    Units are those whose data one release is about: all clients, or the samples of one client, and there the largest.
    """
    method = noise.method
    private = method.mechanism.place != "nowhere" and bool(method.mechanism.noise_multiplier)
    units, what = (max(sizes), "samples of a client") if method.unit == "sample" else (len(sizes), "clients")
    if private and delta is not None and large_delta(delta, units):
        raise CloisterError(
            f"Expected delta < 1/{units}, as there are {units} {what}, found {delta:g}: publishing one of them whole, "
            "drawn at random, would satisfy it, so choose a smaller delta (1e-5, say), or insist with "
            "allow_large_delta = true."
        )


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
    method: Method, clients: Clients, targets: list[float] | None, delta: float, known: RunDescription | None
) -> Noise:
    """Each client's own noise, for its own target and number of samples, over the rounds it is likely to be in.

    A filter of one order for all is needed where noise is chosen on the way, and where clients that overlap may come to
    have spent different things: at one order what they have spent adds up, and not otherwise. Those that may not have
    one budget, one charge and one history, so that a ledger charges or refuses them together, round by round.
    """
    _expect_priced(method, clients, targets)
    asked = [(1.0 if targets is None else targets[client], n) for client, n in enumerate(clients.sizes) if n]
    order = None
    if targets is not None and (method.noise_schedule is not None or (clients.overlap and clients.differ(method))):
        order = _common_order(method, clients, asked, delta)
    noise = {key: _noise_for(method, clients, *key, delta, order, known) for key in set(asked)}
    most = max(noise.values())
    wanted = targets or [1.0] * len(clients.sizes)
    own = [noise[target, n] if n else most for target, n in zip(wanted, clients.sizes, strict=True)]
    if known is not None and known.noise_multipliers:
        own = list(known.noise_multipliers)
    budgets = {} if targets is None else {sample_account(c): Budget(t, delta, order) for c, t in enumerate(targets)}
    # Noise on messages is the same for all: what the neediest client needs.
    return Noise(with_noise(method, most), () if method.local.private is None else tuple(own), budgets)


def _expect_priced(method: Method, clients: Clients, targets: list[float] | None) -> None:
    """Refuse what would end without a price."""
    if method.noise_schedule is not None and targets is None:
        raise CloisterError(
            f"Expected an epsilon for {method.name}, whose noise is chosen on the way, found none: its filter needs to "
            "know when to stop, so give one."
        )
    if clients.overlap and targets is not None and len(set(targets)) > 1:
        raise CloisterError(
            f"Expected one epsilon for clients that have samples in common, found {min(targets):g} to "
            f"{max(targets):g}: a sample that lies with several of them has one budget, so give one epsilon, or use a "
            "disjoint partition."
        )
    coins = any(not pricing_of(clients.charge(method, 1.0, n).event).has_rdp for n in clients.sizes[:1] if n)
    if coins and clients.overlap and clients.differ(method):
        raise CloisterError(
            f"Expected clients that have no sample in common for {method.name}, or are all alike and always come, "
            "found others: what several of them release about a sample has no price, so use a disjoint partition."
        )


def _common_order(method: Method, clients: Clients, asked: list[tuple[float, int]], delta: float) -> int:
    """The Renyi order at which the neediest client does best."""
    needs = {}
    for target, samples in set(asked):
        beside = clients.beside(target, samples)
        price = partial(filtered_epsilon, beside=beside)
        noise = _noise_for(method, clients, target, samples, delta, None, None, price=price)
        charge = clients.charge(method, noise, samples)
        order = best_order(charge.event, charge.count, delta, beside)
        cost = filtered_epsilon(charge.event, charge.count, delta, order, beside) / target
        needs[noise, cost] = order
    return needs[max(needs)]


def _noise_for(
    method: Method,
    clients: Clients,
    target: float,
    samples: int,
    delta: float,
    order: int | None,
    known: RunDescription | None,
    price: Cost | None = None,
) -> float:
    """The noise multiplier that was given, that is known, or that a client with so many samples needs."""
    if method.mechanism.noise_multiplier is not None:
        return method.mechanism.noise_multiplier
    before = _known_noise(known)
    if before is not None:
        return before

    def event(noise: float) -> Event:
        return clients.charge(method, noise, samples).event

    releases = clients.charge(method, 1.0, samples).count
    beside = clients.beside(target, samples)
    by_order = price if order is None else partial(filtered_epsilon, order=order, beside=beside)
    return calibrate(event, releases, target, delta, price=by_order, beside=beside)


def _known_noise(known: RunDescription | None) -> float | None:
    return None if known is None else known.method.mechanism.noise_multiplier
