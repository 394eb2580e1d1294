"""One round is a straight line, and this is it.

    1 charge     the ledger, before anything is computed; raises BudgetExceeded (on the disk before step 10 returns)
    2 sample     who takes part
    3 announce   what the clients are told beside the model (a shared mask, a clip)
    4 local      each client's update            \\
    5 encode     clip it, compress it, ...        >  client_round, mapped over the cohort by an engine
    6 share      add noise, when distributed     /
    7 aggregate  sum
    8 noise      add noise, when central (or what is missing of the clients' shares)
    9 decode     the transforms' server halves, in reverse order
    10 step      server optimiser, on the sum divided by a constant

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

from cloister.batches import Shape, exactly, plan, shape_of
from cloister.errors import CloisterError
from cloister.federation import Federation
from cloister.joints import Batch, Function, Phase, State
from cloister.precision import multiplying
from cloister.privacy.events import Covered
from cloister.privacy.ledger import Ledger
from cloister.streams import fold


class Moment(NamedTuple):
    """Where in the run a round stands, as tensors on its device: a captured computation is fed with them."""

    number: Tensor  # the round's, from 1
    batches: Tensor  # keys: which samples make which batch, ...
    model: Tensor  # ... and for what is random in the model


class Batches(NamedTuple):
    """The batches of one phase for k clients, stacked. Without its first dimension it is one client's."""

    samples: Tensor  # [k, steps, batch]: which rows of the population
    mask: Tensor  # [k, steps, batch]: which of these are real
    real: Tensor  # [k, steps]: how many are real, or 1 where none is
    key: Tensor  # [k, steps]: for what is random in the model


class Work(NamedTuple):
    """What k clients need for one round, stacked. Without its first dimension it is one client's work."""

    phases: tuple[Batches, ...]
    key: Tensor  # [k]: for what is random in a transform
    share: Tensor  # [k, m] when noise is distributed, otherwise [k, 0]


