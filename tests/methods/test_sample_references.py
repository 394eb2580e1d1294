"""PFL, Fed-SPA, DP-Fed, DP-FL and Adap DP-FL once more, from their papers: sample by sample, in plain loops.

As in `references.py`, nothing of the library computes anything here. Taken from it are facts that are its to choose:
who is in a batch, which coordinates are active, and standard normal draws (their scale is the reference's own).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from references import CLASSES, CLIENTS, NET, SIZES, D, close, data_of, engines, federated, flat, gradient, named
from torch import Tensor

import cloister as cl
from cloister.engine import Loop
from cloister.privacy.budgets import Budget
from cloister.privacy.ledger import Ledger
from cloister.round import run_round
from cloister.round.answer import RoundPlan
from cloister.round.bind import Federation
from conftest import plan_of, prepared, work_of_one

Z, BATCH = 0.6, 3
DIGITS = cl.data.digits(clients=40)

# ---- facts of a run that are the library's to choose ------------------------------------------------------------


def own_plan(fed: Federation, round: int, client: int) -> RoundPlan:
    return plan_of(fed, round, torch.zeros(D).double(), torch.tensor([client]))


def batches_of(fed: Federation, round: int, client: int) -> list[list[int]]:
    plan = own_plan(fed, round, client)
    (drawn,) = plan.drawn(plan.clients, 1).batches
    return [samples[real].tolist() for samples, real in zip(drawn.samples[0], drawn.mask[0], strict=True)]


def normals(fed: Federation, round: int, client: int) -> list[Tensor]:
    """Standard normal draws, a row for each step; where a threshold follows, one more for its query."""
    plain = replace(fed, multipliers=(1.0,) * len(SIZES))
    plan = own_plan(plain, round, client)
    noise = plan.noise(plan.clients, 1)
    return [noise.at(step)[0].clone() for step in range(len(batches_of(fed, round, client)))]


def active_of(fed: Federation, round: int, client: int) -> Tensor:
    return work_of_one(fed, round, torch.zeros(D).double(), client).start["active"][0]


# ---- a private step ---------------------------------------------------------------------------------------------


def gradients(fed: Federation, client: int, w: Tensor, expected_size: list[int]) -> list[Tensor]:
    """Of every sample of a batch by itself."""
    inputs, labels = data_of(fed, client)
    return [flat(gradient(named(w), (inputs[[i]], labels[[i]]))) for i in expected_size]


def clip_norm(g: Tensor, to: float) -> Tensor:
    return g / max(1.0, float(g.norm()) / to)


def pieces(client: int) -> int:
    return math.ceil(SIZES[client] / BATCH)


def expected_batch(client: int) -> float:
    return SIZES[client] / pieces(client)


Update = Callable[[int, int, Tensor], Tensor]
"""(round, client with data, model) -> update"""


def mean_of(update: Update, round: int, w: Tensor, members: list[int]) -> Tensor:
    """Over all who take part; who has no data has no update."""
    total = torch.zeros_like(w)
    for client in members:
        if SIZES[client]:
            total = total + update(round, client, w)
    return total / len(members)


def check(fed: Federation, w: Tensor, models: list[Tensor], budgets: dict[str, Budget] | None = None) -> None:
    """The library's models after every round, by both engines."""
    for engine in engines():
        found, state, ledger = w, fed.method.init(w), Ledger.create(None, "test", budgets or {})
        for round, expected in enumerate(models, start=1):
            outcome = run_round(fed, ledger, engine, round, found, state)
            found, state = outcome.w, outcome.state
            close(found, expected)


def members_of(fed: Federation, round: int) -> list[int]:
    return fed.cohort.sample(fed.streams, round, len(SIZES)).tolist()


