"""Audits: what a round really releases, found out from outside, against what the ledger was told.

Each audit plays rounds as a black box and raises AssertionError where the box does not keep its promise. The
contract tests run them on the real round; the mutation tests run them on broken ones, which they must catch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from scipy import stats
from torch import Tensor

from cloister.client.population import Population
from cloister.engine import Vectorized
from cloister.errors import BudgetExceededError
from cloister.privacy.budgets import Budget
from cloister.privacy.events import Event, FixedSizeGaussian, PoissonGaussian, ReleasedSizeGaussian
from cloister.privacy.ledger import Ledger
from cloister.round import Outcome, cohort_total
from cloister.round.bind import Federation
from cloister.server.optimizers import sgd

Play = Callable[..., Outcome]
ENGINE = Vectorized(chunk=1000)


def released(play: Play, fed: Federation, w: Tensor, round: int = 1) -> Tensor:
    """The noisy sum that a round releases: recovered from the model's step, or caught before it is decoded."""
    server = fed.method.server
    plain = fed.method.transform.decode is None and fed.method.average_over == "expected"
    if plain and (server.name, server.settings) == ("sgd", sgd().settings):
        outcome = play(fed, Ledger.create(None, "audit", {}), ENGINE, round, w, fed.method.init(w))
        return ((outcome.w - w) * fed.denominator).cpu()
    caught = []

    def catch(total: Tensor, context: Any, state: Any) -> Any:
        caught.append(total)
        return torch.zeros_like(context.w), state

    watched = replace(fed.method, transform=replace(fed.method.transform, decode=catch), server=sgd())
    play(replace(fed, method=watched), Ledger.create(None, "audit", {}), ENGINE, round, w, watched.init(w))
    return caught[0].double().cpu()


def without_data(fed: Federation, *clients: int) -> Federation:
    """The same federation where some clients have no data (and so, whatever happens, send zero)."""
    people = fed.population
    sizes = people.sizes.clone()
    sizes[list(clients)] = 0
    return replace(fed, population=Population(people.inputs, people.labels, people.starts, sizes))


def only_noise(fed: Federation) -> Federation:
    return without_data(fed, *range(fed.population.clients))


def priced_noise(fed: Federation) -> float:
    """The standard deviation that the ledger believes in: the charged multiplier times the bound."""
    return fed.event.noise_multiplier * fed.sensitivity.l2


def audit_noise(play: Play, fed: Federation, w: Tensor, rounds: int = 200) -> None:
    """The released sum carries, in every coordinate and round, fresh noise of the scale that was priced."""
    silent = only_noise(fed)
    draws = torch.stack([released(play, silent, w, round) for round in range(1, rounds + 1)])
    noisy = (draws != 0).double().mean()  # a discrete noise is zero now and then
    assert noisy == 1 or (noisy > 0.999 and not draws.frac().any()), "noise everywhere"
    statistic = float((draws**2).sum()) / priced_noise(fed) ** 2
    tail = stats.chi2.cdf(statistic, draws.numel())
    assert 5e-5 < tail < 1 - 5e-5, f"the noise has {(statistic / draws.numel()) ** 0.5:.3f} times its scale"
    by_coordinate = draws.var(0) / priced_noise(fed) ** 2
    assert by_coordinate.min() > 0.4, "no coordinate has less noise than the others"
    assert (torch.corrcoef(draws[:20]) - torch.eye(20)).abs().max() < 0.7, "rounds have noise of their own"


def audit_sensitivity(play: Play, fed: Federation, w: Tensor) -> None:
    """Taking any one client's data away moves the sum by no more than the bound that the noise is scaled to."""
    here = released(play, fed, w)
    for client in range(fed.population.clients):
        moved = float((here - released(play, without_data(fed, client), w)).norm())
        assert moved <= fed.sensitivity.l2 * (1 + 1e-6), (
            f"client {client} moves the sum by {moved / fed.sensitivity.l2:.2f} bounds"
        )


