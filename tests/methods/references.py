"""The user-level methods once more, from their papers: client by client, tensor by tensor, in plain loops.

Nothing of the library computes anything here. Taken from it are facts that a method leaves open: which samples make
which batch, who takes part, and standard normal draws (their scale is the reference's own).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cloister as cl
from cloister.core import Cohort, Method
from cloister.engine import Loop, Vectorized
from cloister.privacy.ledger import Ledger
from cloister.round import cohort_total, run_round
from cloister.round.bind import Federation
from conftest import federation, toy_task, work_of_one

Named = dict[str, Tensor]
Samples = tuple[Tensor, Tensor]

SIZES = (7, 3, 1, 0, 12, 5, 4, 6)
SINGLE, EMPTY, FLAT, TIED = 2, 3, 5, 6  # one sample; none; no gradient; one feature, so that most scores tie
CLIENTS = range(len(SIZES))
D, CLASSES = 50, 3
SHAPES = {"scale": (5,), "first.weight": (5, 6), "second.weight": (3, 5)}


class Net(nn.Module):
    """Without inputs it has no gradient. Its layers have 5, 30 and 15 numbers, so that 0.3 of them end in halves."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(6, 5, bias=False)
        self.scale = nn.Parameter(torch.rand(5) + 0.5)
        self.second = nn.Linear(5, CLASSES, bias=False)
        with torch.no_grad():  # what features that a client lacks do to its update depends on these alone: ties
            self.first.weight[:, 1:] = 0.25 * self.first.weight[:, 1:].sign()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)) * self.scale)


NET = Net().double()  # for its forward pass


def people() -> cl.data.Task:
    task = toy_task(SIZES)
    inputs, starts = task.population.inputs.clone(), task.population.starts.tolist()
    inputs[starts[FLAT] : starts[FLAT] + SIZES[FLAT]] = 0
    inputs[starts[TIED] : starts[TIED] + SIZES[TIED], 1:] = 0
    return replace(task, population=replace(task.population, inputs=inputs))


def engines() -> list[Loop | Vectorized]:
    return [Loop(), Vectorized(chunk=3)]


def federated(
    method: Method, cohort: Cohort | None = None, public_samples: Samples | None = None
) -> tuple[Federation, Tensor, Named]:
    """The library's federation, and its first model twice: as a vector and by name."""
    net = Net().double()
    fed, w = federation(method, cohort, people(), net, public_samples=public_samples)
    return fed, w, {name: p.detach().clone() for name, p in net.named_parameters()}


def flat(named: Named) -> Tensor:
    return torch.cat([named[name].reshape(-1) for name in SHAPES])


def named(vector: Tensor) -> Named:
    sizes = [math.prod(shape) for shape in SHAPES.values()]
    return {n: v.reshape(s) for (n, s), v in zip(SHAPES.items(), vector.split(sizes), strict=True)}


def norm(w: Named) -> float:
    return math.sqrt(sum(float((t * t).sum()) for t in w.values()))


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-13)


# ---- facts of a run that are the library's to choose ------------------------------------------------------------


def batches_of(fed: Federation, round: int, client: int) -> list[Samples]:
    """A client's mini-batches in training."""
    training = work_of_one(fed, round, torch.zeros(D, dtype=torch.float64), client).phases[0]
    rows = [some[real] for some, real in zip(training.samples[0], training.mask[0], strict=True) if real.any()]
    return [(fed.population.inputs[r], fed.population.labels[r]) for r in rows]


def data_of(fed: Federation, client: int) -> Samples:
    first, size = int(fed.population.starts[client]), SIZES[client]
    return fed.population.inputs[first : first + size], fed.population.labels[first : first + size]


def members(fed: Federation, round: int) -> list[int]:
    return fed.cohort.sample(fed.streams, round, len(SIZES)).tolist()


def normal(fed: Federation, round: int, client: int = -1, size: int = D) -> Tensor:
    """The standard normal draws behind a client's noise, or the server's (-1)."""
    return fed.streams.protective_normal(torch.zeros(size, dtype=torch.float64), "noise", round, client)


def public_batches(samples: Samples, key: int, steps: int, batch_size: int) -> list[Samples]:
    random, order, found = torch.Generator().manual_seed(key & (2**63 - 1)), torch.empty(0), []
    for _ in range(steps):
        order = order if len(order) else torch.randperm(len(samples[1]), generator=random)
        found.append((samples[0][order[:batch_size]], samples[1][order[:batch_size]]))
        order = order[batch_size:]
    return found


# ---- local training ---------------------------------------------------------------------------------------------


def gradient(w: Named, batch: Samples) -> Named:
    """Of the mean loss over a batch."""
    leaves = {name: value.detach().clone().requires_grad_() for name, value in w.items()}
    with torch.enable_grad():
        outputs = torch.func.functional_call(NET, leaves, (batch[0],))
        found = torch.autograd.grad(F.cross_entropy(outputs, batch[1]), list(leaves.values()))
    return dict(zip(leaves, found, strict=True))


Direction = Callable[[Named, Named, Samples], Named]
"""(w, w at the start of the round, batch) -> what takes the gradient's place."""


