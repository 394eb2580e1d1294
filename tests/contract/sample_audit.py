"""Audits of methods that protect samples: what a client's own messages give away, against what its account was charged.

As in `audit.py` each one plays rounds as a black box and raises AssertionError where the box does not keep its promise.
What the box is fed with makes its inside visible: a client that takes part alone (the mean is its own message), samples
without a gradient (what is sent is noise), samples that mark coordinates of their own with gradients far above the clip
(what is sent tells who was in the batches, and how much each of them may move), and noise that is too small to matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from scipy import stats
from torch import Tensor, nn

import cloister as cl
from cloister.client.population import Population
from cloister.core import Method, MethodState
from cloister.data import Task
from cloister.engine import Loop
from cloister.privacy.budgets import Budget
from cloister.privacy.events import Event, FixedSizeGaussian, PoissonGaussian
from cloister.privacy.ledger import Ledger
from cloister.random.streams import Streams
from cloister.round import Outcome
from cloister.round.bind import Federation
from cloister.server.optimizers import sgd
from conftest import federation

Play = Callable[..., Outcome]
ENGINE = Loop()
# In batches of 4: twice a rate of 1/10, with batches that are empty now and then and a last batch that is not full; one
# sample more than a batch, where 4/5 is not 1/2; and fewer than a batch, so that everybody is in every batch.
SIZES = (39, 40, 5, 3)
ODD = 2  # the client for whom the rate of a pass is far from that of a batch
CERTAIN = 3  # the client whose batches hold all it has
BLOCK = 3  # coordinates of the input that a sample has for itself
WIDTH = BLOCK * max(SIZES)
NOISES = (1.3, 0.8, 2.1, 1.0)  # every client has its own
NOISELESS = 1e-12
ALARM = 5e-5
ADDING = sgd()  # one for all audits: what an engine compiled for a method with it serves the next round


class Twice(nn.Module):
    """Two tensors that see the same. There is no bias, so that without inputs there is no gradient.

    They start from zero, where every answer is as likely and no gradient is small.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 2, bias=False)
        self.second = nn.Linear(WIDTH, 2, bias=False)
        for weight in self.parameters():
            nn.init.zeros_(weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) + self.second(x)


def audited(method: Method, **more: Any) -> tuple[Federation, Tensor]:
    """A federation for audits: samples that mark coordinates of their own, clients with noise of their own."""
    inputs = torch.zeros(sum(SIZES), WIDTH, dtype=torch.float64)
    for row, number in enumerate(number for size in SIZES for number in range(size)):
        inputs[row, BLOCK * number : BLOCK * (number + 1)] = 10.0
    counts = torch.tensor(SIZES)
    people = Population(inputs, torch.arange(sum(SIZES)) % 2, counts.cumsum(0) - counts, counts)
    task = Task("marks", people, inputs[:2], people.labels[:2], 2, Twice)
    fed, w = federation(method, task=task, model=Twice(), **more)
    return replace(fed, multipliers=NOISES), w


def with_inputs(fed: Federation, inputs: Tensor) -> Federation:
    return replace(fed, population=replace(fed.population, inputs=inputs.to(fed.population.inputs)))


def silent(fed: Federation) -> Federation:
    """The same, where no sample has a gradient."""
    return with_inputs(fed, torch.zeros_like(fed.population.inputs))


def noiseless(fed: Federation) -> Federation:
    return replace(fed, multipliers=(NOISELESS,) * len(SIZES))


@dataclass(frozen=True)
class Priced:
    """What a client's account was charged for a round, in words that can be compared with what was sent."""

    event: Event
    steps: int
    samples: int

    @property
    def sampling_rate(self) -> float:
        return (
            self.event.sampling_rate
            if isinstance(self.event, PoissonGaussian)
            else self.event.size / self.event.population
        )

    @property
    def batch_size(self) -> float:
        """The expected size of a batch."""
        return self.sampling_rate * self.samples

    def noise(self, fed: Federation) -> float:
        """The noise multiplier of gradients, if the rest of what was paid is for the query beside them."""
        query = query_of(fed)
        return self.event.noise_multiplier * (math.sqrt(1 + query**-2) if query else 1.0)

    def weights(self, fed: Federation) -> Tensor:
        """How often the gradient of each step is in the message."""
        momentum = optimizer_of(fed).get("momentum", 0.0)
        return torch.tensor([sum(momentum**later for later in range(self.steps - s)) for s in range(self.steps)])


