"""Priced queries beside training: a sum over everybody's data, paid for before it is computed.

Every sample contributes a vector of norm at most 1, which is enforced here, whatever the caller computes. Where clients
are protected, a client contributes the mean of its samples' vectors, and noise is added to the sum over all clients.
Where samples are, every client adds noise to the sum over its own samples, and pays from its own account; or, where
only secure sums are private, a share of it, so that what is counted on of all shares has the noise of whoever needs
most (`mechanisms/sample_shares.py`).

Guarantee: noise of standard deviation `noise_multiplier` in every coordinate of what leaves, for a sum that one
protected unit moves by 1 at most (by 2, where it is replaced, which the event's price knows).

Where noise is rounded (`core/noise_grid.py`), what every protected unit adds is rounded toward zero to a grid, and kept
within norm 1 exactly, so that sums are exact. Second moments of single samples, of which only the sum is seen, are
rounded as a whole: for that, and for the roundings of products, their noise is wider. Shares of noise are not rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cloister.client.population import Population
from cloister.core.noise_grid import grid_of, nearest, on_grid, points_of, slack
from cloister.errors import BudgetExceededError, CloisterError
from cloister.privacy.events import Adjacency, Event, FixedSizeGaussian, Gaussian, NonPrivate
from cloister.privacy.ledger import Charge, Ledger
from cloister.privacy.unit import ProtectedUnit, sample_account
from cloister.random.rounded_normal import rounded_normal
from cloister.round.bind import Federation
from cloister.round.run_round import SERVER

_ROWS = 4096
_ROUNDING = 1e-9
"""What is left of the bound on a vector for the roundings of sums of products."""


@dataclass(frozen=True)
class Query:
    """What is asked: the vectors [b, length] of some samples (their inputs and labels)."""

    name: str
    """What the ledger calls it."""
    length: int
    vectors: Callable[[Tensor, Tensor], Tensor]
    noise_multipliers: tuple[float, ...]
    """Every client's, where samples are protected; otherwise one for all."""
    second_moments: bool = False
    """Whether not x is asked for but x x^T, as length * length numbers."""

    @property
    def numbers(self) -> int:
        """How many numbers an answer has."""
        return self.length**2 if self.second_moments else self.length

    def noise_of(self, client: int) -> float:
        """The noise multiplier that covers a client's contribution."""
        return self.noise_multipliers[client if len(self.noise_multipliers) > 1 else 0]


@dataclass(frozen=True)
class QueryAnswer:
    """The noisy mean of the vectors, and the standard deviation of the noise in each of its coordinates."""

    mean: Tensor
    noise: float


def query_event(adjacency: Adjacency | None, noise_multiplier: float, units: int) -> Event:
    """What a query over all of so many units costs one of them, under the adjacency of the run's other releases."""
    if not noise_multiplier:
        return NonPrivate()
    if adjacency is Adjacency.REPLACE_ONE:
        return FixedSizeGaussian(noise_multiplier, units, units)
    return Gaussian(noise_multiplier)


def ask(
    fed: Federation, ledger: Ledger, query: Query, charges: dict[str, Charge], population: Population, round: int
) -> QueryAnswer:
    """Pay for a query over the samples of a population, and answer it. Nothing is returned before it is on the disk.

    Both halves of it, for a process that has all clients' samples; a node and a server have one each (`contribution`,
    `closed`).
    """
    if population.here is not None:
        raise CloisterError(
            f"Expected all clients' samples in this process for the {query.name} query, found some elsewhere: leave "
            "it out of a federation of nodes."
        )
    refused = ledger.charge_each(charges, round=round, what=query.name, repeatable=fed.streams.replays)
    if refused and len(refused) == len(charges):
        raise BudgetExceededError(next(iter(refused.values())))
    answered = (_of_clients if fed.unit is ProtectedUnit.CLIENT else _of_samples)(
        fed, query, population, refused, round
    )
    ledger.sync()
    return answered


def _of_clients(
    fed: Federation, query: Query, population: Population, refused: dict[str, str], round: int
) -> QueryAnswer:
    """The sum over all clients of their means, with noise that the server adds, or that the clients share."""
    everybody = range(population.clients)
    total = contribution(fed, query, population, everybody, round, population.clients)
    return closed(fed, query, total, everybody, population.counts.tolist(), round, population.clients)


