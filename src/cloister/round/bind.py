"""Binding: a method, a cohort, a model and clients become a federation, and what a release of theirs costs.

A method that depends on the size of the model or of the cohort, or on public data, is completed here. What no noise
would make private, what has no price, and parts that do not fit one another are refused, before anything is charged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from cloister.client.population import Population
from cloister.core import (
    Cohort,
    Context,
    Layout,
    Method,
    Objective,
    Samples,
    Sensitivity,
    State,
    Tensors,
)
from cloister.core.noise_grid import STEP_GRID, grid_of, on_grid
from cloister.core.state import flatten
from cloister.errors import CloisterError, expect
from cloister.privacy.events import Event, Gaussian
from cloister.privacy.ledger import Charge
from cloister.privacy.unit import ProtectedUnit, sample_account
from cloister.random.streams import Streams
from cloister.round.bind_method import bind_method, parts_of
from cloister.round.charges import charge_of, event_of, sensitivity_of


@dataclass(frozen=True)
class Federation:
    """All that stays the same over the rounds, with a method that was completed and checked.

    The same value serves a simulator, which has everybody's samples, a server, which has none, and a node, which has
    its own (`Population.of_none`, `Population.of_one`).
    """

    method: Method
    cohort: Cohort
    objective: Objective
    population: Population
    streams: Streams
    precision: str = "exact"
    public_samples: Samples | None = None
    multipliers: tuple[float, ...] = ()
    """Every client's noise multiplier, where steps are private by themselves and clients differ."""
    copies: int = 1
    """With how many clients a sample may lie: each of them releases something about it."""
    rounded: bool | None = None
    """Whether Gaussian noise, and what it is added to, is rounded to a grid, where that is post-processing
    (`core/noise_grid.py`); None: with secure randomness."""
    sensitivity: Sensitivity = field(init=False)
    """What is known of any client's message."""
    event: Event = field(init=False)
    """What is charged for a round, where clients are protected."""
    denominator: float = field(init=False)
    """The constant by which the sum is divided: the cohort's expected size."""
    unit: ProtectedUnit = field(init=False)
    """Whom the method protects."""
    cycle: int = field(init=False)
    """In how many rounds a client takes part once, for certain: one event pays for as many."""
    _blank: dict[str, Tensor] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        layout, clients = self.objective.layout, self.population.clients
        method = bind_method(self.method, self.cohort, layout, clients, self.public_samples)
        if self.copies > 1 and method.mechanism.settings.get("trust") == "sum":
            raise CloisterError(
                f"Expected samples that lie with one client for {method.name} with trust = sum, found some that lie "
                f"with {self.copies}: they would move one sum together, which is not priced, so use trust = message."
            )
        if self.rounds:
            method = _on_grid(method, layout)
        own = len(self.multipliers)
        expect(own in (0, clients), f"a noise multiplier for each of {clients} clients", own, "give as many, or none")
        derived = {
            "method": method,
            "sensitivity": sensitivity_of(method, layout),
            "event": event_of(method, self.cohort, layout, clients),
            "denominator": self.cohort.expected(clients),
            "unit": method.unit,
            "cycle": self.cohort.min_separation(clients),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @property
    def rounds(self) -> bool:
        """Whether noise is rounded to a grid."""
        return self.streams.secure if self.rounded is None else self.rounded

    @property
    def grid(self) -> float | None:
        """The grid of messages, where the server adds noise that is rounded to it."""
        mechanism = self.method.mechanism
        return mechanism.grid if mechanism.place == "central" else None

    def noise_of(self, client: int) -> float:
        """The noise multiplier of a client's private steps."""
        noise = self.multipliers[client] if self.multipliers else self.method.mechanism.noise_multiplier
        return noise or 0.0

    def charges(self, members: list[int], noise_scale: float = 1.0, round: int | None = None) -> dict[str, Charge]:
        """What a round costs whom: all clients' one account, or one of each member that has data.

        Where rounds differ in their numbers of steps, it must be said which one it is.
        """
        if self.unit is ProtectedUnit.CLIENT:
            return {self.unit: Charge(self.event)}
        sizes = self.population.counts
        found: dict[str, Charge] = {}
        known: dict[tuple[float, int], Charge] = {}
        layout, batching = self.objective.layout, self.method.local.batching
        for client in members:
            key = (self.noise_of(client) * noise_scale, int(sizes[client]))
            if key[1]:
                if key not in known:
                    steps = batching.steps_for(key[1], round)
                    known[key] = charge_of(self.method, *key, steps, self.copies, layout)
                found[sample_account(client)] = known[key]
        return found

    def context(self, w: Tensor, broadcast: State, key: Tensor | None = None, samples: Tensor | None = None) -> Context:
        """What transforms may know: without a key and a number of samples, the server's."""
        key = _zero_on(w.device) if key is None else key
        samples = _zero_on(w.device) if samples is None else samples
        size = w.shape[0]
        return Context(self.objective, self.public_samples, self.denominator, w, key, size, broadcast, samples=samples)

    def blank(self, w: Tensor, broadcast: State) -> Tensor:
        """A message of zeros: messages are not always of the shape and type of the model. On a grid they are float64,
        in which their sums are exact."""
        if "message" not in self._blank:
            encoded = self.encoded(w, broadcast)
            self._blank["message"] = encoded if self.grid is None else encoded.double()
        return self._blank["message"]

    def encoded(self, w: Tensor, broadcast: State) -> Tensor:
        """The same in the type that encoding leaves, and decoding takes: one message on a grid is exact in it, too."""
        if "encoded" not in self._blank:
            made = self.method.transform.encode(torch.zeros_like(w), self.context(w, broadcast))
            _expect_as_declared(self.method, made, self.sensitivity)
            self._blank["encoded"] = torch.zeros_like(made)
        return self._blank["encoded"]

    def placed(self, message: Tensor) -> Tensor:
        """One client's message as it is added to others: on the grid, where there is one, and within the bound."""
        return message if self.grid is None else on_grid(message, self.grid, self.sensitivity.l2)

    def broadcast(self, round: int, w: Tensor, state: State) -> State:
        """What every client is told beside the model; `state` is the transform's."""
        tell = self.method.transform.broadcast
        return {} if tell is None else tell(self.streams, round, self.context(w, {}), state)

    def client_state(self, w: Tensor, known: Tensors) -> Tensors:
        """What clients keep from round to round, a row for each: as it stands, or as it begins. Copied: it changes."""
        names = self.method.local.client_state
        start = self.method.local.init(w) if names else {}
        clients = self.population.clients
        return {n: known[n].clone() if n in known else start[n].expand(clients, -1).clone() for n in names}


def _on_grid(method: Method, layout: Layout) -> Method:
    """The (bound) method with noise that is rounded to a grid, where its mechanism has such noise."""
    mechanism, sensitivity, private = method.mechanism, sensitivity_of(method, layout), method.local.private
    if mechanism.on_grid is None or not mechanism.noise_multiplier:
        return method
    if mechanism.place == "central" and math.isfinite(sensitivity.l2):
        grid = grid_of(sensitivity.l2, mechanism.noise_multiplier * sensitivity.unit)
        return replace(method, mechanism=mechanism.on_grid(mechanism, grid))
    if mechanism.place == "local" and private is not None and private.on_grid is not None:
        (phase,) = method.local.phases
        step = private.on_grid(phase.step, STEP_GRID)
        if step is not None:
            local = replace(method.local, phases=(replace(phase, step=step),))
            return replace(method, mechanism=mechanism.on_grid(mechanism, STEP_GRID), local=local)
    return method


def _zero_on(device: torch.device) -> Tensor:
    return torch.zeros((), dtype=torch.int64, device=device)


def bind(
    method: Method,
    cohort: Cohort,
    objective: Objective,
    population: Population,
    streams: Streams,
    w: Tensor,
    precision: str = "exact",
    public_samples: Samples | None = None,
    multipliers: tuple[float, ...] = (),
    copies: int = 1,
    rounded: bool | None = None,
) -> Federation:
    """A federation whose parts fit one another: a message of zeros has gone all the way there and back."""
    fed = Federation(
        method, cohort, objective, population, streams, precision, public_samples, multipliers, copies, rounded
    )
    _dry_run(fed, w)
    return fed


def _dry_run(fed: Federation, w: Tensor) -> None:
    method, state = fed.method, fed.method.init(w)
    try:
        broadcast = fed.broadcast(1, w, state.transform)
        flatten({"state": vars(state), "broadcast": broadcast})  # which refuses names that would be lost
        context, message = fed.context(w, broadcast), fed.encoded(w, broadcast)
        if method.transform.after is not None:
            message = method.transform.after(message, context)
        if method.mechanism.correlate is not None:
            message, _ = method.mechanism.correlate(message, 1, state.mechanism)
        if method.transform.decode is not None:
            message, _ = method.transform.decode(message, context, state.transform)
        fits = message.shape == w.shape or not method.server.takes_updates
    except (RuntimeError, IndexError, KeyError, ValueError, TypeError) as error:
        if isinstance(error, CloisterError):
            raise
        raise CloisterError(
            f"Expected transforms and noise that fit one another, found {parts_of(method)}, which fail "
            f"({str(error).splitlines()[0] if str(error) else type(error).__name__}): put them in another order."
        ) from error
    if not fits:
        raise CloisterError(
            f"Expected an update of {w.shape[0]} numbers from {parts_of(method)}, found one of shape "
            f"{tuple(message.shape)}: decode must undo what encode does to the length."
        )


def _expect_as_declared(method: Method, message: Tensor, declared: Sensitivity) -> None:
    """Refuse messages of another length or type than the transform says: noise was priced for what it says."""
    length = message.shape[0] if declared.length is None else declared.length
    if message.shape != (length,) or message.is_floating_point() is declared.integer:
        raise CloisterError(
            f"Expected messages of {length} {'whole' if declared.integer else 'real'} numbers, as the transform "
            f"{method.transform.name} says, found {message.dtype} of shape {tuple(message.shape)}: fix its sensitivity."
        )


def over_made_up_clients(fed: Federation, population: Population, expected: float | None = None) -> Federation:
    """The same federation over made-up people who all take part: for trying things out, never for a release.

    With `expected`, messages are made as if so many took part: what is compiled for the one serves the other.
    """
    min_separation = fed.method.mechanism.min_separation
    cohort = replace(
        fed.cohort,
        name="full",
        expected=float,
        event=lambda noise, _: Gaussian(noise),
        min_separation=lambda _: min_separation,
    )
    made = replace(fed, population=population, cohort=cohort, multipliers=())
    if expected is not None:
        object.__setattr__(made, "denominator", expected)
    return made
