"""One round is a straight line, and this is it.

    1 charge     the ledger, before anything is computed; raises BudgetExceeded (on the disk before step 9 returns)
    2 sample     who takes part
    3 local      each client's update            \\
    4 encode     clip it, compress it, ...        >  client_round, mapped over the cohort by an engine
    5 share      add noise, when distributed     /
    6 aggregate  sum
    7 noise      add noise, when central (or when nobody came)
    8 decode     the transforms' server halves, in reverse order
    9 step       server optimiser, on the sum divided by a constant

Guarantee: what leaves the round depends on a client's data only through one term of the sum, whose norm is at
most the bound that the noise was scaled to. Weights are equal; the denominator is a constant of the run. An
update that is not finite counts as zero (with its share of the noise).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from cloister.batches import Population, Shape, plan
from cloister.errors import CloisterError, expect
from cloister.joints import Batch, Bound, Cohort, Function, Method, Problem, State
from cloister.precision import multiplying
from cloister.privacy.events import Event, NonPrivate
from cloister.privacy.ledger import Ledger
from cloister.streams import Streams, fold


class Moment(NamedTuple):
    """Where in the run a round stands, as tensors on its device: a captured computation is fed with them."""

    number: Tensor  # the round's, from 1
    batches: Tensor  # keys: which samples make which batch, ...
    model: Tensor  # ... and for what is random in the model


class Work(NamedTuple):
    """What k clients need for one round, stacked. Without its first dimension it is one client's work."""

    samples: Tensor  # [k, steps, batch]: which rows of the population
    mask: Tensor  # [k, steps, batch]: which of these are real
    real: Tensor  # [k, steps]: how many are real, or 1 where none is
    key: Tensor  # [k, steps]: for what is random in the model
    share: Tensor  # [k, d] when noise is distributed, otherwise [k, 0]


Sum = tuple[Tensor, Tensor]
"""The sum [d] of some clients' messages, and how many of their updates were not finite (a count on the device)."""


class Engine(Protocol):
    """How `client_round` is mapped over a cohort: performance only, never meaning."""

    @property
    def name(self) -> str: ...

    @property
    def chunk(self) -> int:
        """How many clients are planned (or computed) at once."""

    def total(self, fed: Federation, turn: Turn) -> Sum:
        """What is asked for, of at least one client."""


@dataclass(frozen=True)
class Federation:
    """All that stays the same over the rounds."""

    method: Method
    cohort: Cohort
    problem: Problem
    population: Population
    streams: Streams
    precision: str = "exact"

    def __post_init__(self) -> None:
        noise = self.method.mechanism.noise_multiplier
        clients = self.population.clients
        expect(
            0 < self.denominator <= clients,
            f"a cohort of at most {clients} clients, as many as there are",
            self.denominator,
            "ask for fewer",
        )
        if noise and not self.bound.l2 < float("inf"):
            raise CloisterError(
                f"Expected a bounded update for the {self.method.mechanism.name} mechanism, found none: without a "
                "bound no noise suffices, so add transforms.clip_l2(clip) to the method with a finite clip."
            )

    @property
    def bound(self) -> Bound:
        """The bound on any client's message."""
        return self.method.transform.bound(Bound())

    @property
    def event(self) -> Event:
        """What one round releases."""
        noise = self.method.mechanism.noise_multiplier
        return self.cohort.event(noise, self.population.clients) if noise else NonPrivate()

    @property
    def denominator(self) -> float:
        """The constant by which the sum is divided: the cohort's expected size."""
        return self.cohort.expected(self.population.clients)


@dataclass(frozen=True)
class Turn:
    """What an engine is asked for: the sum of the messages of these clients in this round."""

    round: int
    w: Tensor
    clients: Tensor  # their numbers, on the host, by size
    cohort_size: int  # of the whole cohort, of which these may be a part

    def keys(self, fed: Federation) -> list[int]:
        """The round's keys, in the order of a `Moment`."""
        return [fed.streams.key(purpose, self.round) for purpose in ("batches", "model")]

    def moment(self, fed: Federation) -> Moment:
        """Where in the run this is."""
        number = torch.tensor(float(self.round), dtype=torch.float64, device=self.w.device)
        return Moment(number, *torch.tensor(self.keys(fed), device=self.w.device))

    def shares(self, fed: Federation, clients: Tensor) -> Tensor:
        """The parts of the noise that some of the clients add, [k, d]; [k, 0] where clients add none."""
        mechanism = fed.method.mechanism
        if mechanism.place != "distributed":
            return self.w.new_empty(len(clients), 0)
        return torch.stack(
            [
                mechanism.share(fed.streams, self.w, fed.bound, self.round, client, self.cohort_size)
                for client in clients.tolist()
            ]
        )