def optimizer_of(fed: Federation) -> dict[str, Any]:
    return fed.method.local.settings["optimizer"]


def threshold_of(fed: Federation) -> dict[str, Any]:
    return fed.method.local.settings["threshold"]


def query_of(fed: Federation) -> float | None:
    """The noise of the query behind the threshold, as a multiple of the gradient's."""
    return {"fixed": None, "as_written": 1.0}.get(threshold_of(fed)["name"], threshold_of(fed).get("query"))


def active_of(fed: Federation, size: int) -> int:
    share = fed.method.local.settings["active"]
    return size if share is None else round(share * size)


def alone(fed: Federation, client: int) -> Federation:
    """The same, where only one client ever takes part, and the server just adds."""
    only = replace(cl.full(), sample=lambda streams, round, population: torch.tensor([client]))
    return replace(fed, cohort=only, method=replace(fed.method, server=ADDING))


def upload(
    play: Play, fed: Federation, w: Tensor, client: int, round: int, state: MethodState
) -> tuple[Tensor, MethodState]:
    """What a client sends in a round, and what is kept."""
    outcome = play(alone(fed, client), Ledger.create(None, "audit", {}), ENGINE, round, w, state)
    return (outcome.w - w).cpu(), outcome.state


def price(play: Play, fed: Federation, w: Tensor, client: int) -> Priced:
    ledger = Ledger.create(None, "audit", {})
    play(alone(fed, client), ledger, ENGINE, 1, w, fed.method.init(w))
    assert [entry.unit for entry in ledger.entries] == [f"sample of client {client}"], "its own account pays"
    return Priced(ledger.entries[0].event, ledger.entries[0].count, SIZES[client])


def clip_before(fed: Federation, state: MethodState, client: int) -> float:
    """To what a gradient may be clipped in the first step of a round: known before it begins."""
    kept = state.clients.get("threshold")
    following = threshold_of(fed).get("start") if kept is None else float(kept[client])
    return threshold_of(fed).get("clip_norm", following)


def sums(play: Play, fed: Federation, w: Tensor, client: int, round: int, paid: Priced) -> Tensor:
    """The noisy sums of a round's steps (added up by their weights) in multiples of the clip, if all is as was priced.

    Adam hides the scale of gradients from the message, but not from what it keeps (one step, from the start).
    """
    state = fed.method.init(w)
    message, after = upload(play, fed, w, client, round, state)
    if optimizer_of(fed)["name"] == "adam":
        assert paid.steps == 1
        gradient = after.clients["mean"][client].cpu() / (1 - optimizer_of(fed)["beta1"])
    else:
        gradient = -message / optimizer_of(fed)["lr"]
    return gradient * paid.batch_size * active_of(fed, len(w)) / len(w) / clip_before(fed, state, client)


def audit_noise(play: Play, fed: Federation, w: Tensor, rounds: int = 8) -> None:
    """Every step of every client carries fresh Gaussian noise of the scale that its account was charged for.

    Also one whose batch is empty. Where a part of the coordinates is active, it has all the noise.
    """
    dumb, active = silent(fed), active_of(fed, len(w))
    found = []
    for client in range(len(SIZES)):
        paid = price(play, dumb, w, client)
        when = [*range(2, rounds + 1), _round_with_an_empty_lot(play, fed, w, client, paid)]
        drawn = torch.stack([sums(play, dumb, w, client, round, paid) for round in when])
        assert ((drawn != 0).sum(1) == active).all(), "noise on every active coordinate, and on no other"
        expected = paid.noise(fed) * float(paid.weights(fed).norm())
        found.append(drawn / drawn.norm(dim=1, keepdim=True))
        cosines = (torch.cat(found) @ found[-1].T).abs()
        cosines[torch.arange(rounds) - rounds, torch.arange(rounds)] = 0
        assert cosines.max() < 6 / math.sqrt(active), "clients and rounds have noise of their own"
        values = drawn[drawn != 0] / expected
        tail = stats.chi2.cdf(float((values**2).sum()), len(values))
        assert ALARM < tail < 1 - ALARM, f"the noise has {float(values.square().mean()) ** 0.5:.3f} times its scale"
        assert stats.kstest(values.numpy(), "norm").pvalue > ALARM, "the noise is Gaussian"