def _of_samples(
    fed: Federation, query: Query, population: Population, refused: dict[str, str], round: int
) -> QueryAnswer:
    """The sum over the clients that could pay, each of which adds its own noise; their sizes are declared."""
    counts = population.counts.tolist()
    there = [c for c in range(len(counts)) if counts[c] and sample_account(c) not in refused]
    total = contribution(fed, query, population, there, round, len(there))
    return closed(fed, query, total, there, counts, round, len(there))


def contribution(
    fed: Federation, query: Query, population: Population, clients: Sequence[int], round: int, counted: int
) -> Tensor:
    """The clients' half: what some clients send, added up, with the noise that each of them adds itself.

    Where noise is shared, `counted` is of how many shares it is made.
    """
    if fed.unit is ProtectedUnit.CLIENT:
        return _means(fed, query, population, clients, round, counted)
    sums = None if query.second_moments or not clients else _sums(query, population, grid_for(fed, query))
    total: Tensor | None = None
    for client in clients:
        own = _second_moments(query, population, range(client, client + 1)) if sums is None else sums[client]
        noise = _own_noise(fed, query, client, counted)
        grid = grid_for(fed, query)
        if noise and grid is not None:
            wider = 1.0
            if sums is None:
                own, wider = nearest(own, 1.0, grid), 1 + _apart(query, grid, int(population.counts[client]))
            own = own + _rounded_noise(fed, query, noise, grid, round, client, wider).to(own)
        elif noise:
            own = own + noise * fed.streams.protective_normal(own, query.name, round, client)
        total = own if total is None else total + own
    return torch.zeros(query.numbers, dtype=torch.float64) if total is None else total


def _means(
    fed: Federation, query: Query, population: Population, clients: Sequence[int], round: int, counted: int
) -> Tensor:
    """The sum of some clients' means, with shares of the noise, where clients add these."""
    weights = 1 / population.counts.double().clamp(min=1)
    grid = grid_for(fed, query)
    if query.second_moments and grid is not None:  # one by one: each is rounded
        total = torch.zeros(query.numbers, dtype=torch.float64)
        for client in clients:
            one = _second_moments(query, population, range(client, client + 1), weights)
            total += on_grid(one.cpu(), grid, 1.0)
    elif query.second_moments:
        total = _second_moments(query, population, clients, weights)
    else:
        mine = torch.tensor(list(clients), dtype=torch.int64)
        means = _sums(query, population)[mine] * weights[mine].unsqueeze(1)
        total = (means if grid is None else _each_on_grid(means, grid)).sum(0)
    noise = query.noise_of(0)
    if noise and fed.method.mechanism.place == "distributed":
        for client in clients:
            total += noise * counted**-0.5 * fed.streams.protective_normal(total, query.name, round, client)
    return total


def closed(
    fed: Federation,
    query: Query,
    total: Tensor,
    clients: Sequence[int],
    sizes: Sequence[int],
    round: int,
    counted: int,
) -> QueryAnswer:
    """The server's half: the answer from the sum of what these clients sent.

    Where clients are protected, it is divided by how many there are, whoever answered; where samples are, by the
    declared sizes of those who did.
    """
    if fed.unit is ProtectedUnit.CLIENT:
        noise, everybody = query.noise_of(0), len(sizes)
        grid = grid_for(fed, query)
        if noise and grid is not None:
            total = total + _rounded_noise(fed, query, noise, grid, round, SERVER).to(total)
        elif noise and fed.method.mechanism.place != "distributed":
            total = total + noise * fed.streams.protective_normal(total, query.name, round, SERVER)
        return QueryAnswer(total / everybody, noise / everybody)
    samples = max(float(sum(sizes[client] for client in clients)), 1.0)
    variance = sum(_own_noise(fed, query, client, counted) ** 2 for client in clients)
    return QueryAnswer(total / samples, float(variance) ** 0.5 / samples)


def grid_for(fed: Federation, query: Query) -> float | None:
    """The grid of a query, where its noise is rounded: not where it is made of shares, or is none."""
    most = max(query.noise_multipliers)
    return None if not fed.rounds or not most or fed.method.mechanism.place == "distributed" else grid_of(1.0, most)


