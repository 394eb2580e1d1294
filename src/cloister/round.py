"""One round is a straight line, and this is it.

    1 charge     the ledger, before anything is computed; raises BudgetExceeded
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
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from cloister.batches import Population, plan
from cloister.errors import CloisterError, expect
from cloister.joints import Batch, Bound, Client, Cohort, Function, Method, Problem, State
from cloister.privacy.events import Event, NonPrivate
from cloister.privacy.ledger import Ledger
from cloister.streams import Streams, fold


class Work(NamedTuple):
    """What k clients need for one round, stacked. Without its first dimension it is one client's work."""

    samples: Tensor  # [k, steps, batch]: which rows of the population
    mask: Tensor  # [k, steps, batch]: which of these are real
    real: Tensor  # [k, steps]: how many are real, or 1 where none is
    key: Tensor  # [k, steps]: for what is random in the model
    share: Tensor  # [k, d] when noise is distributed, otherwise [k, 0]


class ClientRound(Protocol):
    """One client's work -> (message [d], whether its update was finite). `ragged`: some steps may be empty."""

    def __call__(self, work: Work, ragged: bool, grad: Callable[[Function], Function]) -> tuple[Tensor, Tensor]: ...


WorkOf = Callable[[Tensor], tuple[Work, bool]]
"""Some clients of the cohort -> (their work, stacked and padded, whether some steps may be empty)."""


class Engine(Protocol):
    """How `client_round` is mapped over a cohort: performance only, never meaning."""

    @property
    def name(self) -> str: ...

    @property
    def chunk(self) -> int:
        """How many clients are planned (or computed) at once."""

    def total(self, client_round: ClientRound, work_of: WorkOf, cohort: Tensor) -> tuple[Tensor, int]:
        """The sum of the messages of a cohort that is not empty, and how many updates were not finite."""


@dataclass(frozen=True)
class Federation:
    """All that stays the same over the rounds."""

    method: Method
    cohort: Cohort
    problem: Problem
    population: Population
    streams: Streams

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


class Outcome(NamedTuple):
    """The model after a round, with what the simulator saw on the way (not private: see the certificate)."""

    w: Tensor
    state: State
    cohort_size: int
    rejected: int


def run_round(fed: Federation, ledger: Ledger, engine: Engine, round: int, w: Tensor, state: State) -> Outcome:
    """One round, numbered from 1."""
    method, streams = fed.method, fed.streams
    ledger.charge(method.unit, fed.event, round=round, repeatable=not streams.secure)
    cohort = _members(fed, round)
    total, rejected = cohort_total(fed, engine, round, w, cohort)
    if method.mechanism.place == "central" or not len(cohort):
        total = total + method.mechanism.share(streams, total, fed.bound, round, SERVER, 1)
    total = method.transform.decode(total)
    w, state = method.server.update(w, total / fed.denominator, state)
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


def cohort_total(fed: Federation, engine: Engine, round: int, w: Tensor, cohort: Tensor) -> tuple[Tensor, int]:
    """The sum of a cohort's messages, and how many updates were not finite. Clients of like size go together."""
    if not len(cohort):
        return torch.zeros_like(w), 0
    by_size = cohort[fed.population.sizes.cpu()[cohort].argsort(stable=True)]
    return engine.total(partial(client_round, fed, w, round), _work_of(fed, w, round, len(cohort)), by_size)


SERVER = -1
"""The client number in whose name the server draws noise."""


def client_round(
    fed: Federation, w: Tensor, round: int, work: Work, ragged: bool, grad: Callable[[Function], Function]
) -> tuple[Tensor, Tensor]:
    """What one client does: train, encode, add its share of the noise. A simulator maps this over a cohort."""

    def batch(step: int) -> Batch:
        rows = work.samples[step]
        inputs, labels = fed.population.inputs[rows], fed.population.labels[rows]
        return Batch(inputs, labels, work.mask[step], work.real[step], work.key[step])

    client = Client(work.samples.shape[0], batch, ragged)
    update = fed.method.local.run(replace(fed.problem, grad=grad), w, client, round)
    finite = torch.isfinite(update).all()
    counts = finite & work.mask.any()  # whatever the local rule does, a client without data sends zero
    message = fed.method.transform.encode(torch.where(counts, update, torch.zeros_like(update)))
    if fed.method.mechanism.place == "distributed":
        message = message + work.share
    return message, finite


def _work_of(fed: Federation, w: Tensor, round: int, cohort_size: int) -> WorkOf:
    """How an engine asks for the work of some clients of this round's cohort."""
    mechanism, streams, device = fed.method.mechanism, fed.streams, w.device
    batch_key, model_key = (
        torch.tensor(streams.key(purpose, round), device=device) for purpose in ("batches", "model")
    )

    def work_of(clients: Tensor) -> tuple[Work, bool]:
        there = clients.to(device)
        batches = plan(fed.population, fed.method.local.batching, there, fold(batch_key, there))
        step = torch.arange(batches.samples.shape[1], device=device)
        keys = fold(fold(model_key, there)[:, None], step)
        share = torch.empty(len(clients), 0, dtype=w.dtype, device=device)
        if mechanism.place == "distributed":
            members = clients.tolist()
            share = torch.stack(
                [mechanism.share(streams, w, fed.bound, round, member, cohort_size) for member in members]
            )
        real = batches.mask.sum(2).clamp(min=1)
        return Work(batches.samples, batches.mask, real, keys, share), batches.ragged

    return work_of
