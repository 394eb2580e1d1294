"""One round is a straight line, and this is it.

    1 sample     who takes part
    2 charge     the ledger, before anything is computed; raises BudgetExceededError (on disk before step 10 returns)
    3 announce   what the clients are told beside the model (a shared mask, a clip)
    4 local      each client's update            \\
    5 encode     clip it, compress it, ...        >  client_round, mapped over the cohort by an engine
    6 share      add noise, when distributed     /
    7 aggregate  sum
    8 noise      add noise, when central (or what is missing of the clients' shares)
    9 decode     the transforms' server halves, in reverse order
    10 step      server optimiser, on the sum divided by a constant

Guarantee, where clients are protected: what leaves the round depends on a client's data only through one term of the
sum, whose norm is at most the bound that the noise was scaled to. Weights are equal; the denominator is a constant of
the run. An update that is not finite counts as zero (with its share of the noise).

Guarantee, where samples are: every message is private by itself, and its client has paid for it from an account of its
own. Who cannot pay drops out before it computes anything, and the round goes on without. Who took part is no secret
then, so the sum is divided by how many they were.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from cloister.batches import rows_of
from cloister.errors import BudgetExceededError, CloisterError
from cloister.federation import Federation, account_of
from cloister.joints import Batch, Grad, Phase, State
from cloister.lots import StepNoise
from cloister.precision import multiplying
from cloister.privacy.events import NoOp
from cloister.privacy.ledger import Ledger
from cloister.work import Turn, Work

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


class Outcome(NamedTuple):
    """The model after a round, with what the simulator saw on the way (not private: see the certificate)."""

    w: Tensor
    state: State
    cohort_size: int
    rejected: Tensor
    """How many updates were not finite; still on its way where a device computes it."""
    dropped: int = 0
    """How many members had no budget left."""


def run_round(fed: Federation, ledger: Ledger, engine: Engine, round: int, w: Tensor, state: State) -> Outcome:
    """One round, numbered from 1."""
    method = fed.method
    cohort = _members(fed, round)
    paying = _pay_each(fed, ledger, round, cohort, state) if fed.each else _pay(fed, ledger, round, cohort)
    said = method.transform.announce(fed.streams, round, fed.here(w, {}), state)
    turn = Turn.of(fed, round, w, paying, said, state)
    total, rejected = _total(fed, engine, turn)
    total, correlated = _with_the_servers_noise(fed, round, total, len(paying), state)
    here = fed.here(w, said)
    total, decoded = method.transform.decode(total, here, state)
    mean = total / (max(len(paying), 1) if fed.each else fed.denominator)
    w, stepped = method.server.update(w, mean, state, here)
    ledger.sync()  # the line that paid for this round is on the disk before anything leaves it
    kept = {f"kept.{name}": table for name, table in turn.kept.items()}
    state = {**state, **kept, **correlated, **decoded, **stepped}
    return Outcome(w, state, len(paying), rejected, len(cohort) - len(paying))


def _pay(fed: Federation, ledger: Ledger, round: int, members: Tensor) -> Tensor:
    """Charge for the round, or note that the cycle it belongs to was charged for; everybody takes part.

    A round that is played again with other noise is a release of its own, whatever its cycle has paid.
    """
    unit, repeatable = fed.method.unit, fed.repeatable
    cycle = fed.cohort.separation(fed.population.clients)
    again = not repeatable and ledger.has_paid(unit, round)
    first = round - (round - 1) % cycle
    covered = first < round and not again and ledger.has_paid(unit, first)
    event = NoOp() if covered else fed.event
    ledger.charge(unit, event, round=round, repeatable=repeatable)
    return members


def _pay_each(fed: Federation, ledger: Ledger, round: int, members: Tensor, state: State) -> Tensor:
    """Charge every member's own account; those who can pay take part. Refused when nobody there is can pay."""
    tempered = fed.tempered(state)
    bills = fed.bills(members.tolist(), tempered)
    refused = ledger.charge_each(bills, round=round, repeatable=fed.repeatable)
    if refused and len(refused) == len(bills):
        everybody = fed.bills(list(range(fed.population.clients)), tempered)
        if len(ledger.refusals(everybody, round=round, repeatable=fed.repeatable)) == len(everybody):
            raise BudgetExceededError(next(iter(refused.values())))
    stays = [account_of(client) not in refused for client in members.tolist()]
    return members[torch.tensor(stays, dtype=torch.bool)]


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
    fed: Federation,
    engine: Engine,
    round: int,
    w: Tensor,
    cohort: Tensor,
    said: State | None = None,
    state: State | None = None,
) -> Sum:
    """The sum of a cohort's messages, and how many updates were not finite."""
    if said is None:
        said = fed.method.transform.announce(fed.streams, round, fed.here(w, {}), fed.method.init(w))
    return _total(fed, engine, Turn.of(fed, round, w, cohort, said, state))


