"""The client's half of a round: pay (where samples are protected), train, encode, round, add a share of the noise.

Guarantee, where clients are protected: a message has the norm that was declared, whatever the client's data. An update
that is not finite counts as zero (with its share of the noise).

Guarantee, where samples are: every message is private by itself (or, with secure aggregation, their sum is), and its
client has paid for it from an account of its own. Who cannot pay drops out before it computes anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from cloister.client.batches import Chunk, Drawn, Work
from cloister.client.poisson_batches import StepNoise, draw_batches
from cloister.core import Batch, Grad, Phase, State, Tensors
from cloister.core.noise_grid import slack
from cloister.core.precision import multiplying
from cloister.errors import BudgetExceededError, CloisterError
from cloister.privacy.ledger import Ledger
from cloister.privacy.unit import ProtectedUnit, sample_account
from cloister.random.transformed import is_transformed
from cloister.round.bind import Federation
from cloister.round.offer import Answer, Offer, Reply

Sum = tuple[Tensor, Tensor]
"""The sum [m] of some clients' messages, and how many of their updates were not finite (a count on the device)."""


class Engine(Protocol):
    """How the clients' work is mapped over a cohort: performance only, never meaning."""

    @property
    def name(self) -> str: ...

    @property
    def chunk(self) -> int:
        """How many clients are planned (or computed) at once."""

    def total(self, plan: RoundPlan) -> Sum:
        """What is asked for, of at least one client."""


def answer(fed: Federation, ledger: Ledger, offer: Offer, engine: Engine, client_state: Tensors) -> Answer:
    """What this process's clients reply to an offer. Nothing leaves before what pays for it is on the disk."""
    if not names_clients(offer.clients, fed.population.clients):  # or one of them would send several messages
        raise CloisterError(
            f"Expected an offer to clients 0 to {fed.population.clients - 1} in rising order, each once, found "
            f"{offer.clients}: refuse it."
        )
    if offer.noise_scale != 1 and fed.method.noise_schedule is None:  # or noise would be charged for that nobody adds
        raise CloisterError(
            f"Expected an offer without a factor on the noise for {fed.method.name}, whose noise is the same in all "
            f"rounds, found noise_scale {offer.noise_scale}: refuse it."
        )
    asked = offer.clients if fed.population.here is None else fed.population.members(offer.clients)
    paying = _pay(fed, ledger, offer, asked) if fed.unit is ProtectedUnit.SAMPLE else asked
    plan = RoundPlan.of(fed, offer, paying, client_state)
    message, nonfinite = total_of(plan, engine)
    ledger.sync()
    reply = Reply(paying, message, expected_samples(fed, paying))
    return Answer(reply, plan.client_state, nonfinite, len(asked) - len(paying))


def expected_samples(fed: Federation, clients: Tensor) -> float:
    """How many samples the batches of these clients are expected to have, where updates are sums over them."""
    local = fed.method.local
    if local.sample_l2 is None:
        return 0.0
    return sum(map(local.batching.expected, fed.population.counts[clients].tolist()), 0.0)


def names_clients(numbers: Tensor, clients: int) -> bool:
    """Whether these are numbers of so many clients, in rising order and each once."""
    if numbers.dim() != 1 or numbers.dtype != torch.int64 or numbers.device.type != "cpu":
        return False
    inside = not len(numbers) or bool(numbers[0] >= 0 and numbers[-1] < clients)
    return inside and bool((numbers[1:] > numbers[:-1]).all())


def _pay(fed: Federation, ledger: Ledger, offer: Offer, asked: Tensor) -> Tensor:
    """Charge every client's own account; those who can pay take part. Refused when nobody there is can pay."""
    replays = fed.streams.replays
    charges = fed.charges(asked.tolist(), offer.noise_scale, offer.round)
    if fed.population.here is not None and replays and any(ledger.has_paid(unit, offer.round) for unit in charges):
        raise CloisterError(
            f"Expected a round that was not answered before, found round {offer.round} again: with a seed, another "
            "answer would have the same noise, so send the reply that was sent, or use secure randomness."
        )
    refused = ledger.charge_each(charges, round=offer.round, repeatable=replays)
    if refused and len(refused) == len(charges):
        everybody = fed.charges(list(range(fed.population.clients)), offer.noise_scale, offer.round)
        if len(ledger.refusals(everybody, round=offer.round, repeatable=replays)) == len(everybody):
            raise BudgetExceededError(next(iter(refused.values())))
    stays = [sample_account(client) not in refused for client in asked.tolist()]
    return asked[torch.tensor(stays, dtype=torch.bool)]


