"""A federation: a method, a cohort, a model and people, and what a release of theirs costs.

A method that depends on the size of the model or of the cohort, or on public data, is completed here; what no noise
would make private is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from cloister.batches import Population
from cloister.errors import CloisterError, expect
from cloister.joints import Bound, Cohort, Here, Method, Problem, Samples, Setting, State
from cloister.params import Layout
from cloister.privacy.events import Adjacency, Event, Gaussian, NonPrivate, PoissonGaussian
from cloister.privacy.ledger import Charge
from cloister.privacy.pricing import adjacency_of
from cloister.streams import Streams


@dataclass(frozen=True)
class Federation:
    """All that stays the same over the rounds. A method that depends on its size is completed here."""

    method: Method
    cohort: Cohort
    problem: Problem
    population: Population
    streams: Streams
    precision: str = "exact"
    public: Samples | None = None
    multipliers: tuple[float, ...] = ()
    """Every client's noise multiplier, where steps are private by themselves and clients differ."""
    copies: int = 1
    """With how many clients a sample may lie: each of them releases something about it."""
    _blank: dict[str, Tensor] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        method = fitted(self.method, self.cohort, self.problem.layout, self.population.clients, self.public)
        object.__setattr__(self, "method", method)
        if self.copies > 1 and method.mechanism.settings.get("trust") == "sum":
            raise CloisterError(
                f"Expected samples that lie with one client for {method.name} with trust = sum, found some that lie "
                f"with {self.copies}: they would move one sum together, which is not priced, so use trust = message."
            )

    @property
    def bound(self) -> Bound:
        """The bound on any client's message."""
        return self.method.transform.bound(Bound(), self.problem.layout)

    @cached_property
    def event(self) -> Event:
        """What is charged for one release."""
        return event_of(self.method, self.cohort, self.problem.layout, self.population.clients)

    @property
    def repeatable(self) -> bool:
        """Whether a round that is played again releases the same bits, and so nothing new."""
        return self.streams.repeatable and not self.streams.secure

    @property
    def each(self) -> bool:
        """Whether samples are protected, and every client has an account of its own for them."""
        return self.method.unit == "sample"

    def noise_of(self, client: int) -> float:
        """The noise multiplier of a client's private steps."""
        noise = self.multipliers[client] if self.multipliers else self.method.mechanism.noise_multiplier
        return noise or 0.0

    def tempered(self, state: State) -> float:
        """The factor on noise multipliers that follows from what was released before."""
        return 1.0 if self.method.tempered is None else self.method.tempered(state)

    def kept(self, w: Tensor, state: State) -> State:
        """What clients keep from round to round, a row for each: as it stands, or as it begins."""
        names = self.method.local.keeps
        if not names:
            return {}
        start, clients = self.method.local.init(w), self.population.clients
        return {n: state[f"kept.{n}"] if f"kept.{n}" in state else start[n].expand(clients, -1) for n in names}

    def bills(self, members: list[int], tempered: float = 1.0) -> dict[str, Charge]:
        """What a round costs whom: all clients' one account, or one of each member that has data."""
        if not self.each:
            return {self.method.unit: Charge(self.event)}
        sizes = self.population.counts
        found: dict[str, Charge] = {}
        known: dict[tuple[float, int], Charge] = {}
        for client in members:
            key = (self.noise_of(client) * tempered, int(sizes[client]))
            if key[1]:
                known[key] = known[key] if key in known else bill_of(self.method, *key, self.copies)
                found[account_of(client)] = known[key]
        return found

    @property
    def denominator(self) -> float:
        """The constant by which the sum is divided: the cohort's expected size."""
        return self.cohort.expected(self.population.clients)

    def here(self, w: Tensor, said: State, key: Tensor | None = None) -> Here:
        """What transforms may know: without a key, the server's."""
        key = torch.zeros((), dtype=torch.int64, device=w.device) if key is None else key
        return Here(self.problem, self.public, self.denominator, w, said, key, w.shape[0])

    def blank(self, w: Tensor, said: State) -> Tensor:
        """A message of zeros: messages are not always of the shape and type of the model."""
        if "message" not in self._blank:
            made = self.method.transform.encode(torch.zeros_like(w), self.here(w, said))
            _expect_as_declared(self.method, made, w.shape[0])
            self._blank["message"] = torch.zeros_like(made)
        return self._blank["message"]

    def expect_composed(self, w: Tensor) -> None:
        """Refuse a method whose parts do not fit one another: a message of zeros goes all the way there and back."""
        method, state = self.method, self.method.init(w)
        try:
            said = method.transform.announce(self.streams, 1, self.here(w, {}), state)
            here, message = self.here(w, said), self.blank(w, said)
            if method.transform.after is not None:
                message = method.transform.after(message, here)
            if method.mechanism.correlate is not None:
                message, _ = method.mechanism.correlate(message, 1, state)
            total, _ = method.transform.decode(message, here, state)
            fits = total.shape == w.shape or not method.server.takes_updates
        except (RuntimeError, IndexError, KeyError, ValueError, TypeError) as error:
            raise CloisterError(
                f"Expected transforms and noise that fit one another, found {_parts(method)}, which fail "
                f"({str(error).splitlines()[0] if str(error) else type(error).__name__}): put them in another order."
            ) from error
        if not fits:
            raise CloisterError(
                f"Expected an update of {w.shape[0]} numbers from {_parts(method)}, found one of shape "
                f"{tuple(total.shape)}: decode must undo what encode does to the length."
            )