# ---- PFL and DP-Fed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epochs", [2, [1, 3, 2]], ids=str)
@pytest.mark.parametrize("epoch", ["pass", "batch"])
def test_pfl_is_dp_sgd_with_momentum_and_a_mean(epoch, epochs):
    """With E epochs in every round, or E_1, E_2, E_3 as in Algorithm 1's input."""
    lr, bound, momentum, decay, slower = 0.3, 0.4, 0.5, 0.01, 0.9
    more = {"weight_decay": decay, "lr_decay": slower, "noise_multiplier": Z}
    made = cl.methods.pfl(bound, lr, BATCH, epochs, epoch, momentum, **more)
    fed, w, _ = federated(made, cl.cyclic(5))

    def update(round: int, client: int, start: Tensor) -> Tensor:
        w, velocity = start, torch.zeros_like(start)
        local = 2 if epochs == 2 else {1: 1, 2: 3, 3: 2}[round]
        steps = local * pieces(client) if epoch == "pass" else local
        batch_sampling, noise = batches_of(fed, round, client), normals(fed, round, client)
        assert len(batch_sampling) == steps
        for s in range(steps):
            total = Z * bound * noise[s]
            for g in gradients(fed, client, w, batch_sampling[s]):
                total = total + clip_norm(g, bound)
            velocity = momentum * velocity + (total / expected_batch(client) + decay * w)
            w = w - lr * slower ** (round - 1) * velocity
        return w - start

    models = [w]
    for round in (1, 2, 3):
        models.append(models[-1] + mean_of(update, round, models[-1], members_of(fed, round)))
    check(fed, w, models[1:])


@pytest.mark.parametrize(
    ("batch_sampling", "rate"), [("poisson", "pass"), ("poisson", "exact"), ("fixed_size", "pass")]
)
def test_dp_fed_is_dp_sgd_and_a_mean(batch_sampling, rate):
    """Divided by the expected batch: n / ceil(n / L), or L (or n, if there are fewer)."""
    bound, lr = 0.4, 0.5
    made = cl.methods.dp_fed(
        bound, lr, BATCH, local_steps=3, batch_sampling=batch_sampling, poisson_rate=rate, noise_multiplier=Z
    )
    fed, w, _ = federated(made, cl.fixed_size(6))

    def update(round: int, client: int, start: Tensor) -> Tensor:
        w, noise = start, normals(fed, round, client)
        full = batch_sampling == "fixed_size" or rate == "exact"
        size = min(BATCH, SIZES[client]) if full else expected_batch(client)
        for s, expected_size in enumerate(batches_of(fed, round, client)):
            assert batch_sampling == "poisson" or len(set(expected_size)) == size
            total = sum((clip_norm(g, bound) for g in gradients(fed, client, w, expected_size)), Z * bound * noise[s])
            w = w - lr * total / size
        return w - start

    models = [w]
    for round in (1, 2, 3):
        models.append(models[-1] + mean_of(update, round, models[-1], members_of(fed, round)))
    check(fed, w, models[1:])


# ---- Fed-SPA ----------------------------------------------------------------------------------------------------

KEEP, K = 0.3, 15  # of 50


@pytest.mark.parametrize("way", ["norm", "coordinate", "quantile"])
def test_fed_spa_trains_a_part_and_the_server_adapts(way):
    bound, lr, b1, b2, tau, server_lr = 0.4, 0.2, 0.8, 0.95, 0.02, 0.1
    made = cl.methods.fed_spa(
        bound,
        KEEP,
        lr,
        BATCH,
        local_steps=3,
        clipping="coordinate" if way == "coordinate" else "norm",
        bound="quantile" if way == "quantile" else "public",
        quantile=0.6,
        clip_lr=0.3,
        query_noise=2.0,
        noise_multiplier=Z,
        server=cl.server.adam(server_lr, b1, b2, tau),
    )
    fed, w, _ = federated(made)
    p = K / D
    thresholds = dict.fromkeys(CLIENTS, math.sqrt(p) * bound)

    def update(round: int, client: int, start: Tensor) -> Tensor:
        w, noise, omega = start, normals(fed, round, client), active_of(fed, round, client)
        assert sorted(omega.unique().tolist()) == [0, 1]
        assert omega.sum() == K
        for s, expected_size in enumerate(batches_of(fed, round, client)):
            found = [g * omega for g in gradients(fed, client, w, expected_size)]
            to = thresholds[client]
            if way == "coordinate":
                found_sum = sum((g.clamp(-bound / D**0.5, bound / D**0.5) for g in found), torch.zeros_like(w))
            else:
                found_sum = sum((clip_norm(g, to) for g in found), torch.zeros_like(w))
            w = w - lr * (found_sum + Z * to * noise[s][:D] * omega) / expected_batch(client) / p
            if way == "quantile":
                inside = sum(0.5 if float(g.norm()) <= to else -0.5 for g in found) + 2.0 * Z / 2 * float(noise[s][D])
                share = min(max(inside / expected_batch(client) + 0.5, 0.0), 1.0)
                thresholds[client] = to * math.exp(-0.3 * (share - 0.6))
        assert ((w - start) * (1 - omega) == 0).all()
        return w - start

    u, v, models = torch.zeros_like(w), torch.full_like(w, tau**2), [w]
    for round in (1, 2, 3):
        u = b1 * u + (1 - b1) * mean_of(update, round, models[-1], list(CLIENTS))
        v = b2 * v + (1 - b2) * u * u
        models.append(models[-1] + server_lr * u / (torch.sqrt(v) + tau))
    check(fed, w, models[1:])