def received(fed: Federation, query: Query, message: Tensor) -> Tensor:
    """What one node sent, rounded once more where only the sum is private: nobody has to believe that it was."""
    grid = grid_for(fed, query)
    return message if grid is None or fed.unit is not ProtectedUnit.CLIENT else on_grid(message, grid, 1.0)


def _rounded_noise(
    fed: Federation, query: Query, noise: float, grid: float, round: int, client: int, wider: float = 1.0
) -> Tensor:
    points = points_of(noise, grid, wider)
    return rounded_normal(query.numbers, points, fed.streams, query.name, round, client) * grid


def _apart(query: Query, grid: float, samples: int) -> float:
    """By how much more than 1 a sample moves a sum of so many products that is rounded as a whole.

    A float64 sum of n products is within 1.01 n 2^-53 times the sum of their absolute values of what it should be,
    in any order, so a matrix of n samples of norm 1 within 1.01 n^2 2^-53, and two of them within twice that.
    """
    return slack(query.numbers, grid, samples) + samples**2 * 2.0**-51


def _each_on_grid(vectors: Tensor, grid: float) -> Tensor:
    placed: Tensor = torch.func.vmap(lambda one: on_grid(one, grid, 1.0))(vectors)
    return placed


def _own_noise(fed: Federation, query: Query, client: int, counted: int) -> float:
    """The deviation of the noise that a client adds, where samples are protected: all that covers its own, or a share
    of what covers whoever needs most. That may be a client whose samples are at another node."""
    honest = fed.method.mechanism.honest_fraction
    if honest is None:
        return query.noise_of(client)
    return max(query.noise_multipliers) / math.sqrt(honest * counted)


def _sums(query: Query, population: Population, grid: float | None = None) -> Tensor:
    """Every client's sum of its samples' vectors [clients, length], each of norm at most 1, on the host; with a grid,
    each is rounded to it."""
    sums = torch.zeros(population.clients, query.length, dtype=torch.float64)
    for owners, rows in _rows(population):
        found = query.vectors(population.inputs[rows], population.labels[rows]).detach().double().cpu()
        bounded = _bounded(found)
        sums.index_add_(0, owners, bounded if grid is None else _each_on_grid(bounded, grid))
        population.let_go()
    return sums


def _second_moments(
    query: Query, population: Population, clients: Sequence[int], weights: Tensor | None = None
) -> Tensor:
    """The sum of x x^T [length * length] over all samples of some clients, with each client's weight.

    Computed where the samples lie: a matrix for every client would not fit. In float64, because the roundings of a long
    sum in float32 differ with and without a sample, which then moves it by more than it adds.
    """
    total = torch.zeros(query.length, query.length, dtype=torch.float64, device=population.inputs.device)
    for owners, rows in _rows(population, clients):
        found = _bounded(
            query.vectors(population.inputs[rows], population.labels[rows]).detach().double(), 1 - _ROUNDING
        )
        weighted = found if weights is None else found * weights[owners].to(found).unsqueeze(1)
        total += found.T @ weighted
        population.let_go()
    return total.flatten()


def _bounded(found: Tensor, most: float = 1.0) -> Tensor:
    """Vectors [b, length] of norm at most 1, whatever they were."""
    norms = found.norm(dim=1, keepdim=True)
    return torch.where(norms.isfinite(), found * (most / norms.clamp(min=most)), 0.0)


def _rows(population: Population, clients: Sequence[int] | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """Some samples at a time, of some clients in a row or of all: whose they are, and where they lie."""
    counts, starts = population.counts, population.starts.cpu()
    asked = torch.tensor(list(clients) if clients is not None else range(len(counts)), dtype=torch.int64)
    owners = torch.repeat_interleave(asked, counts[asked])
    first = (counts[asked].cumsum(0) - counts[asked]).repeat_interleave(counts[asked])
    places = torch.arange(len(owners)) - first + starts[owners]
    placed = places.to(population.inputs.device)
    yield from zip(torch.split(owners, _ROWS), torch.split(placed, _ROWS), strict=True)
