"""The worst case that a guarantee covers: a task of the attacker's choice, in which one canary uses all of the bound.

The model is linear in its parameters and so is the loss: a sample's gradient is its input, whatever the model, and all
samples but the canary have none. Two tensors see the same input, because some methods treat tensors one by one.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from cloister.client.losses import Loss
from cloister.client.population import Population
from cloister.core import Cohort, Method
from cloister.data.task import Task
from cloister.privacy.accounts import Spending, accounts_of
from cloister.privacy.events import Adjacency, Event, NonPrivate, NoOp
from cloister.privacy.ledger import Ledger
from cloister.privacy.pricing import adjacency_of
from cloister.privacy.unit import ProtectedUnit
from cloister.round import Federation, open_round
from cloister.runs.prepare import Ready, prepare
from cloister.runs.request import Options, Request, Target
from cloister.runs.statistics import first_answer

WIDTH = 4
CLASSES = 2
FAR = 1e4
"""The norm of a canary before it is clipped: so far beyond any clip that one which is ignored cannot be overlooked."""
PUBLIC = 16
"""Public samples, for methods that need some."""


class Twice(nn.Module):
    """Two tensors that see the same, without a bias: no input, no gradient."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.first = nn.Linear(width, CLASSES, bias=False)
        self.second = nn.Linear(width, CLASSES, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        both: Tensor = self.first(inputs) + self.second(inputs)
        return both


def _difference(outputs: Tensor, labels: Tensor) -> Tensor:
    return outputs[..., 0] - outputs[..., 1]


LINEAR = Loss("linear", _difference, classes=True, metrics=("loss",))
"""The gradient of a sample is its input, with one sign for one output and the other for the other."""


def task_of(sizes: list[int], public: int = PUBLIC, width: int = WIDTH) -> Task:
    """Clients with so many samples each, none of which has a gradient."""
    counts = torch.tensor(sizes)
    inputs, labels = torch.zeros(int(counts.sum()), width), torch.zeros(int(counts.sum()), dtype=torch.int64)
    random = torch.Generator().manual_seed(0)
    shown = torch.randn(public, width, generator=random), torch.arange(public) % CLASSES
    people = Population(inputs, labels, counts.cumsum(0) - counts, counts)
    return Task("canaries", people, inputs[:2], labels[:2], CLASSES, lambda: Twice(width), LINEAR, public_samples=shown)


@dataclass(frozen=True)
class Terms:
    """What is audited: a method, and on which terms. `sizes` are those of the clients' data."""

    method: Method
    cohort: Cohort
    rounds: int
    epsilon: Target
    delta: float
    sizes: tuple[int, ...]
    options: Options
    public: int = PUBLIC

    @property
    def of_samples(self) -> bool:
        """Whether single samples are protected."""
        return self.method.unit is ProtectedUnit.SAMPLE


@dataclass(frozen=True)
class Audited:
    """A federation with calibrated noise, and what its rounds cost by its own ledger."""

    ready: Ready
    ledger: Ledger
    rounds: int
    """In which the canary may take part."""
    certified: float

    @property
    def fed(self) -> Federation:
        return self.ready.fed

    @property
    def w(self) -> Tensor:
        return self.ready.w

    @property
    def releases(self) -> Counter[Event]:
        """What was charged to one unit, and how often; without what was only noted."""
        found: Counter[Event] = Counter()
        worst = Spending(accounts_of(self.ledger), adaptive=False).worst
        for event, count in worst.events.items():
            if not isinstance(event, NoOp):
                found[event] += count
        return found

    @property
    def replaces(self) -> bool:
        """Whether neighbors differ in what a unit's data are, and not in whether they are there."""
        kinds = {adjacency_of(event) for event in self.releases if not isinstance(event, NonPrivate)}
        return Adjacency.REPLACE_ONE in kinds or self.fed.method.local_only


def audited(terms: Terms, seed: int, width: int = WIDTH) -> Audited:
    """The federation of the worst case, ready to be played: what a run of these terms has, on the attacker's data."""
    sizes = list(terms.sizes) if terms.of_samples else [1] * len(terms.sizes)
    rounds = terms.rounds
    options = replace(terms.options, seed=seed, allow_large_delta=True)
    request = Request(
        terms.method,
        task_of(sizes, terms.public, width),
        rounds,
        terms.cohort,
        terms.epsilon,
        terms.delta,
        None,
        options,
    )
    ready = prepare(request)
    ledger = Ledger.create(None, "audit", {})
    fed, w = ready.fed, ready.w
    if fed.method.first_query is not None:
        ready.load_released(first_answer(ready, ledger))
    if terms.of_samples:
        rounds = min(rounds, fed.cohort.participations(rounds, len(sizes)))
        for round in range(1, rounds + 1):
            ledger.charge_each(fed.charges([0], round=round), round=round, repeatable=True)
    else:
        state = fed.method.init(w)
        for round in range(1, rounds + 1):
            open_round(fed, ledger, round, w, state)
    spent = Spending(accounts_of(ledger), adaptive=False)
    return Audited(ready, ledger, rounds, spent.certified(terms.delta))


def direction(size: int, like: Tensor) -> Tensor:
    """The canary's update: signs at random, in every coordinate, of norm `FAR`."""
    random = torch.Generator().manual_seed(1)
    signs = torch.randint(2, (size,), generator=random) * 2.0 - 1
    return (signs * (FAR / math.sqrt(size))).to(like)