def test_the_active_part_is_drawn_uniformly_for_every_client_and_round():
    fed, _, _ = federated(cl.methods.fed_spa(1.0, KEEP, local_steps=1, noise_multiplier=Z))
    masks = torch.stack([active_of(fed, round, client) for round in range(1, 61) for client in (0, 1, 2, 4, 5, 6, 7)])
    assert (masks.sum(1) == K).all()
    assert len(masks.unique(dim=0)) == len(masks)
    counts, expected = masks.sum(0), len(masks) * KEEP
    assert float(((counts - expected) ** 2).sum()) / (expected * (1 - KEEP)) < 50 + 5 * math.sqrt(100)


@pytest.mark.parametrize(("keep_fraction", "numbers"), [(0.05, 33), (0.4, 260), (1.0, 650)])
def test_a_fed_spa_agent_uploads_its_active_part_alone(keep_fraction, numbers):
    """4 bytes each; of 650 numbers, a twentieth is 32.5."""
    made = cl.methods.fed_spa(0.5, keep_fraction, local_steps=1, noise_multiplier=2.0)
    assert prepared(made, DIGITS).description.upload_bytes == 4 * numbers


# ---- Adap DP-FL -------------------------------------------------------------------------------------------------


@dataclass
class Adaptive:
    """A client of Adap DP-FL: its own threshold, and torch's Adam, which lives on from round to round."""

    kind: str
    size: float  # the expected batch
    threshold: float
    w: Tensor = field(default_factory=lambda: torch.zeros(D, dtype=torch.float64))

    def __post_init__(self) -> None:
        self.adam = torch.optim.Adam([self.w], lr=0.05)

    def step(self, found: list[Tensor], noise: Tensor, sigma: float) -> None:
        norms, old = [float(g.norm()) for g in found], self.threshold
        total = sum((clip_norm(g, old) for g in found), torch.zeros_like(self.w))
        self.w.grad = (total + sigma * old * noise[:D]) / self.size
        self.adam.step()
        assert len(noise) == D + (self.kind != "fixed"), "a fixed threshold asks nothing"
        extra = sigma * float(noise[-1])
        if self.kind == "fixed":
            pass
        elif self.kind == "as_written":
            self.threshold = max(abs(0.9 * (sum(min(n, old) for n in norms) + old * extra) / self.size), 0.01)
        elif self.kind == "repaired":
            broadcast = 0.9 * (sum(min(n, 2.0) for n in norms) + 3.0 * 2.0 * extra) / self.size
            self.threshold = min(max(broadcast, 0.01), 2.0)
        else:
            inside = sum(0.5 if n <= old else -0.5 for n in norms) + 3.0 / 2 * extra
            share = min(max(inside / self.size + 0.5, 0.0), 1.0)
            self.threshold = min(max(old * math.exp(-0.3 * (share - 0.4)), 0.01), 2.0)