Sum = tuple[Tensor, Tensor]
"""The sum [m] of some clients' messages, and how many of their updates were not finite (a count on the device)."""


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
class Turn:
    """What an engine is asked for: the sum of the messages of these clients in this round."""

    round: int
    w: Tensor
    clients: Tensor  # their numbers, on the host, by size
    cohort_size: int  # of the whole cohort, of which these may be a part
    said: State  # by the server, to every client
    sharing: frozenset[int]  # whose messages carry a share of distributed noise

    @classmethod
    def of(cls, fed: Federation, round: int, w: Tensor, cohort: Tensor, said: State) -> Turn:
        """That of a whole cohort; clients of like size go together."""
        by_size = cohort[fed.population.counts[cohort].argsort(stable=True)]
        mechanism = fed.method.mechanism
        sharing = cohort.sort().values[: mechanism.most] if mechanism.place == "distributed" else cohort[:0]
        return cls(round, w, by_size, len(cohort), said, frozenset(sharing.tolist()))

    def keys(self, fed: Federation) -> list[int]:
        """The round's keys, in the order of a `Moment`."""
        return [fed.streams.key(purpose, self.round) for purpose in ("batches", "model")]

    def moment(self, fed: Federation) -> Moment:
        """Where in the run this is."""
        number = torch.tensor(float(self.round), dtype=torch.float64, device=self.w.device)
        return Moment(number, *torch.tensor(self.keys(fed), device=self.w.device))

    def shares(self, fed: Federation, clients: Tensor) -> Tensor:
        """The parts of the noise that some of the clients add, [k, m]; [k, 0] where clients add none."""
        mechanism = fed.method.mechanism
        if mechanism.place != "distributed":
            return self.w.new_empty(len(clients), 0)
        like = fed.blank(self.w, self.said)
        return torch.stack(
            [
                mechanism.share(fed.streams, like, fed.bound, self.round, client, self.cohort_size)
                if client in self.sharing
                else torch.zeros_like(like)
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
    method = fed.method
    _pay(fed, ledger, round)
    cohort = _members(fed, round)
    said = method.transform.announce(fed.streams, round, fed.here(w, {}), state)
    total, rejected = cohort_total(fed, engine, round, w, cohort, said)
    total, correlated = _with_the_servers_noise(fed, round, total, len(cohort), state)
    here = fed.here(w, said)
    total, decoded = method.transform.decode(total, here, state)
    w, stepped = method.server.update(w, total / fed.denominator, state, here)
    ledger.settle()  # the line that paid for this round is on the disk before anything leaves it
    return Outcome(w, {**state, **correlated, **decoded, **stepped}, len(cohort), rejected)


def _pay(fed: Federation, ledger: Ledger, round: int) -> None:
    """Charge for the round, or note that the cycle it belongs to was charged for.

    A round that is played again with other noise is a release of its own, whatever its cycle has paid.
    """
    unit, repeatable = fed.method.unit, fed.streams.repeatable and not fed.streams.secure
    cycle = fed.cohort.separation(fed.population.clients)
    again = not repeatable and ledger.has_paid(unit, round)
    first = round - (round - 1) % cycle
    covered = first < round and not again and ledger.has_paid(unit, first)
    event = Covered() if covered else fed.event
    ledger.charge(unit, event, round=round, repeatable=repeatable)


def _with_the_servers_noise(
    fed: Federation, round: int, total: Tensor, cohort: int, state: State
) -> tuple[Tensor, State]:
    """The sum with all the noise that was paid for."""
    mechanism = fed.method.mechanism
    if mechanism.place == "central":
        noise, changed = mechanism.share(fed.streams, total, fed.bound, round, SERVER, 1), State()
        if mechanism.correlate is not None:
            noise, changed = mechanism.correlate(noise, round, state)
        return total + noise, changed
    if mechanism.place == "distributed":
        for number in range(mechanism.missing(cohort)):
            total = total + mechanism.share(fed.streams, total, fed.bound, round, SERVER - number, max(cohort, 1))
    return total, {}


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


def cohort_total(
    fed: Federation, engine: Engine, round: int, w: Tensor, cohort: Tensor, said: State | None = None
) -> Sum:
    """The sum of a cohort's messages, and how many updates were not finite."""
    if said is None:
        said = fed.method.transform.announce(fed.streams, round, fed.here(w, {}), fed.method.init(w))
    if not len(cohort):
        return fed.blank(w, said).clone(), torch.zeros((), dtype=torch.int64, device=w.device)
    with multiplying(fed.precision, w.device):
        return engine.total(fed, Turn.of(fed, round, w, cohort, said))


SERVER = -1
"""The client number in whose name the server draws noise (and the numbers below, where it draws several parts)."""


Advance = Callable[[Tensor, Tensor, State, Batch], State]
"""(w at the start of the round, the round's number, state, batch) -> state: one step of local training."""


def one_step(
    fed: Federation,
    phase: Phase,
    grad: Callable[[Function], Function],
    ragged: bool,
    w: Tensor,
    round: Tensor,
    state: State,
    batch: Batch,
) -> State:
    """One step of a client's work. `ragged`: the batch may be without a real sample, and then nothing changes."""
    new = phase.step(replace(fed.problem, grad=grad), state, w, batch, round)
    if not ragged:
        return new
    real = batch.mask.any()
    return {name: torch.where(real, new[name], state[name]) for name in state}


def steps_of(fed: Federation, grad: Callable[[Function], Function], ragged: bool) -> list[Advance]:
    """The step of each phase."""
    return [partial(one_step, fed, phase, grad, ragged) for phase in fed.method.local.phases]


def client_round(
    fed: Federation, w: Tensor, said: State, round: Tensor, work: Work, steps: list[Advance]
) -> tuple[Tensor, Tensor]:
    """What one client does: train, encode, add its share of the noise. A simulator maps this over a cohort.

    Returns its message [m] and whether its update was finite.
    """
    state = trained(fed, w, round, work, steps)
    return message_of(fed, w, said, state, work.phases[0].mask.any(), work.key, work.share)


def trained(fed: Federation, w: Tensor, round: Tensor, work: Work, steps: list[Advance]) -> State:
    """The first half: what the client makes of its data."""
    state = fed.method.local.init(w)
    for step, batches in zip(steps, work.phases, strict=True):
        for number in range(batches.samples.shape[0]):
            rows = batches.samples[number]
            inputs, labels = fed.population.inputs[rows], fed.population.labels[rows]
            batch = Batch(inputs, labels, batches.mask[number], batches.real[number], batches.key[number])
            state = step(w, round, state, batch)
    return state


def message_of(
    fed: Federation, w: Tensor, said: State, state: State, has_data: Tensor, key: Tensor, share: Tensor
) -> tuple[Tensor, Tensor]:
    """The second half: what leaves the client. Whatever the joints do, without data it is zero (and noise)."""
    transform, here = fed.method.transform, fed.here(w, said, key)
    update = fed.method.local.update(fed.problem.layout, state, w)
    finite = torch.isfinite(torch.linalg.vector_norm(update, torch.inf))  # a maximum, which NaN passes through
    counts = finite & has_data
    message = transform.encode(torch.where(counts, update, torch.zeros_like(update)), here)
    if message.is_floating_point():  # scaling can make a huge update infinite, and what is not finite has no bound
        finite = finite & torch.isfinite(torch.linalg.vector_norm(message, torch.inf))
        counts = finite & has_data
    message = torch.where(counts, message, torch.zeros_like(message))
    if fed.method.mechanism.place == "distributed":
        message = message + share
    return message if transform.after is None else transform.after(message, here), finite


def shapes_of(fed: Federation, clients: Tensor, up: Callable[[int], int] = exactly) -> tuple[Shape, ...]:
    """The shape of each phase for these clients."""
    found: list[Shape] = []
    for phase in fed.method.local.phases:
        again = phase.batching.again
        found.append(
            found[-1]._replace(steps=min(found[-1].steps, 1))
            if again
            else shape_of(fed.population.counts[clients], phase.batching, up)
        )
    return tuple(found)


def ragged(shapes: tuple[Shape, ...]) -> bool:
    """Whether steps without a real sample occur."""
    return any(shape.ragged for shape in shapes)


def work_of(fed: Federation, shapes: tuple[Shape, ...], moment: Moment, clients: Tensor, shares: Tensor) -> Work:
    """The work of some clients in some round, padded to shapes. Clients and shares are on the device."""
    own, batch_key = fold(moment.model, clients), fold(moment.batches, clients)
    phases: list[Batches] = []
    for number, (phase, shape) in enumerate(zip(fed.method.local.phases, shapes, strict=True)):
        step = torch.arange(shape.steps, device=clients.device)
        keys = fold((fold(own, -1 - number) if number else own)[:, None], step)
        if phase.batching.again:
            phases.append(_last_again(phases[-1], keys))
            continue
        shuffle = fold(batch_key, -1 - number) if number else batch_key
        batches = plan(fed.population, phase.batching, shape, clients, shuffle)
        phases.append(Batches(batches.samples, batches.mask, batches.mask.sum(2).clamp(min=1), keys))
    return Work(tuple(phases), own, shares)


def _last_again(before: Batches, keys: Tensor) -> Batches:
    """The last batch of every client."""
    last = (before.mask.any(2).sum(1) - 1).clamp(min=0)
    wide = last[:, None, None].expand(-1, keys.shape[1], before.samples.shape[2])
    real = before.real.gather(1, last[:, None].expand(-1, keys.shape[1]))
    return Batches(before.samples.gather(1, wide), before.mask.gather(1, wide), real, keys)