def _round_with_an_empty_lot(play: Play, fed: Federation, w: Tensor, client: int, paid: Priced) -> int:
    """Where a round has one batch that may be empty; otherwise the first round."""
    if paid.steps > 1 or paid.sampling_rate == 1 or isinstance(paid.event, FixedSizeGaussian):
        return 1
    later = range(100, 180)
    return next((round for round in later if not inclusions(play, fed, w, client, [round], paid).round().any()), 1)


def inclusions(play: Play, fed: Federation, w: Tensor, client: int, rounds: Sequence[int], paid: Priced) -> Tensor:
    """[rounds, samples]: how often each sample was in a batch, the steps weighted as they count in the message."""
    found = []
    for round in rounds:
        total = sums(play, noiseless(fed), w, client, round, replace_noise(paid))
        blocks = total.view(4, WIDTH)[:, : BLOCK * SIZES[client]].reshape(4, -1, BLOCK)
        if fed.method.local.settings["clipping"] == "norm":
            found.append(blocks.square().sum((0, 2)).sqrt())
        else:  # each coordinate of a sample is at its limit: the whole clip if all were
            found.append(blocks.abs().amax((0, 2)) * math.sqrt(active_of(fed, len(w))))
    return torch.stack(found)


def replace_noise(paid: Priced) -> Priced:
    return replace(paid, event=replace(paid.event, noise_multiplier=NOISELESS))


def audit_sensitivity(play: Play, fed: Federation, w: Tensor) -> None:
    """A sample moves the sum of a step by the clip at most, which was known before its batch was drawn."""
    for client in range(len(SIZES)):
        paid = price(play, fed, w, client)
        most = paid.weights(fed)
        there = inclusions(play, fed, w, client, [1, 2, 3, 4], paid)
        assert there.max() <= float(most.sum()) * (1 + 1e-6), f"a sample moves {there.max() / most.sum():.2f} clips"
        assert there.max() > 0, "somebody is there"
        if float(most.max()) == 1:  # whoever was in a batch is there by a whole clip, whoever else was in it
            assert (there - there.round()).abs().max() < 1e-6, "what a sample moves depends on no other"
        if client == CERTAIN:
            assert (there / most.sum() - 1).abs().max() < 1e-6, "what a sample moves is the clip"
    _audit_any_samples(play, fed, w)


def _audit_any_samples(play: Play, fed: Federation, w: Tensor) -> None:
    """Samples of any size that all overlap: silencing one moves the sum by no more than the clip."""
    inputs = torch.randn(fed.population.inputs.shape, generator=torch.Generator().manual_seed(2), dtype=w.dtype)
    inputs *= 10.0 ** torch.linspace(-3, 3, len(inputs), dtype=w.dtype)[:, None]
    paid = replace_noise(price(play, fed, w, CERTAIN))
    if paid.steps > 1:  # what a step does to the next is another matter
        return
    dense, first = noiseless(with_inputs(fed, inputs)), sum(SIZES[:CERTAIN])
    whole = sums(play, dense, w, CERTAIN, 1, paid)
    for row in range(first, first + SIZES[CERTAIN]):
        fewer = inputs.clone()
        fewer[row] = 0
        moved = float((whole - sums(play, with_inputs(dense, fewer), w, CERTAIN, 1, paid)).norm())
        assert 0 < moved <= 1 + 1e-6, f"a sample moves the sum by {moved:.2f} clips"