def pool() -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(9)
    labels = torch.randint(0, CLASSES, (30,), generator=random)
    return torch.randn(30, 6, generator=random, dtype=torch.float64) + labels[:, None], labels


def validation_loss(w: Tensor) -> float:
    return float(F.cross_entropy(torch.func.functional_call(NET, named(w), (pool()[0],)), pool()[1]))


def falls(losses: list[float]) -> bool:
    """J(w_0) = J(w_1) = J(w_2) = infinity; three falls in a row up to the newest."""
    known = [math.inf if t < 3 else j for t, j in enumerate(losses)]
    return len(known) > 3 and known[-4] > known[-3] > known[-2] > known[-1]


QUERY = {"norm_bound": 2.0, "alpha_clip": 0.9, "quantile": 0.4, "clip_lr": 0.3, "query_noise": 3.0}


@pytest.mark.parametrize("kind", ["repaired", "as_written", "quantile", "fixed"])
def test_adap_dp_fl_follows_norms_and_losses(kind):
    """Poor clients drop out before they compute, and the mean is over the others. Noise falls with the loss.

    A fixed threshold pays for no query: the budgets below are to the bit those of the gradients alone.
    """
    sigma, decay, rounds = 0.3, 0.5, 6
    made = cl.methods.adap_dp_fl(
        0.7,
        kind,
        **({} if kind == "fixed" else QUERY),
        noise_decay=decay,
        lr=0.05,
        batch_size=BATCH,
        local_steps=2,
        noise_multiplier=sigma,
    )
    fed, w, _ = federated(made, public_samples=pool())
    people = {c: Adaptive(kind, expected_batch(c), 0.7) for c in CLIENTS if SIZES[c]}
    gone = {4: 3, 7: 6}  # by client: the first round that it cannot pay

    def update(round: int, client: int, start: Tensor) -> Tensor:
        me = people[client]
        me.w.data.copy_(start)
        for expected_size, noise in zip(batches_of(fed, round, client), normals(fed, round, client), strict=True):
            me.step(gradients(fed, client, me.w.detach().clone(), expected_size), noise, sigma)
        return me.w.detach() - start

    models, losses, sigmas = [w], [math.inf], []
    for round in range(1, rounds + 1):
        sigmas.append(sigma)
        context = [c for c in CLIENTS if round < gone.get(c, rounds + 1)]
        models.append(models[-1] + mean_of(update, round, models[-1], context))
        losses.append(validation_loss(models[-1]))
        sigma *= decay if falls(losses) else 1.0
    assert sigmas[4] == 0.3
    assert sigmas[5] == 0.15, "the first decay comes after J(w_5)"
    query = {"as_written": 1.0, "fixed": math.inf}.get(kind, 3.0)
    check(fed, w, models[1:], {f"sample of client {c}": enough_for(sigmas[: gone[c] - 1], query, c) for c in gone})


def enough_for(sigmas: list[float], query: float, client: int) -> Budget:
    """A budget of Renyi order 2 that pays for rounds with such noise, two steps each, and for no more.

    At order 2 a step costs ln(1 + q^2 (exp(1/sigma^2) - 1)).
    """
    q, total = 1 / pieces(client), 0.0
    for sigma in sigmas:
        worth = sigma / math.sqrt(1 + 1 / query**2)
        total += 2 * math.log1p(q**2 * math.expm1(worth**-2))
    return Budget(total + math.log(0.5) - math.log(1e-5 * 2) + 1e-6, 1e-5, order=2)


