"""Audits of trust = "sum": what a secure sum of clipped gradients gives away, against what the accounts were charged.

As in `sample_audit.py`, whose federation is used, each audit plays rounds as a black box. What the box releases is read
from the model's step, by the divisor that was declared. One client at a time has samples with gradients, each of which
marks coordinates of its own, far above the clip; or nobody has, and what is released is noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from scipy import stats
from torch import Tensor

from cloister.core import Method
from cloister.engine import Loop
from cloister.privacy.budgets import Budget
from cloister.privacy.events import DiscreteGaussianSum, Event, Gaussian, PoissonGaussian
from cloister.privacy.ledger import Ledger
from cloister.round import Outcome
from cloister.round.bind import Federation
from contract.sample_audit import (
    ADDING,
    ALARM,
    BLOCK,
    CERTAIN,
    ODD,
    SIZES,
    WIDTH,
    Watched,
    Witness,
    silent,
    with_inputs,
)
from contract.sample_audit import audited as with_own_noise

Play = Callable[..., Outcome]
ENGINE = Loop()
NOISE = 1.3


def audited(method: Method) -> tuple[Federation, Tensor]:
    """The federation of `sample_audit.py`, where clients add to one noise, and the server adds what it is given."""
    fed, w = with_own_noise(replace(method, server=ADDING))
    return replace(fed, multipliers=()), w


def rate_of(fed: Federation, client: int) -> float:
    """The rate at which a client's samples shall join, by its own size and the method's settings."""
    about = fed.method.local.settings
    if "sample_rate" in about:
        return about["sample_rate"]
    size, batch = SIZES[client], about["batch_size"]
    return min(1.0, batch / size) if about["poisson_rate"] == "exact" else 1 / math.ceil(size / batch)


def released(play: Play, fed: Federation, w: Tensor, round: int, ledger: Ledger | None = None) -> Tensor:
    """The noisy sum of a round, in multiples of the clip, if it was divided as declared."""
    books = Ledger.create(None, "audit", {}) if ledger is None else ledger
    outcome = play(fed, books, ENGINE, round, w, fed.method.init(w))
    paid = {entry.unit for entry in books.entries if entry.round == round}
    expected = sum(rate_of(fed, c) * size for c, size in enumerate(SIZES) if f"sample of client {c}" in paid)
    part = fed.method.local.settings["active"]
    scaled = 1.0 if part is None else round_half_up(part * len(w)) / len(w)
    return (outcome.w - w) * expected * scaled / fed.method.local.settings["clip_norm"]


def round_half_up(number: float) -> int:
    return math.floor(number + 0.5)


def noiseless(fed: Federation) -> Federation:
    """The same, where shares are zero."""
    quiet = replace(fed.method.mechanism, noise_multiplier=0.0)
    return replace(fed, method=replace(fed.method, mechanism=quiet))


def seen_alone(fed: Federation, client: int) -> Federation:
    """The same, where only the samples of one client have gradients; all take part."""
    first = sum(SIZES[:client])
    inputs = torch.zeros_like(fed.population.inputs)
    inputs[first : first + SIZES[client]] = fed.population.inputs[first : first + SIZES[client]]
    return with_inputs(fed, inputs)


def inclusions(play: Play, fed: Federation, w: Tensor, client: int, rounds: range) -> Tensor:
    """[rounds, samples]: how many clips of each sample of a client are in the sum."""
    quiet, found = noiseless(seen_alone(fed, client)), []
    for round in rounds:
        total = released(play, quiet, w, round)
        blocks = total.view(4, WIDTH)[:, : BLOCK * SIZES[client]].reshape(4, -1, BLOCK)
        found.append(blocks.square().sum((0, 2)).sqrt())
    return torch.stack(found)


def price(play: Play, fed: Federation, w: Tensor) -> dict[str, Event]:
    """What every account is charged in a round: one event."""
    ledger = Ledger.create(None, "audit", {})
    play(fed, ledger, ENGINE, 1, w, fed.method.init(w))
    assert [entry.count for entry in ledger.entries] == [1] * len(SIZES), "one step is charged"
    return {entry.unit: entry.event for entry in ledger.entries}


def expected_width(fed: Federation, event: Event) -> float:
    """The standard deviation of all shares together, in clips, if those of the honest ones are what was charged."""
    honest = fed.method.mechanism.settings["honest_fraction"]
    grid = 1.0
    if isinstance(event, DiscreteGaussianSum):  # the price is in points of the grid, and knows what rounding adds
        grid = event.l2 / (event.l2 - math.sqrt(event.dimension))
    return event.noise_multiplier * grid / math.sqrt(honest)


def audit_noise(play: Play, fed: Federation, w: Tensor, rounds: int = 10, ledger: Ledger | None = None) -> None:
    """A sum carries the noise that was charged, from the shares of the honest members alone: on all that is sent."""
    event = next(iter(price(play, fed, w).values()))
    dumb, part = silent(fed), fed.method.local.settings["active"]
    sent = len(w) if part is None else round_half_up(part * len(w))
    drawn = torch.stack([released(play, dumb, w, round, ledger) for round in range(1, rounds + 1)])
    there = (drawn != 0).sum(1)
    assert (there > 0.99 * sent).all(), "noise on all that is sent"
    assert (there <= sent).all(), "what is sent is the same for everybody"
    alike = drawn / drawn.norm(dim=1, keepdim=True)
    cosines = (alike @ alike.T).abs() - torch.eye(rounds, dtype=w.dtype)
    assert cosines.max() < 6 / math.sqrt(sent), "rounds have noise of their own"
    values = drawn[drawn != 0] / expected_width(fed, event)
    scale = float(values.square().mean()) ** 0.5
    tail = stats.chi2.cdf(float((values**2).sum()), len(values))
    assert ALARM < tail < 1 - ALARM, f"the noise of the honest has {scale:.3f} times its scale"
    assert stats.kstest(values.numpy(), "norm").pvalue > ALARM, "the noise is Gaussian"


def audit_sensitivity(play: Play, fed: Federation, w: Tensor) -> None:
    """A sample moves the sum by the clip or not at all, whoever else is there."""
    coarse = 0.01 if fed.method.mechanism.integer else 1e-6
    for client in range(len(SIZES)):
        there = inclusions(play, fed, w, client, range(1, 4))
        assert there.max() <= 1 + coarse, f"a sample moves {there.max():.2f} clips"
        assert (there - there.round()).abs().max() < coarse, "what a sample moves depends on no other"
        if rate_of(fed, client) == 1:
            assert (there - 1).abs().max() < coarse, "what a sample moves is the clip"
    inputs = torch.randn(fed.population.inputs.shape, generator=torch.Generator().manual_seed(2), dtype=w.dtype)
    inputs *= 10.0 ** torch.linspace(-3, 3, len(inputs), dtype=w.dtype)[:, None]
    dense, row = noiseless(with_inputs(fed, inputs)), sum(SIZES[:CERTAIN])
    whole = released(play, dense, w, 1)
    for sample in range(row, row + SIZES[CERTAIN]):
        fewer = inputs.clone()
        fewer[sample] = 0
        moved = float((whole - released(play, with_inputs(dense, fewer), w, 1)).norm())
        assert moved <= 1 + coarse, f"a sample moves the sum by {moved:.2f} clips"
        assert moved > 0 or rate_of(fed, CERTAIN) < 1, "who is certain to be there is there"


def audit_batches(play: Play, fed: Federation, w: Tensor, rounds: int = 30) -> None:
    """Every client's samples join at its own rate, by coins of their own in every round."""
    for client in (0, ODD):
        rate, there = rate_of(fed, client), inclusions(play, fed, w, client, range(1, rounds + 1)).round()
        assert rate == 1 or len({tuple(row) for row in there.tolist()}) > rounds / 3, "rounds have batches of their own"
        found = stats.binomtest(int(there.sum()), there.numel(), rate).pvalue
        assert found > ALARM, f"samples join at {float(there.mean()) / rate:.2f} times the rate"
        if rate < 1:
            sizes = there.sum(1)
            spread = float(((sizes - SIZES[client] * rate) ** 2).sum()) / (SIZES[client] * rate * (1 - rate))
            assert ALARM < stats.chi2.cdf(spread, rounds) < 1 - ALARM, "sizes of Poisson batches vary as coins do"