def _parts(method: Method) -> str:
    parts = method.transform.parts or (method.transform,)
    return f"{', '.join(part.name for part in parts)} under {method.mechanism.name} noise"


def _expect_as_declared(method: Method, message: Tensor, size: int) -> None:
    """Refuse messages of another length or kind than the transform says: noise was priced for what it says."""
    length = method.transform.length
    declared = message.shape[0] if length is None else length(size)
    whole = method.transform.bits is not None
    if message.shape != (declared,) or message.is_floating_point() is whole:
        raise CloisterError(
            f"Expected messages of {declared} {'whole' if whole else 'real'} numbers, as the transform "
            f"{method.transform.name} says, found {message.dtype} of shape {tuple(message.shape)}: mend its length or "
            "its bits."
        )


def account_of(client: int) -> str:
    """The name of the account for any one sample of a client."""
    return f"sample of client {client}"


def rehearsal(fed: Federation, population: Population) -> Federation:
    """The same federation over made-up people who all take part: for trying things out, never for a release."""
    separation = fed.method.mechanism.separation
    cohort = replace(
        fed.cohort,
        name="everyone",
        expected=float,
        event=lambda noise, _: Gaussian(noise),
        separation=lambda _: separation,
    )
    return replace(fed, population=population, cohort=cohort, multipliers=())