ETA = 0.05
SCHEDULES = {
    "constant": ({}, lambda t: ETA),
    "cosine": (
        {"lr_schedule": "cosine", "lr_final": 0.1, "lr_rounds": 5, "lr_warmup": 1},
        lambda t: ETA / 2 if t == 1 else ETA * (0.1 + 0.9 * (1 + math.cos(math.pi * (t - 2) / 4)) / 2),
    ),
    "step": ({"lr_schedule": "step", "lr_final": 0.5, "lr_rounds": 2}, lambda t: ETA * 0.5 ** ((t - 1) // 2)),
}
BASELINES = {
    "dp_fl": lambda **more: cl.methods.dp_fl(0.7, ETA, BATCH, **more),
    "repaired": lambda **more: cl.methods.adap_dp_fl(0.7, **QUERY, lr=ETA, batch_size=BATCH, noise_decay=1.0, **more),
}


@pytest.mark.parametrize(("name", "schedule"), [("dp_fl", "constant"), ("dp_fl", "cosine"), ("repaired", "step")])
def test_adam_at_the_learning_rate_of_the_round(name, schedule):
    """DP-FL and Adap DP-FL at eta_t, with torch's Adam, whose moments and count of steps each client keeps."""
    keys, eta = SCHEDULES[schedule]
    fed, w, _ = federated(BASELINES[name](local_steps=2, noise_multiplier=Z, **keys))
    kind = "fixed" if name == "dp_fl" else name
    people = {c: Adaptive(kind, expected_batch(c), 0.7) for c in CLIENTS if SIZES[c]}

    def update(round: int, client: int, start: Tensor) -> Tensor:
        me = people[client]
        me.w.data.copy_(start)
        me.adam.param_groups[0]["lr"] = eta(round)
        for members, noise in zip(batches_of(fed, round, client), normals(fed, round, client), strict=True):
            me.step(gradients(fed, client, me.w.detach().clone(), members), noise, Z)
        return me.w.detach() - start

    models = [w]
    for round in (1, 2, 3, 4, 5):
        models.append(models[-1] + mean_of(update, round, models[-1], list(CLIENTS)))
    check(fed, w, models[1:])
    assert fed.public_samples is None


@pytest.mark.parametrize("seed", range(6))
def test_noise_falls_when_the_loss_has_fallen_three_times_in_a_row(seed):
    """The server's rule by itself, over losses that go up and down."""
    random = torch.Generator().manual_seed(seed)
    losses = [math.inf, *(5 - 0.1 * torch.arange(40) + 0.25 * torch.randn(40, generator=random)).tolist()]
    server = cl.server.decay_on_loss(cl.server.sgd(), 0.9)
    objective = SimpleNamespace(loss=lambda w, batch: w[0])
    context = SimpleNamespace(public_samples=(torch.zeros(2, 1), torch.zeros(2)), objective=objective)
    w = torch.zeros(1, dtype=torch.float64)
    state, sigma, changes = server.init(w), 1.0, []
    for t in range(1, len(losses)):
        w, state = server.update(w, losses[t] - w, state, context)
        sigma *= 0.9 if falls(losses[: t + 1]) else 1.0
        changes += [t] if falls(losses[: t + 1]) else []
        assert float(state["noise"]) == pytest.approx(sigma, rel=1e-12)
    assert len(changes) > 3
    assert min(changes) >= 5


def test_the_printed_threshold_goes_to_its_floor_and_the_repaired_one_stays():
    """One client with twelve samples, over a hundred and fifty steps, with the floor out of the way."""
    only = replace(cl.full(), sample=lambda streams, round, population: torch.tensor([4]))
    seen = {}
    for kind in ("as_written", "repaired", "quantile"):
        how = {"floor": 1e-12, "norm_bound": 3.0, "query_noise": 0.5, "noise_decay": 1.0, "noise_multiplier": 0.8}
        made = cl.methods.adap_dp_fl(1.0, kind, batch_size=BATCH, lr=1e-4, local_steps=30, **how)
        fed, w, _ = federated(made, only)
        state, ledger, seen[kind] = fed.method.init(w), Ledger.create(None, "test", {}), []
        for round in range(1, 6):
            state = run_round(fed, ledger, Loop(), round, w, state).state
            seen[kind].append(float(state.clients["threshold"][4]))
    assert seen["as_written"][0] > 1e-4
    assert seen["as_written"][-1] < 1e-9
    assert min(seen["quantile"]) > 0.1
    assert sorted(seen["repaired"])[2] > 0.1, "an answer that is all noise touches the floor, and the next comes back"
