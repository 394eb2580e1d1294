"""One run in which many canary clients take part beside the others, each with an update of the attacker's choice.

The run is the real one: real clients train, the cohort is drawn, the ledger charged, noise added, the model stepped,
all by `run_round`. Only what a canary would have trained is given, by an engine that knows them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cloister.auditing.canary_clients import MANY, SEEN, STILL, watched
from cloister.auditing.worst_case import FAR, Terms, task_of
from cloister.client.population import Population
from cloister.core.precision import multiplying
from cloister.data.task import Task
from cloister.engine import Vectorized
from cloister.privacy.ledger import Ledger
from cloister.random.streams import fold
from cloister.round import Engine, Federation, RoundPlan, Sum, run_round
from cloister.round.answer import Sending, message_of
from cloister.runs.prepare import prepare
from cloister.runs.request import Request
from cloister.runs.statistics import first_answer

if TYPE_CHECKING:
    from cloister.auditing.audits import Progress

_BLOCK = 128


@dataclass
class WithCanaries:
    """An engine beside whose clients the last ones are canaries."""

    inner: Engine
    people: int
    canaries: Canaries
    inside: Tensor
    name: str = "with canaries"
    chunk: int = 64

    def total(self, plan: RoundPlan) -> Sum:
        """The sum of all messages, those of canaries included."""
        own, others = plan.clients[plan.clients < self.people], plan.clients[plan.clients >= self.people]
        blank = plan.fed.blank(plan.offer.w, plan.offer.broadcast)
        total, nonfinite = torch.zeros_like(blank), torch.zeros((), dtype=torch.int64, device=blank.device)
        if len(own):
            total, nonfinite = self.inner.total(replace(plan, clients=own))
        for some in torch.split(others, _BLOCK):
            numbers = some - self.people
            keys = fold(torch.tensor(plan.keys()[1]), some).to(blank.device)
            shares = plan.shares(some)
            total = total + self.canaries.messages(plan, numbers, keys, shares, self.inside[numbers]).sum(0)
        return total, nonfinite


@dataclass(frozen=True)
class Canaries:
    """The updates of many canaries, made anew when they are needed: all of them may not fit into memory."""

    count: int
    size: int
    seed: int
    like: Tensor

    def updates(self, numbers: Tensor) -> Tensor:
        """[k, d], each of norm `FAR`; orthogonal where there are no more of them than parameters, and few."""
        if self.count <= self.size <= _MOST_ORTHOGONAL:
            return (FAR * _orthogonal(self.count, self.size, self.seed)[numbers]).to(self.like)
        rows = []
        for number in numbers.tolist():
            row = torch.randn(self.size, generator=torch.Generator().manual_seed(self.seed * 10**6 + number))
            rows.append(row * (FAR / row.norm()))
        return torch.stack(rows).to(self.like)

    def messages(self, plan: RoundPlan, numbers: Tensor, keys: Tensor, shares: Tensor, inside: Tensor) -> Tensor:
        """What some of them send, [k, m]: nothing but their share of the noise where they are not in."""
        fed, offer = plan.fed, plan.offer
        local = replace(fed.method.local, update=lambda layout, state, w: state["update"], client_state=())
        forced = replace(fed, method=replace(fed.method, local=local))
        forced.blank(offer.w, offer.broadcast)
        many = torch.full((len(numbers),), MANY, device=offer.w.device)
        one = partial(message_of, forced, offer.w, offer.broadcast)
        with multiplying(fed.precision, offer.w.device):
            found: Tensor = torch.func.vmap(one)(
                {"update": self.updates(numbers)}, Sending(inside.to(offer.w.device), keys, shares, many)
            )[0]
        return found


_MOST_ORTHOGONAL = 20_000
_kept: dict[tuple[int, int, int], Tensor] = {}


def _orthogonal(count: int, size: int, seed: int) -> Tensor:
    """[count, size] orthonormal rows at random; the last that were asked for are kept."""
    key = (count, size, seed)
    if key not in _kept:
        _kept.clear()
        drawn = torch.randn(size, count, generator=torch.Generator().manual_seed(seed))
        _kept[key] = torch.linalg.qr(drawn)[0].T.contiguous()
    return _kept[key]


def play_clients(terms: Terms, task: Task | None, inside: Tensor, seed: int, progress: Progress) -> Tensor:
    """A run with as many canaries as `inside` has; how far its releases point to each of them."""
    count = len(inside)
    own = task_of([1], terms.public, width=-(-count // 4)) if task is None else task
    people = own.clients
    request = Request(
        terms.method,
        _joined(own, count),
        terms.rounds,
        terms.cohort,
        terms.epsilon,
        terms.delta,
        None,
        replace(terms.options, seed=seed, allow_large_delta=True),
    )
    ready = prepare(request)
    ledger = Ledger.create(None, "audit", {})
    if ready.fed.method.first_query is not None:
        ready.load_released(first_answer(ready, ledger))
    fed, w = _coins(ready.fed, people, inside), ready.w
    canaries = Canaries(count, len(w), seed, w)
    engine = WithCanaries(Vectorized(64), people, canaries, inside)
    state = fed.method.init(w)
    scores = torch.zeros(count, dtype=torch.float64, device=w.device)
    for round in range(1, terms.rounds + 1):
        outcome = run_round(fed, ledger, engine, round, w, state)
        assert outcome.offer is not None
        assert outcome.clients is not None
        plan = RoundPlan.of(fed, outcome.offer, outcome.clients)
        seen = outcome.state.transform[SEEN].double()
        for some in _blocks(count):
            keys = torch.zeros(len(some), dtype=torch.int64, device=w.device)
            blank = torch.zeros_like(fed.blank(w, outcome.offer.broadcast)).expand(len(some), -1)
            there = canaries.messages(plan, some, keys, blank, torch.ones(len(some), dtype=torch.bool)).double()
            scores[some] += there @ seen / there.square().sum(1).clamp(min=1e-300)
        kept = {name: value for name, value in outcome.state.transform.items() if name != SEEN}
        w, state = outcome.w, replace(outcome.state, transform=kept)
        progress("one run", round, terms.rounds)
    return scores


def _blocks(count: int) -> Iterator[Tensor]:
    yield from torch.split(torch.arange(count), _BLOCK)


def _joined(task: Task, canaries: int) -> Task:
    """The task with so many clients more, each with one sample that nobody looks at."""
    people = task.population
    inputs = torch.cat([people.inputs, people.inputs[:1].expand(canaries, *people.inputs.shape[1:])])
    labels = torch.cat([people.labels, people.labels[:1].expand(canaries, *people.labels.shape[1:])])
    starts = torch.cat([people.starts, len(people.labels) + torch.arange(canaries)])
    sizes = torch.cat([people.sizes, torch.ones(canaries, dtype=people.sizes.dtype)])
    names = (*task.client_names, *(f"canary {i}" for i in range(canaries))) if task.client_names else ()
    return replace(task, population=Population(inputs, labels, starts, sizes), local_test=None, client_names=names)


def _coins(fed: Federation, people: int, inside: Tensor) -> Federation:
    """The federation in which canaries that are not in have no data; its sums are caught before they are decoded."""
    population = fed.population
    sizes = population.sizes.clone()
    sizes[people:] = inside.to(sizes)
    server = fed.method.server if fed.method.server.takes_updates else STILL
    method = replace(fed.method, transform=watched(fed.method), server=server)
    return replace(fed, method=method, population=replace(population, sizes=sizes))