class Outcome(NamedTuple):
    """The model after a round, with what the simulator saw on the way (not private: see the certificate)."""

    w: Tensor
    state: State
    cohort_size: int
    rejected: Tensor
    """How many updates were not finite; still on its way where a device computes it."""


def run_round(fed: Federation, ledger: Ledger, engine: Engine, round: int, w: Tensor, state: State) -> Outcome:
    """One round, numbered from 1."""
    method, streams = fed.method, fed.streams
    ledger.charge(method.unit, fed.event, round=round, repeatable=streams.repeatable and not streams.secure)
    cohort = _members(fed, round)
    total, rejected = cohort_total(fed, engine, round, w, cohort)
    if method.mechanism.place == "central" or not len(cohort):
        total = total + method.mechanism.share(streams, total, fed.bound, round, SERVER, 1)
    total = method.transform.decode(total)
    w, state = method.server.update(w, total / fed.denominator, state)
    ledger.settle()  # the line that paid for this round is on the disk before anything leaves it
    return Outcome(w, state, len(cohort), rejected)


def _members(fed: Federation, round: int) -> Tensor:
    """Who takes part; nobody twice, or one client would move the sum by more than the bound."""
    members = fed.cohort.sample(fed.streams, round, fed.population.clients)
    inside = not len(members) or bool(members[0] >= 0 and members[-1] < fed.population.clients)
    if not inside or not bool((members[1:] > members[:-1]).all()):
        raise CloisterError(
            f"Expected the cohort {fed.cohort.name} to name clients 0 to {fed.population.clients - 1} in rising order, "
            "each once, found something else: mend its sample function."
        )
    return members


def cohort_total(fed: Federation, engine: Engine, round: int, w: Tensor, cohort: Tensor) -> Sum:
    """The sum of a cohort's messages, and how many updates were not finite. Clients of like size go together."""
    if not len(cohort):
        return torch.zeros_like(w), torch.zeros((), dtype=torch.int64, device=w.device)
    by_size = cohort[fed.population.counts[cohort].argsort(stable=True)]
    with multiplying(fed.precision, w.device):
        return engine.total(fed, Turn(round, w, by_size, len(cohort)))


SERVER = -1
"""The client number in whose name the server draws noise."""


Step = Callable[[Tensor, Tensor, State, Batch], State]
"""(w at the start of the round, the round's number, state, batch) -> state: one step of local training."""


def one_step(
    fed: Federation,
    grad: Callable[[Function], Function],
    ragged: bool,
    w: Tensor,
    round: Tensor,
    state: State,
    batch: Batch,
) -> State:
    """One step of a client's training. `ragged`: the batch may be without a real sample, and then nothing changes."""
    new = fed.method.local.step(replace(fed.problem, grad=grad), state, w, batch, round)
    if not ragged:
        return new
    real = batch.mask.any()
    return {name: torch.where(real, new[name], state[name]) for name in state}


def client_round(fed: Federation, w: Tensor, round: Tensor, work: Work, step: Step) -> tuple[Tensor, Tensor]:
    """What one client does: train, encode, add its share of the noise. A simulator maps this over a cohort.

    Returns its message [d] and whether its update was finite.
    """
    return message_of(fed, w, trained(fed, w, round, work, step), work.mask.any(), work.share)


def trained(fed: Federation, w: Tensor, round: Tensor, work: Work, step: Step) -> State:
    """The first half: what the client makes of its data."""
    state = fed.method.local.init(w)
    for number in range(work.samples.shape[0]):
        rows = work.samples[number]
        inputs, labels = fed.population.inputs[rows], fed.population.labels[rows]
        batch = Batch(inputs, labels, work.mask[number], work.real[number], work.key[number])
        state = step(w, round, state, batch)
    return state


def message_of(fed: Federation, w: Tensor, state: State, has_data: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """The second half: what leaves the client. Whatever the local rule does, without data it is zero (and noise)."""
    update = fed.method.local.update(state, w)
    finite = torch.isfinite(torch.linalg.vector_norm(update, torch.inf))  # a maximum, which NaN passes through
    message = fed.method.transform.encode(torch.where(finite & has_data, update, torch.zeros_like(update)))
    if fed.method.mechanism.place == "distributed":
        message = message + share
    return message, finite


def work_of(fed: Federation, shape: Shape, moment: Moment, clients: Tensor, shares: Tensor) -> Work:
    """The work of some clients in some round, padded to a shape. Clients and shares are on the device."""
    batches = plan(fed.population, fed.method.local.batching, shape, clients, fold(moment.batches, clients))
    step = torch.arange(shape.steps, device=clients.device)
    keys = fold(fold(moment.model, clients)[:, None], step)
    return Work(batches.samples, batches.mask, batches.mask.sum(2).clamp(min=1), keys, shares)
