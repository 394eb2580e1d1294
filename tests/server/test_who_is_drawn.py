"""Who takes part and who is in a batch: everybody as often as was priced, the first and the last included, always anew.

Draws of the system (secure) are unseeded. Each question is asked at a probability of false alarm below 1e-12 (an exact
tail, seven and a half deviations for coins, widened where they are rare) or below 1e-9 (eight deviations, of overlaps
that are skewed), and a test asks at most 300 of the former and 7 of the latter: each fails without cause below 1e-8.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from scipy import stats
from torch import Tensor

import cloister as cl
from cloister.client.poisson_batches import draw_batches
from cloister.core import Batching
from cloister.privacy.events import Event, FixedSizeGaussian, Gaussian, PoissonGaussian
from cloister.random.streams import Streams

RARE = 1e-12
SOURCES = [pytest.param(Streams(5), id="seeded"), pytest.param(Streams(5, secure=True), id="secure")]


def rate_of(event: Event) -> float:
    """With what probability a unit takes part, if it is as priced."""
    if isinstance(event, FixedSizeGaussian):
        return event.size / event.population
    return event.sampling_rate if isinstance(event, PoissonGaussian) else 1.0


def expect_drawn_as(event: Event, there: Tensor, lags: list[int]) -> None:
    """[draws, units]: each unit at the priced rate, sizes as priced, and draws that know nothing of one another."""
    draws, units = there.shape
    sampling_rate = rate_of(event)
    for unit, times in enumerate(there.sum(0).tolist()):
        low, high = stats.binom.cdf(times, draws, sampling_rate), stats.binom.sf(times - 1, draws, sampling_rate)
        assert min(low, high) > RARE, (
            f"unit {unit} of {units} is drawn {times / draws:.3f} of the time, not {sampling_rate:.3f}"
        )
    sizes = there.sum(1)
    if isinstance(event, FixedSizeGaussian):
        assert (sizes == event.size).all(), "the size is the one that was priced"
        spread = event.size**2 * (units - event.size) ** 2 / (units**2 * max(units - 1, 1))
    else:
        total = int(sizes.sum())
        low, high = (
            stats.binom.cdf(total, draws * units, sampling_rate),
            stats.binom.sf(total - 1, draws * units, sampling_rate),
        )
        assert min(low, high) > RARE, f"units join at {total / draws / units / sampling_rate:.3f} times the rate"
        spread = units * sampling_rate**2 * (1 - sampling_rate) ** 2
        _expect_coins(there, sampling_rate)
    if 0 < sampling_rate < 1:
        centred = there.double() - sampling_rate
        for lag in lags:
            overlap = float((centred[lag:] * centred[:-lag]).sum())
            unsure = math.sqrt((draws - lag) * spread)
            assert abs(overlap) < 8 * unsure + 1e-9, f"draws that are {lag} apart have to do with each other"


def _expect_coins(there: Tensor, sampling_rate: float) -> None:
    """Units join independently of one another: neighbors, the first and the last, and all together."""
    draws, units = there.shape
    if sampling_rate == 1 or units == 1:
        return
    centred = (there.double() - sampling_rate) / math.sqrt(sampling_rate * (1 - sampling_rate))
    pairs = (centred[:, 1:] * centred[:, :-1]).sum(0)
    ends = float((centred[:, 0] * centred[:, -1]).sum())
    heavy = 1 + 1 / (sampling_rate * (1 - sampling_rate) * math.sqrt(draws))  # of rare coins, products have heavy tails
    assert max(float(pairs.abs().max()), abs(ends)) < 7.5 * heavy * math.sqrt(draws), "neighbors join together"
    variance = float((centred.sum(1) ** 2).mean()) / units
    tails = 2 + (1 / (sampling_rate * (1 - sampling_rate)) - 6) / units
    assert abs(variance - 1) < 7.5 * heavy * math.sqrt(tails / draws), "sizes vary as those of coins do"


SHAPES = [(65, 64), (64, 64), (63, 64), (1, 1), (1, 64), (2, 1), (3, 2), (5, 4), (9, 8), (33, 8), (129, 64)]


def lots_drawn(streams: Streams, batching: Batching, size: int, draws: int, client: int = 3) -> Tensor:
    """[draws, samples]: who is in the batches of so many steps, over as many rounds as that takes."""
    rounds = -(-draws // batching.steps_for(size))
    found = []
    for round in range(1, rounds + 1):
        batches = draw_batches(streams, round, 0, batching, [client], [size], 1)
        there = torch.zeros(batches.samples.shape[1], size + 1, dtype=torch.bool)
        there.scatter_(1, torch.where(batches.mask[0], batches.samples[0], size), True)
        assert int(batches.mask.sum()) == int(there[:, :size].sum()), "nobody is in a batch twice"
        found.append(there[:, :size])
    return torch.cat(found)


@pytest.mark.parametrize("streams", SOURCES)
@pytest.mark.parametrize("kind", ["poisson", "fixed_size"])
@pytest.mark.parametrize(("size", "batch"), SHAPES)
def test_every_sample_is_in_a_batch_as_often_as_is_priced(size, batch, kind, streams):
    batching = Batching(batch, local_epochs=3, batch_sampling=kind)
    there = lots_drawn(streams, batching, size, draws=1500)
    one = batching.steps_for(size) // 3
    expect_drawn_as(batching.event(1.0, size), there, sorted({1, 2, 3, one, 2 * one, 3 * one, 6 * one}))
    assert batching.expected(size) == pytest.approx(rate_of(batching.event(1.0, size)) * size)


@pytest.mark.parametrize("streams", SOURCES)
@pytest.mark.parametrize(("size", "batch"), [(126, 78), (129, 64), (65, 64), (5, 4), (3, 2), (64, 64), (1, 64)])
def test_the_exact_rate_is_drawn_as_it_is_priced_and_no_other_is(size, batch, streams):
    """q = L / |D|: with 126 samples in batches of 78 it is 0.62, where a pass of two steps has 0.5."""
    exact = Batching(batch, local_epochs=50, batch_sampling="poisson", poisson_rate="exact")
    of_a_pass = replace(exact, poisson_rate="pass")
    priced = exact.event(1.0, size)
    assert priced == PoissonGaussian(1.0, min(1.0, batch / size))
    assert exact.expected(size) == pytest.approx(min(batch, size), rel=1e-12)
    assert exact.steps_for(size) == of_a_pass.steps_for(size) == 50 * math.ceil(size / batch)
    there = lots_drawn(streams, exact, size, draws=1500)
    expect_drawn_as(priced, there, [1, 2, 3])
    if size > batch:
        with pytest.raises(AssertionError, match="of the time, not"):
            expect_drawn_as(of_a_pass.event(1.0, size), there, [1])
        with pytest.raises(AssertionError, match="of the time, not"):
            expect_drawn_as(priced, lots_drawn(streams, of_a_pass, size, draws=1500), [1])


@pytest.mark.parametrize("kind", ["poisson", "fixed_size"])
@pytest.mark.parametrize("how", [{"local_steps": 7}, {"local_epochs": 2}], ids=str)
def test_batches_of_clients_rounds_phases_and_runs_have_nothing_to_do_with_one_another(kind, how):
    size, batching = 65, Batching(16, batch_sampling=kind, **how)
    sampling_rate = rate_of(batching.event(1.0, size))

    def seen(streams: Streams, round: int, phase: int, client: int) -> Tensor:
        batches = draw_batches(streams, round, phase, batching, [client], [size], 1)
        there = torch.zeros(batches.samples.shape[1], size + 1)
        return (
            there.scatter_(1, torch.where(batches.mask[0], batches.samples[0], size), 1.0)[:, :size].double()
            - sampling_rate
        )

    places = [(r, p, c) for r in (1, 2, 3, 11) for p in (0, 1) for c in (0, 1, 2, 11)]
    rows = [seen(Streams(1, run=run), *place).flatten() for run in ("", "b") for place in places]
    together = torch.corrcoef(torch.stack(rows)) - torch.eye(len(rows))
    assert together.abs().max() < 7 / math.sqrt(len(rows[0]))


@pytest.mark.parametrize("kind", ["poisson", "fixed_size"])
def test_a_clients_batches_are_the_same_in_any_company_and_layout(kind):
    """However many places there are, and whoever else is there."""
    batching, sizes = Batching(4, local_epochs=2, batch_sampling=kind), [65, 1, 9, 4, 5]
    apart = [draw_batches(Streams(2), 3, 0, batching, [c], [n], 1) for c, n in enumerate(sizes)]
    for places in (5, 8):
        batches = draw_batches(Streams(2), 3, 0, batching, list(range(5)), sizes, places)
        assert not batches.mask[5:].any()
        for client, alone in enumerate(apart):
            taken = batching.steps_for(sizes[client])
            assert int(batches.steps[client]) == taken
            assert not batches.mask[client, taken:].any()
            assert torch.equal(batches.keys[client, :taken], alone.keys[0, :taken])
            assert batches.round_keys[client] == alone.round_keys[0]
            for step in range(taken):
                mine, theirs = batches.mask[client, step], alone.mask[0, step]
                assert torch.equal(batches.samples[client, step][mine], alone.samples[0, step][theirs])
    keys = [key for batches in apart for key in (*batches.keys[0].tolist(), *batches.round_keys.tolist())]
    assert len(set(keys)) == len(keys), "every step and every round of every client has a key of its own"


def test_the_key_of_a_round_is_drawn_apart_from_those_of_its_steps(monkeypatch):
    """A message tells which coordinates a client trained, and so may tell the key of the round."""
    draw = Streams.protective_bits

    def known(streams: Streams, count: int, device: torch.device, purpose: str, *place: int) -> Tensor:
        return draw(streams, count, device, purpose, *(place if purpose == "round key" else ()))

    monkeypatch.setattr(Streams, "protective_bits", known)
    found = [draw_batches(Streams(2), round, 0, Batching(4, local_steps=3), [0], [9], 1) for round in range(1, 20)]
    assert len({tuple(batches.keys[0].tolist()) for batches in found}) == 1
    assert len({int(batches.round_keys[0]) for batches in found}) == len(found)


COHORTS = {
    "poisson 1/2": (cl.poisson(0.5), 65),
    "poisson 0.98": (cl.poisson(0.98), 65),
    "poisson 0.03": (cl.poisson(0.03), 129),
    "poisson 1": (cl.poisson(1.0), 9),
    "fixed 1": (cl.fixed_size(1), 5),
    "fixed 3": (cl.fixed_size(3), 65),
    "fixed 32": (cl.fixed_size(32), 65),
    "fixed 33": (cl.fixed_size(33), 65),
    "fixed 64": (cl.fixed_size(64), 65),
    "fixed all": (cl.fixed_size(7), 7),
    "full": (cl.full(), 8),
}


@pytest.mark.parametrize("streams", SOURCES)
@pytest.mark.parametrize("name", COHORTS)
def test_every_client_takes_part_as_often_as_is_priced(name, streams):
    cohort, clients = COHORTS[name]
    there = torch.zeros(1500, clients, dtype=torch.bool)
    for round in range(1500):
        there[round, cohort.sample(streams, round + 1, clients)] = True
    expect_drawn_as(cohort.event(1.0, clients), there, [1, 2, 3, 10])
    assert cohort.expected(clients) == pytest.approx(rate_of(cohort.event(1.0, clients)) * clients)


@pytest.mark.parametrize(("size", "clients"), [(1, 1), (1, 5), (3, 8), (4, 8), (5, 8), (7, 8), (8, 8), (64, 65)])
def test_in_a_cycle_everybody_comes_once(size, clients):
    cohort = cl.cyclic(size)
    cycle = cohort.min_separation(clients)
    assert cohort.event(1.0, clients) == Gaussian(1.0)
    rounds = [cohort.sample(Streams(0), number, clients).tolist() for number in range(1, 3 * cycle + 1)]
    for first in range(2 * cycle + 1):
        window = [client for members in rounds[first : first + cycle] for client in members]
        assert sorted(window) == list(range(clients)), "any cycle of rounds has everybody once"
    for length in range(1, 3 * cycle + 1):
        most = max(sum(client in members for members in rounds[:length]) for client in range(clients))
        assert cohort.releases(length, clients) >= most
        assert cohort.participations(length, clients) == most


def spoiled(how: str, there: Tensor) -> Tensor:
    random = torch.Generator().manual_seed(0)
    if how == "the last one never":
        there[:, -1] = False
    if how == "the first one never":
        there[:, 0] = False
    if how == "somebody twice as often":
        there[:, 7] |= torch.rand(len(there), generator=random) < 0.3
    if how == "another rate":
        there |= torch.rand(there.shape, generator=random) < 0.03
    if how == "again after a pass":
        there.view(150, 2, 5, 65)[:, 1] = there.view(150, 2, 5, 65)[:, 0].clone()
    if how == "neighbors together":
        there[:, 2] = there[:, 3]
    if how == "half of each batch again":
        there.view(750, 2, 65)[:, 1, ::2] = there.view(750, 2, 65)[:, 0, ::2].clone()
    return there


WRONG = [
    "the last one never",
    "the first one never",
    "somebody twice as often",
    "another rate",
    "again after a pass",
    "neighbors together",
    "half of each batch again",
]


@pytest.mark.parametrize("how", ["as it is", *WRONG])
def test_the_tests_above_notice(how):
    there = spoiled(how, torch.rand(1500, 65, generator=torch.Generator().manual_seed(1)) < 0.3)
    if how == "as it is":
        expect_drawn_as(PoissonGaussian(1.0, 0.3), there, [1, 2, 5])
        return
    with pytest.raises(AssertionError):
        expect_drawn_as(PoissonGaussian(1.0, 0.3), there, [1, 2, 5])


@pytest.mark.parametrize("batch_sampling", ["poisson", "fixed_size"])
def test_steps_of_a_run_have_one_width_where_another_is_another_program(batch_sampling):
    """Whoever is in a chunk, and however large they are; what is drawn stays the same."""
    batching = Batching(20, local_steps=30, batch_sampling=batch_sampling)
    widths = set()
    for round, sizes in enumerate(([100, 300, 7], [300], [60, 61], [9, 2, 3, 5]), start=1):
        clients = list(range(len(sizes)))
        plain = draw_batches(Streams(2), round, 0, batching, clients, sizes, 6)
        alike = draw_batches(Streams(2), round, 0, batching, clients, sizes, 6, of_all=300)
        widths |= set(alike.widths)
        narrow = plain.samples.shape[2]
        assert torch.equal(alike.samples[:, :, :narrow], plain.samples)
        assert torch.equal(alike.mask[:, :, :narrow], plain.mask)
        assert not alike.mask[:, :, narrow:].any()
    assert len(widths) == 1