def plain(w: Named, start: Named, batch: Samples) -> Named:
    return gradient(w, batch)


@dataclass
class Blur:
    """Equation 7 of paper 0, and how often its indicator was 0 and 1."""

    strength: float
    radius: float
    seen: tuple[int, int] = (0, 0)

    def __call__(self, w: Named, start: Named, batch: Samples) -> Named:
        outside = norm({n: w[n] - start[n] for n in w}) > self.radius
        self.seen = self.seen[0] + (not outside), self.seen[1] + outside
        return {n: g + (self.strength * (w[n] - start[n]) if outside else 0) for n, g in gradient(w, batch).items()}


def proximal(strength: float) -> Direction:
    return lambda w, start, batch: {n: g + strength * (w[n] - start[n]) for n, g in gradient(w, batch).items()}


def sam(rho: float) -> Direction:
    def of(w: Named, start: Named, batch: Samples) -> Named:
        g = gradient(w, batch)
        length = norm(g)
        return gradient({n: w[n] + rho * g[n] / length if length else w[n] for n in w}, batch)

    return of


def asam(rho: float) -> Direction:
    def of(w: Named, start: Named, batch: Samples) -> Named:
        g = gradient(w, batch)
        length = norm({n: w[n].abs() * g[n] for n in w}) + 1e-12
        return gradient({n: w[n] + rho * w[n] ** 2 * g[n] / length for n in w}, batch)

    return of


def trained(
    start: Named, batches: list[Samples], direction: Direction, lr: float, momentum: float = 0.0, decay: float = 0.0
) -> Named:
    """SGD as torch does it: weight decay joins the gradient, and the velocity is that of the sum."""
    w, velocity = dict(start), {n: torch.zeros_like(t) for n, t in start.items()}
    for batch in batches:
        g = direction(w, start, batch)
        for n in w:
            velocity[n] = momentum * velocity[n] + (g[n] + decay * w[n])
        w = {n: w[n] - lr * velocity[n] for n in w}
    return w


# ---- what becomes of an update ----------------------------------------------------------------------------------


def how_many(size: int, fraction: Fraction) -> int:
    """Rounded half up, and at least one."""
    return max(1, math.floor(fraction * size + Fraction(1, 2)))


def only_largest(update: Named, scores: Named, fraction: Fraction, ties: str = "keep") -> Named:
    kept = {}
    for n, tensor in update.items():
        values, by = tensor.flatten().tolist(), scores[n].abs().flatten().tolist()
        ranked = sorted(range(len(by)), key=lambda e, by=by: (-by[e], e))
        count = how_many(len(by), fraction)
        stay = set(ranked[:count]) if ties == "first" else {e for e in ranked if by[e] >= by[ranked[count - 1]]}
        kept[n] = torch.tensor([v if e in stay else 0.0 for e, v in enumerate(values)], dtype=torch.float64)
        kept[n] = kept[n].reshape(tensor.shape)
    return kept


def largest_of_all(update: Named, scores: Named, fraction: Fraction, ties: str = "keep") -> Named:
    """The same over the whole model, as if it were one layer."""
    one = only_largest({"all": flat(update)}, {"all": flat(scores)}, fraction, ties)["all"]
    return named(one)


def clipped(vector: Tensor, clip_norm: float) -> Tensor:
    length = float(torch.sqrt((vector * vector).sum()))
    return vector * min(1.0, clip_norm / length) if length else vector


Message = Callable[[Federation, int, int, Named], Tensor]
"""(federation, round, client with data, model) -> what the client adds to the sum, before noise."""


def check_messages(fed: Federation, w: Tensor, message: Message, round: int = 2) -> None:
    """Every client by itself (the odd ones in both engines), and all together. Who has no data sends zero."""
    expected = {c: message(fed, round, c, named(w)) for c in CLIENTS if SIZES[c]}
    groups = [[c] for c in CLIENTS], [[SINGLE], [EMPTY], [FLAT], [TIED], [*CLIENTS]]
    for engine, clients in zip(engines(), groups, strict=True):
        for group in clients:
            found, nonfinite_updates = cohort_total(fed, engine, round, w, torch.tensor(group))
            assert nonfinite_updates == 0
            close(found, sum((expected[c] for c in group if SIZES[c]), torch.zeros_like(found)))


Step = Callable[[int, Tensor], Tensor]
"""(round, model before) -> model after"""


def check_rounds(fed: Federation, w: Tensor, step: Step, rounds: int = 3) -> None:
    """Whole rounds, one after the other: the reference goes its own way, from its own models."""
    models = [w]
    for round in range(1, rounds + 1):
        models.append(step(round, models[-1]))
    for engine in engines():
        found, state, ledger = w, fed.method.init(w), Ledger.create(None, "test", {})
        for round in range(1, rounds + 1):
            outcome = run_round(fed, ledger, engine, round, found, state)
            found, state = outcome.w, outcome.state
            close(found, models[round])


def summed(fed: Federation, message: Message, round: int, w: Tensor) -> Tensor:
    """The cohort's messages together."""
    there = [client for client in members(fed, round) if SIZES[client]]
    return torch.stack([message(fed, round, client, named(w)) for client in there]).sum(0)