def audit_signal(play: Play, fed: Federation, w: Tensor) -> None:
    """Beneath the noise lies the equal-weight sum of wholly clipped updates, over a constant."""
    for round in (1, 2, 3):
        signal = released(play, fed, w, round) - released(play, only_noise(fed), w, round)
        expected = torch.zeros_like(w, device="cpu")
        unclipped = replace(fed, method=replace(fed.method, transform=_identity(), mechanism=_none()))
        for client in fed.cohort.sample(fed.streams, round, fed.population.clients).tolist():
            update, _ = cohort_total(unclipped, ENGINE, round, w, torch.tensor([client]))
            norm = float(update.norm())
            expected += update.cpu() * min(1.0, fed.sensitivity.l2 / norm) if norm else 0.0
        torch.testing.assert_close(signal, expected, rtol=1e-4, atol=1e-9)


def audit_payment(play: Play, fed: Federation, w: Tensor) -> None:
    """The ledger is charged once for a round, before anybody computes; without budget nobody does."""
    story: list[str] = []

    class Witness(Ledger):
        def charge(self, *args: Any, **kwargs: Any) -> None:
            super().charge(*args, **kwargs)
            story.append("paid")

    def spied(*args: Any) -> Any:
        story.append("computed")
        return fed.method.local.init(*args)

    watched = replace(fed, method=replace(fed.method, local=replace(fed.method.local, init=spied)))
    play(watched, Witness.create(None, "audit", {}), ENGINE, 1, w, fed.method.init(w))
    assert story[0] == "paid"
    assert story.count("paid") == 1
    story.clear()
    poor = Witness.create(None, "audit", {fed.method.unit: Budget(1e-6, 1e-9)})
    try:
        play(watched, poor, ENGINE, 1, w, fed.method.init(w))
    except BudgetExceededError:
        assert not story, "a refused round computes nothing"
    else:
        raise AssertionError("a round beyond the budget was run")


def audit_price(play: Play, fed: Federation, w: Tensor) -> None:
    """The event on the ledger is the cohort's own, at the noise that the mechanism has."""
    ledger = Ledger.create(None, "audit", {})
    play(fed, ledger, ENGINE, 1, w, fed.method.init(w))
    (entry,) = ledger.entries
    assert entry.event == fed.event
    if not fed.method.local_only:
        claimed = entry.event.noise_multiplier * fed.sensitivity.l2
        assert claimed <= fed.method.mechanism.noise_multiplier * fed.sensitivity.unit * (1 + 1e-12)
    _audit_cohorts(fed, entry.event)


def _audit_cohorts(fed: Federation, event: Event, rounds: int = 400) -> None:
    """Every client comes as often as is priced, the last one included; cohorts are as large as is priced."""
    clients = fed.population.clients
    there = torch.zeros(rounds, clients, dtype=torch.float64)
    for round in range(1, rounds + 1):
        there[round - 1, fed.cohort.sample(fed.streams, round, clients)] = 1
    sampling_rate = getattr(event, "sampling_rate", 1.0)
    if isinstance(event, FixedSizeGaussian):
        sampling_rate = event.size / event.population
        assert (there.sum(1) == event.size).all(), "cohorts priced by their size have it"
    cycle = fed.cohort.min_separation(clients)
    if cycle > 1:  # one event pays for a whole one
        participations = there[: rounds // cycle * cycle].view(-1, cycle, clients).sum(1)
        assert (participations == 1).all(), "everybody has one turn in a cycle"
        return
    off = (there.mean(0) - sampling_rate).abs().max() / max(
        (sampling_rate * (1 - sampling_rate) / rounds) ** 0.5, 1e-12
    )
    assert off < 6, f"every client comes as often as is priced, and one by {off:.1f} deviations more or less"
    if sampling_rate < 1:
        centred = there - sampling_rate
        overlap = float((centred[1:] * centred[:-1]).sum()) / (
            sampling_rate * (1 - sampling_rate) * (there.numel() - clients) ** 0.5
        )
        assert abs(overlap) < 6, "rounds have cohorts of their own"
    if isinstance(event, (PoissonGaussian, ReleasedSizeGaussian)):
        assert there.sum(1).var() > clients * sampling_rate * (1 - sampling_rate) / 2, (
            "cohorts priced as Poisson have a random size"
        )


AUDITS = {
    "noise": audit_noise,
    "sensitivity": audit_sensitivity,
    "signal": audit_signal,
    "payment": audit_payment,
    "price": audit_price,
}


def _identity() -> Any:
    from cloister.transforms import identity

    return identity()


def _none() -> Any:
    from cloister.mechanisms import none

    return none()