def audit_price(play: Play, fed: Federation, w: Tensor) -> None:
    """Every account is charged for one release at its own client's rate and at the noise of the sum."""
    events, points = price(play, fed, w), fed.method.transform.settings.get("points")
    assert set(events) == {f"sample of client {c}" for c in range(len(SIZES))}, "everybody pays"
    for client in range(len(SIZES)):
        event, rate = events[f"sample of client {client}"], rate_of(fed, client)
        assert abs(event.noise_multiplier / NOISE - 1) < 1e-9, "the noise of the sum is what is charged"
        if isinstance(event, DiscreteGaussianSum):
            most = points * fed.method.local.settings["clip_norm"] + math.sqrt(event.dimension)
            assert event.l2 >= most * (1 - 1e-12), "what rounding adds is paid for"
            assert event.sampling_rate == rate, "the client's own rate"
        elif rate == 1 and isinstance(event, Gaussian):
            continue
        else:
            assert event == PoissonGaussian(event.noise_multiplier, rate), "the client's own rate"


def audit_payment(play: Play, fed: Federation, w: Tensor) -> None:
    """All pay before anybody draws; who cannot draws nothing, and the others' noise makes up for it."""
    story: list = []
    watched = replace(fed, streams=Watched(fed.streams.seed, run=fed.streams.run, story=story))
    poor = Witness.create(None, "audit", {"sample of client 1": Budget(1e-9, 1e-12)})
    poor.story = story
    outcome = play(watched, poor, ENGINE, 1, w, fed.method.init(w))
    assert story[0] == "paid", "who computes has paid"
    assert 1 not in {s[2] for s in story if s != "paid"}, "a refused client computes nothing"
    assert (outcome.cohort_size, outcome.dropped) == (3, 1), "who was refused is not counted"
    audit_noise(play, fed, w, ledger=Ledger.create(None, "audit", {"sample of client 1": Budget(1e-9, 1e-12)}))


AUDITS = {
    "noise": audit_noise,
    "sensitivity": audit_sensitivity,
    "batches": audit_batches,
    "price": audit_price,
    "payment": audit_payment,
}