def audit_batches(play: Play, fed: Federation, w: Tensor) -> None:
    """Batches are drawn as they were priced: by independent coins of one rate, or of one size and uniformly."""
    found = []
    for client in (0, 1, ODD):
        paid = price(play, fed, w, client)
        rounds = 60 if client == ODD else 30 if paid.steps < 10 else 10
        weights, there = paid.weights(fed).double(), inclusions(play, fed, w, client, range(rounds), paid).double()
        mean, spread = (
            paid.sampling_rate * float(weights.sum()),
            paid.sampling_rate * (1 - paid.sampling_rate) * float(weights.square().sum()),
        )
        differ = ((there[1:] - there[:-1]).abs() > 1e-3).any(1)
        assert differ.double().mean() > 0.7, "rounds have batches of their own"
        unsure = max(float(there.mean(1).std()), math.sqrt(spread / paid.samples)) / math.sqrt(rounds)
        ratio = float(there.mean()) / mean
        assert abs(ratio - 1) * mean < 4.5 * unsure, f"samples join at {ratio:.2f} times the rate"
        tails = float(((there - mean) ** 4).mean()) / spread**2
        unsure = spread * math.sqrt(max(tails - 1, 0.1) / there.numel())
        assert abs(float((there - mean).square().mean()) - spread) < 4.5 * unsure, "steps have batches of their own"
        sizes = there.sum(1)
        if isinstance(paid.event, FixedSizeGaussian):
            ratio = float((sizes / (paid.event.size * weights.sum()) - 1).abs().max())
            assert ratio < 1e-6, "batches have their fixed size"
        else:
            ratio = float(((sizes - paid.samples * mean) ** 2).sum()) / (paid.samples * spread)
            assert ALARM < stats.chi2.cdf(ratio, rounds) < 1 - ALARM, "sizes of Poisson batches vary as coins do"
        often = (there.mean(0) - mean).abs().max() / math.sqrt(spread / rounds)
        assert often < 6, f"every sample joins as often, and one by {often:.1f} deviations more or less"
        found.append(there[:, : SIZES[0]] - mean)
        if client == 1:
            together = float((found[0] * found[1]).mean() / (found[0].std() * found[1].std()))
            assert abs(together) < 5 / math.sqrt(found[0].numel()), "clients have batches of their own"


class Witness(Ledger):
    """A ledger that tells when it was charged."""

    story: list[Any]

    def charge_each(self, *args: Any, **kwargs: Any) -> dict[str, str]:
        refused = super().charge_each(*args, **kwargs)
        self.story.append("paid")
        return refused


@dataclass(frozen=True)
class Watched(Streams):
    """Streams that tell whose batches and noise are drawn: whoever computes needs them."""

    story: Any = None

    def protective_uniform(self, count: int, purpose: str, *position: int) -> Tensor:
        self.story.append((purpose, *position[:2]))
        return super().protective_uniform(count, purpose, *position)

    def protective_integers(self, count: int, below: int, purpose: str, *position: int) -> Tensor:
        self.story.append((purpose, *position[:2]))
        return super().protective_integers(count, below, purpose, *position)

    def protective_normal(self, like: Tensor, purpose: str, *position: int) -> Tensor:
        self.story.append((purpose, *position[:2]))
        return super().protective_normal(like, purpose, *position)

    def protective_words(self, count: int, purpose: str, *position: int) -> Tensor:
        self.story.append((purpose, *position[:2]))
        return super().protective_words(count, purpose, *position)


def audit_payment(play: Play, fed: Federation, w: Tensor) -> None:
    """Every member pays before anybody computes, in every round; who cannot pay does nothing and is not counted."""
    story: list[Any] = []
    streams = Watched(fed.streams.seed, run=fed.streams.run, story=story)
    watched = replace(fed, streams=streams, method=replace(fed.method, server=sgd()))
    ledger = Witness.create(None, "audit", {})
    ledger.story, state, costs = story, fed.method.init(w), [0.0]
    for round in (1, 2):
        story.clear()
        state = play(watched, ledger, ENGINE, round, w, state).state
        drawn = {who for what, *who in (s for s in story if s != "paid") for who in [tuple(who)]}
        assert story[0] == "paid", "who computes has paid"
        assert story.count("paid") == 1, "a round is paid for once"
        assert drawn == {(round, client) for client in range(len(SIZES))}, "everybody computes"
        costs.append(ledger.epsilon("sample of client 0", 1e-5, "rdp"))
    assert costs[2] > costs[1] > 0, "what was lost in the first round stays lost"
    everything = [(f"sample of client {c}", r) for r in (1, 2) for c in range(len(SIZES))]
    assert sorted((e.unit, e.round) for e in ledger.entries) == sorted(everything), "everybody pays in every round"
    poor = Witness.create(None, "audit", {"sample of client 1": Budget(1e-6, 1e-9, order=2)})
    poor.story = story
    story.clear()
    outcome = play(watched, poor, ENGINE, 1, w, fed.method.init(w))
    rest = [client for client in range(len(SIZES)) if client != 1]
    assert {s[2] for s in story if s != "paid"} == set(rest), "a refused client computes nothing"
    assert {e.unit for e in poor.entries} == {f"sample of client {c}" for c in rest}, "only who pays is charged"
    assert (outcome.cohort_size, outcome.dropped) == (len(rest), 1), "who was refused is not counted"
    others = [upload(play, fed, w, client, 1, fed.method.init(w))[0] for client in rest]
    weights = [SIZES[client] if fed.method.transform.name == "size_weights" else 1 for client in rest]
    mean = sum(n * one for n, one in zip(weights, others, strict=True)) / sum(weights)
    assert torch.allclose(outcome.w - w, mean, rtol=1e-9, atol=1e-12), "the mean is over those who took part"