def fitted(
    method: Method,
    cohort: Cohort,
    layout: Layout,
    clients: int,
    public: Samples | None = None,
    norms: Callable[[], Tensor] | None = None,
) -> Method:
    """The method, completed for a model and a cohort; refused where no noise would make it private."""
    expected, noise = cohort.expected(clients), method.mechanism.noise_multiplier
    expect(
        0 < expected <= clients,
        f"a cohort of at most {clients} clients, as many as there are",
        expected,
        "ask for fewer",
    )
    if noise is not None and method.fit is not None:
        setting = Setting(layout, expected, cohort.separation(clients), public, norms)
        method = replace(method.fit(method, setting), fit=None)
    if method.mechanism.place == "local":
        _expect_private_steps(method)
        return method
    if method.unit == "sample" and method.fit is None and noise and not method.mechanism.for_samples:
        raise CloisterError(
            f"Expected noise that is priced for single samples (in_steps, binomial) for the unit sample, found "
            f"{method.mechanism.name}, {method.mechanism.place}: use the unit client."
        )
    bound = method.transform.bound(Bound(), layout)
    if noise and not bound.l2 < float("inf"):
        raise CloisterError(
            f"Expected a bounded update for the {method.mechanism.name} mechanism, found none: without a "
            "bound no noise suffices, so add transforms.clip_l2(clip) to the method with a finite clip."
        )
    if method.mechanism.separation > cohort.separation(clients):
        raise CloisterError(
            f"Expected cohorts in which a client takes part once in {method.mechanism.separation} rounds at most, "
            f"because the noise of {method.name} is correlated over as many, found cohorts {cohort.name} of {clients} "
            f"clients: use cohort = cyclic, with cohorts of at most {clients // method.mechanism.separation}."
        )
    if method.fit is None and noise:
        length = method.transform.length
        method.mechanism.expect_priced(None if length is None else length(layout.size))
    whole = method.transform.bits is not None
    if method.fit is None and noise and (whole is not method.mechanism.whole or bound.l2 > method.mechanism.most_l2):
        raise CloisterError(
            f"Expected messages of norm at most {method.mechanism.most_l2:g} for {method.mechanism.name} noise, and "
            f"whole numbers for whole noise alone, found a bound of {bound.l2:g} and {'whole' if whole else 'real'} "
            "numbers: scale the one to the other."
        )
    if noise and method.transform.after is not None and not method.local_only:
        raise CloisterError(
            f"Expected noise to be the last thing that happens to a message, found {_parts(method)}, where something "
            "follows it: of a sum of such messages nothing is proven, so leave that out, or price single messages "
            "(local_only)."
        )
    if method.local_only and isinstance(cohort.event(1.0, clients), PoissonGaussian):
        raise CloisterError(
            f"Expected cohorts of a fixed size for {method.name}, whose clients are protected by their own shares of "
            "the noise alone, found poisson: use cohort = fixed or everyone."
        )
    return method


def _expect_private_steps(method: Method) -> None:
    """Noise in the steps protects samples whose lots are secret, and a message that is made of nothing else."""
    local = method.local
    private = local.private is not None and len(local.phases) == 1 and local.batching.lots is not None
    if not private or method.unit != "sample":
        raise CloisterError(
            f"Expected a local rule of one phase whose steps are private by themselves, over secret lots, and the unit "
            f"sample, for noise that is local, found {local.name} and {method.unit}: use local.dp_sgd."
        )


def bill_of(method: Method, noise: float, samples: int, copies: int) -> Charge:
    """What a round costs a sample of a client with so many samples, if it lies with `copies` such clients."""
    batching, private = method.local.batching, method.local.private
    if not noise:
        return Charge(NonPrivate())
    steps = batching.steps_for(samples) * copies
    if private is not None:
        return Charge(batching.event(private.worth(noise), samples), steps)
    return Charge(method.mechanism.price(batching.event(noise, samples)), steps)


def event_of(method: Method, cohort: Cohort, layout: Layout, clients: int) -> Event:
    """What a release of the (fitted) method costs: its noise as a multiple of what a client can contribute."""
    noise = method.mechanism.noise_multiplier
    if not noise:
        return NonPrivate()
    bound = method.transform.bound(Bound(), layout)
    honest = noise if bound.taken_for is None else noise * bound.taken_for / bound.l2
    if method.local_only:  # a message becomes any other, under one share of the noise, and everybody sees whose it is
        return Gaussian(honest * bound.l2 / (bound.replaced * math.sqrt(cohort.expected(clients))))
    event = cohort.event(honest, clients)
    if adjacency_of(event) is Adjacency.REPLACE_ONE:  # which is priced as if the sum moved by twice the bound
        event = cohort.event(honest * 2 * bound.l2 / bound.replaced, clients)
    return method.mechanism.price(event)