@dataclass(frozen=True)
class RoundPlan:
    """What an engine is asked for: the sum of the messages of these clients in this round."""

    fed: Federation
    offer: Offer
    clients: Tensor  # their numbers, on the host, in rising order
    cohort_size: int  # of all who take part, of whom these may be some
    sharing: frozenset[int]  # whose messages carry a share of distributed noise
    client_state: Tensors = field(default_factory=dict)  # a row for each client there is

    @classmethod
    def of(cls, fed: Federation, offer: Offer, clients: Tensor, client_state: Tensors | None = None) -> RoundPlan:
        """That of some of the clients who are asked; what they keep is copied, for it changes."""
        mechanism, elsewhere = fed.method.mechanism, fed.population.here is not None
        # Without those who could not pay; but a node, which does not know of others, counts on all who are asked, and
        # the server on replies of as many as that takes (`close_round`).
        paid = fed.unit is ProtectedUnit.SAMPLE and not (elsewhere and mechanism.honest_fraction is not None)
        cohort = clients if paid else offer.clients
        sharing = cohort[: mechanism.most] if mechanism.place == "distributed" else clients[:0]
        client_state = fed.client_state(offer.w, client_state or {}) if fed.method.local.client_state else {}
        return cls(fed, offer, clients, len(cohort), frozenset(sharing.tolist()), client_state)

    @property
    def by_size(self) -> Tensor:
        """The clients, those of like size together: less padding, where several are computed at once."""
        return self.clients[self.fed.population.counts[self.clients].argsort(stable=True)]

    def keys(self) -> tuple[int, int]:
        """The round's keys: which samples make which batch, and what is random in the model."""
        streams, round = self.fed.streams, self.offer.round
        return streams.key("batches", round), streams.key("model", round)

    def chunk(self, clients: Tensor, places: int | None = None) -> Chunk:
        """Some of the clients as tensors; padded to so many places by the last one."""
        w, count = self.offer.w, len(clients)
        rest = (places or count) - count
        shares = self.shares(clients)
        if rest:
            shares = torch.cat([shares, shares.new_zeros(rest, shares.shape[1])])
        there = torch.cat([clients, clients[-1:].expand(rest)]).to(w.device)
        counted = torch.arange(count + rest, device=w.device) < count
        number = torch.tensor(float(self.offer.round), dtype=torch.float64, device=w.device)
        keys = torch.tensor(self.keys(), device=w.device)
        client_state = {name: table[there] for name, table in self.client_state.items()} if self.client_state else {}
        return Chunk(number, keys[0], keys[1], w, self.offer.broadcast, there, counted, shares, client_state)

    def shares(self, clients: Tensor) -> Tensor:
        """The parts of the noise that some of the clients add, [k, m]; [k, 0] where clients add none."""
        fed, mechanism, of = self.fed, self.fed.method.mechanism, self.cohort_size
        if mechanism.place != "distributed":
            return self.offer.w.new_empty(len(clients), 0)
        like = fed.blank(self.offer.w, self.offer.broadcast)
        return torch.stack(
            [
                noise_share(fed, like, self.offer.round, client, of)
                if client in self.sharing
                else torch.zeros_like(like)
                for client in clients.tolist()
            ]
        )

    def drawn(self, clients: Tensor, places: int) -> Drawn:
        """What is drawn in secret for some of the clients, laid out for so many places."""
        fed, local = self.fed, self.fed.method.local
        if len(local.phases) == 1 and local.batching.batch_sampling is None:
            return Drawn([], None)
        sizes = fed.population.counts[clients].tolist()
        of_all = int(fed.population.counts.max()) if self.offer.w.is_cuda else None
        drawn_batches = [
            draw_batches(fed.streams, self.offer.round, number, phase.batching, clients.tolist(), sizes, places, of_all)
            if phase.batching.batch_sampling
            else None
            for number, phase in enumerate(local.phases)
        ]
        return Drawn(drawn_batches if any(drawn_batches) else [], self.noise(clients, places))

    def noise(self, clients: Tensor, places: int) -> StepNoise | None:
        """The noise of private steps, which draws it as it is asked for; None where steps have none."""
        fed, local = self.fed, self.fed.method.local
        if local.private is None:
            return None
        numbers, grid = local.private.draws(self.offer.w.shape[0]), fed.method.mechanism.grid
        like = self.offer.w.new_empty(numbers, dtype=self.offer.w.dtype if grid is None else torch.float64)
        sizes = fed.population.counts[clients].tolist()
        sources = []
        for client, size in zip(clients.tolist(), sizes, strict=True):
            noise = fed.noise_of(client) * self.offer.noise_scale
            wider = 1.0 if grid is None else 1 + slack(numbers, grid, size)
            sources.append((client, noise * wider, local.batching.steps_for(size, self.offer.round)))
        return StepNoise(fed.streams, self.offer.round, sources, like, places, grid)

    def remember(self, clients: Tensor, states: Tensors) -> None:
        """Keep what clients want to keep; not of one whose numbers are no longer finite."""
        for name, table in self.client_state.items():
            rows = clients.to(table.device)
            new = states[name][: len(rows)]
            sound = torch.isfinite(new).flatten(1).all(1).view(-1, *[1] * (new.dim() - 1))
            table[rows] = torch.where(sound, new, table[rows])