def audit_price(play: Play, fed: Federation, w: Tensor) -> None:
    """The account is charged for as many steps as were taken, and for both queries of each."""
    for client, size in enumerate(SIZES):
        paid, query = price(play, fed, w, client), query_of(fed)
        batch = fed.method.local.settings["batch_size"]
        worth = (NOISES[client] ** -2 + (0 if query is None else (query * NOISES[client]) ** -2)) ** -0.5
        assert abs(paid.event.noise_multiplier / worth - 1) < 1e-12, "all queries of a step are paid for"
        if isinstance(paid.event, FixedSizeGaussian):
            assert (paid.event.size, paid.event.population) == (min(batch, size), size), "the batch's own size"
        else:
            exact = fed.method.local.settings.get("poisson_rate") == "exact"
            rate = min(1.0, batch / size) if exact else 1 / math.ceil(size / batch)
            assert paid.event.sampling_rate == rate, "the rate at which samples join"
        settings = fed.method.local.settings
        passes = settings["local_epochs"]
        steps = settings["local_steps"] if passes is None else passes * math.ceil(size / batch)
        assert paid.steps == steps, "every step is paid for"
    if query_of(fed):
        _audit_query(play, fed, w)


def _audit_query(play: Play, fed: Federation, w: Tensor, rounds: int = 50) -> None:
    """What the query behind a threshold answers has noise of its own scale: seen where samples have no gradient."""
    about, start = threshold_of(fed), threshold_of(fed)["start"]
    noise, batch_size, dumb = NOISES[CERTAIN], SIZES[CERTAIN], silent(fed)
    seen = []
    for round in range(1, rounds + 1):
        state = upload(play, dumb, w, CERTAIN, round, fed.method.init(w))[1]
        seen.append(float(state.clients["threshold"][CERTAIN]))
    if about["name"] == "as_written":
        draws = [value * batch_size / (about["alpha"] * start * noise) for value in seen if value > about["floor"]]
        law = stats.halfnorm(loc=0)
        low, high = about["floor"] * batch_size / (about["alpha"] * start * noise), math.inf
    elif about["name"] == "repaired":
        unit = about["alpha"] * about["query"] * about["norm_bound"] * noise / batch_size
        draws = [value / unit for value in seen if about["floor"] < value < about["norm_bound"]]
        law, low, high = stats.norm(), about["floor"] / unit, about["norm_bound"] / unit
    else:
        given = [about["share"] - math.log(value / start) / about["lr"] for value in seen]
        unit = about["query"] / 2 * noise / batch_size
        draws = [(value - 1) / unit for value in given if 1e-9 < value < 1 - 1e-9]
        law, low, high = stats.norm(), -1 / unit, 0.0
    inside = law.cdf(high) - law.cdf(low)
    assert stats.binomtest(len(draws), rounds, inside).pvalue > ALARM, "the query has its noise"
    levels = [(law.cdf(value) - law.cdf(low)) / inside for value in draws]
    assert stats.kstest(levels, "uniform").pvalue > ALARM, "the query has its noise"


AUDITS = {
    "noise": audit_noise,
    "sensitivity": audit_sensitivity,
    "batches": audit_batches,
    "payment": audit_payment,
    "price": audit_price,
}