def _total(fed: Federation, engine: Engine, turn: Turn) -> Sum:
    if not len(turn.clients):
        zero = fed.blank(turn.w, turn.said).clone()
        return zero, torch.zeros((), dtype=torch.int64, device=turn.w.device)
    with multiplying(fed.precision, turn.w.device):
        return engine.total(fed, turn)


SERVER = -1
"""The client number in whose name the server draws noise (and the numbers below, where it draws several parts)."""


Advance = Callable[[Tensor, Tensor, State, Batch], State]
"""(w at the start of the round, the round's number, state, batch) -> state: one step of local training."""


def one_step(
    fed: Federation,
    phase: Phase,
    grad: Grad,
    ragged: bool,
    w: Tensor,
    round: Tensor,
    state: State,
    batch: Batch,
) -> State:
    """One step of a client's work. `ragged`: it may not be the client's, and then nothing changes."""
    new = phase.step(replace(fed.problem, grad=grad), state, w, batch, round)
    if not ragged:
        return new
    return {name: torch.where(batch.live, new[name], state[name]) for name in state}


def steps_of(fed: Federation, grad: Grad, ragged: bool) -> list[Advance]:
    """The step of each phase."""
    return [partial(one_step, fed, phase, grad, ragged) for phase in fed.method.local.phases]


def client_round(
    fed: Federation,
    w: Tensor,
    said: State,
    round: Tensor,
    work: Work,
    steps: list[Advance],
    noise: StepNoise | None = None,
    exact: bool = False,
) -> tuple[Tensor, Tensor, State]:
    """What one client does: train, encode, add its share of the noise. A simulator maps this over a cohort.

    Returns its message [m], whether its update was finite, and what it has trained.
    """
    state = trained(fed, w, round, work, steps, noise, exact)
    message, finite = message_of(fed, w, said, state, work.has_data, work.key, work.share)
    return message, finite, state


def trained(
    fed: Federation,
    w: Tensor,
    round: Tensor,
    work: Work,
    steps: list[Advance],
    noise: StepNoise | None = None,
    exact: bool = False,
) -> State:
    """The first half: what the client makes of its data. `exact`: lots without padding, which waits for their sizes."""
    state = {**fed.method.local.init(w), **work.start}
    none = w.new_empty(0)
    for phase, step, batches in zip(fed.method.local.phases, steps, work.phases, strict=True):
        most = batches.samples.shape[1]
        widths = batches.mask.sum(1).clamp(min=1).tolist() if exact and phase.batching.lots else None
        for number in range(batches.samples.shape[0]):
            real = slice(0, widths[number] if widths else most)
            rows = batches.samples[number, real]
            inputs, labels = rows_of(fed.population.inputs, rows), rows_of(fed.population.labels, rows)
            columns = (batches.mask[:, real], batches.divisor, batches.key, batches.live)
            mask, divisor, key, live = (column[number] for column in columns)
            drawn = none if noise is None else noise.at(number)[0]
            state = step(w, round, state, Batch(inputs, labels, mask, divisor, key, live, drawn))
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