def noise_share(fed: Federation, like: Tensor, round: int, client: int, of: int) -> Tensor:
    """One of so many parts of the noise, at the multiplier that is accounted, for a message as long as was declared."""
    mechanism, declared = fed.method.mechanism, fed.sensitivity.length
    if mechanism.noise_multiplier is None:
        raise CloisterError("Expected a calibrated mechanism, found none: give a noise_multiplier or an epsilon.")
    if declared is not None and like.numel() != declared:
        raise CloisterError(
            f"Expected messages of {declared} numbers, for which {mechanism.name} noise is accounted, found "
            f"{like.numel()}: declare the length that encoding leaves, padding included."
        )
    return mechanism.draw(mechanism.noise_multiplier, fed.streams, like, fed.sensitivity, round, client, of)


def total_of(plan: RoundPlan, engine: Engine) -> Sum:
    """The sum of the messages of a plan's clients, and how many updates were not finite."""
    w = plan.offer.w
    if not len(plan.clients):
        zero = plan.fed.blank(w, plan.offer.broadcast).clone()
        return zero, torch.zeros((), dtype=torch.int64, device=w.device)
    if not w.is_cuda:
        return engine.total(plan)
    with multiplying(plan.fed.precision, w.device):
        return engine.total(plan)


def cohort_total(
    fed: Federation, engine: Engine, round: int, w: Tensor, cohort: Tensor, state: State | None = None
) -> Sum:
    """The sum of a cohort's messages, and how many updates were not finite; `state` is the transform's."""
    state = fed.method.init(w).transform if state is None else state
    offer = Offer(round, cohort.sort().values, w, fed.broadcast(round, w, state))
    return total_of(RoundPlan.of(fed, offer, offer.clients), engine)


Advance = Callable[[Tensor, Tensor, Tensors, Batch], Tensors]
"""(w at the start of the round, the round's number, state, batch) -> state: one step of local training."""


def one_step(
    fed: Federation, phase: Phase, grad: Grad, ragged: bool, w: Tensor, round: Tensor, state: Tensors, batch: Batch
) -> Tensors:
    """One step of a client's work. `ragged`: it may not be the client's, and then nothing changes."""
    new = phase.step(replace(fed.objective, grad=grad), state, w, batch, round)
    if not ragged:
        return new
    return {name: torch.where(batch.live, new[name], state[name]) for name in state}


def steps_of(fed: Federation, grad: Grad, ragged: bool) -> list[Advance]:
    """The step of each phase."""
    return [partial(one_step, fed, phase, grad, ragged) for phase in fed.method.local.phases]


class Sending(NamedTuple):
    """What turns a trained state into a message. Stacked for k clients, or of one."""

    has_data: Tensor
    key: Tensor
    share: Tensor
    samples: Tensor

    @classmethod
    def of(cls, work: Work) -> Sending:
        return cls(work.has_data, work.key, work.share, work.samples)


def message_of(fed: Federation, w: Tensor, broadcast: State, state: Tensors, sending: Sending) -> tuple[Tensor, Tensor]:
    """What leaves a client, and whether its update was finite. Whatever the parts do, without data it is zero (and
    noise)."""
    transform = fed.method.transform
    context = fed.context(w, broadcast, sending.key, sending.samples)
    update = fed.method.local.update(fed.objective.layout, state, w)
    finite = _has_finite_norm(update)
    counts = finite & sending.has_data
    # Whole numbers that stand for zero need not be zero (`quantize_to_levels`): a broken update must be encoded as one
    # that is zero, and stay so, or it would be farther from its neighbors than was priced.
    whole = fed.sensitivity.integer
    # On a GPU other updates that are not finite are encoded as well, and then replaced by zero: a pass over all less.
    message = transform.encode(update if update.is_cuda and not whole else _zero_unless(counts, update), context)
    if not whole and not transform.stays_finite:
        # scaling can make a huge update infinite, and what is not finite has no bound
        finite = finite & _is_finite(message)
        counts = finite & sending.has_data
    message = _zero_unless(sending.has_data if whole else counts, message)
    if fed.method.mechanism.place == "distributed":
        message = message + sending.share
    message = fed.placed(message)
    return message if transform.after is None else transform.after(message, context), finite


def _zero_unless(counts: Tensor, vector: Tensor) -> Tensor:
    """The vector, or zero; without a copy where one client is computed on a CPU."""
    if counts.is_cuda or is_transformed(counts):
        return torch.where(counts, vector, torch.zeros_like(vector))
    return vector if bool(counts) else torch.zeros_like(vector)


def _has_finite_norm(update: Tensor) -> Tensor:
    """The same of an update: on a GPU by the norm that a clip needs as well, so that it is computed once. The squares
    of all that float32 holds are finite in float64."""
    if update.is_cuda and update.dtype == torch.float32:
        return torch.isfinite(torch.linalg.vector_norm(update, dtype=torch.float64))
    return _is_finite(update)


def _is_finite(vector: Tensor) -> Tensor:
    """Whether all its numbers are: a maximum, which NaN passes through."""
    if vector.is_cuda:
        return torch.isfinite(torch.linalg.vector_norm(vector, torch.inf))
    return torch.isfinite(vector.amax()) & torch.isfinite(vector.amin())  # which a CPU finds in a twentieth of the time
