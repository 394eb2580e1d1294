"""Privacy bugs of sample-level methods, planted one at a time: for each, the audit that is for it must raise the alarm.

The broken rounds are a second, independent writing of a round of private steps, in which single things can be spoiled.
With nothing spoiled it equals the real round and passes every audit, so that what is caught is the bug. Taken from the
library are facts that are its to choose: who is in a batch, which coordinates are active, and standard normal draws.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import cloister as cl
from cloister.core import MethodState
from cloister.privacy.events import FixedSizeGaussian, PoissonGaussian
from cloister.privacy.ledger import Charge, Ledger
from cloister.privacy.unit import sample_account
from cloister.random.streams import fold
from cloister.round import Outcome, run_round
from cloister.round.answer import RoundPlan
from cloister.round.bind import Federation
from conftest import plan_of
from contract.catalogue import AUDITED_STEPS
from contract.sample_audit import AUDITS, ENGINE, SIZES, audited


def gradients(w: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
    """Of single samples, by hand: both tensors of the model see the same, so both have the same gradient."""
    first, second = w.view(2, 2, -1)
    wrong = torch.softmax(inputs @ (first + second).T, 1) - F.one_hot(labels, 2)
    one = (wrong[:, :, None] * inputs[:, None, :]).flatten(1)
    return torch.cat([one, one], 1)


def steps_of(fed: Federation, size: int) -> tuple[int, float]:
    """How many steps a client takes, and how many samples are expected in each."""
    about = fed.method.local.settings
    pieces = math.ceil(size / about["batch_size"])
    steps = about["local_steps"] if about["local_epochs"] is None else about["local_epochs"] * pieces
    full = about["batch_sampling"] == "fixed_size" or about.get("poisson_rate") == "exact"
    return steps, min(about["batch_size"], size) if full else size / pieces


def charge(fed: Federation, client: int, bug: str) -> Charge:
    size, about = int(fed.population.counts[client]), fed.method.local.settings
    noise, query = fed.noise_of(client), asks(fed)
    worth = noise if not query or bug == "a query that nobody pays" else (noise**-2 + (query * noise) ** -2) ** -0.5
    steps, own_batch = steps_of(fed, size)
    if bug == "one step of several is paid for":
        steps = 1
    if about["batch_sampling"] == "fixed_size" and bug != "fixed batches priced as Poisson":
        return Charge(FixedSizeGaussian(worth, int(own_batch), size), steps)
    of_a_pass = 1 / math.ceil(size / about["batch_size"])
    exact = about.get("poisson_rate") == "exact" and bug != "the rate of a pass is priced"
    return Charge(PoissonGaussian(worth, min(1.0, about["batch_size"] / size) if exact else of_a_pass), steps)


def asks(fed: Federation) -> float:
    about = fed.method.local.settings["threshold"]
    return {"fixed": 0.0, "as_written": 1.0}.get(about["name"], about.get("query", 0.0))


def own_plan(fed: Federation, round: int, client: int) -> RoundPlan:
    return plan_of(fed, round, torch.zeros(fed.objective.layout.size).double(), torch.tensor([client]))


def drawn_batches(fed: Federation, round: int, client: int) -> list[Tensor]:
    """The library's draws: who is in the batch of each step."""
    plan = own_plan(fed, round, client)
    (drawn,) = plan.drawn(plan.clients, 1).batches
    return [samples[real] for samples, real in zip(drawn.samples[0], drawn.mask[0], strict=True)]


def drawn_noise(fed: Federation, round: int, client: int) -> list[Tensor]:
    """The library's draws: standard normal numbers for each step."""
    plan = own_plan(replace(fed, multipliers=(1.0,) * len(SIZES)), round, client)
    noise = plan.noise(plan.clients, 1)
    return [noise.at(step)[0] for step in range(steps_of(fed, int(fed.population.counts[client]))[0])]


def batches_of(fed: Federation, round: int, client: int, bug: str) -> list[Tensor]:
    size = int(fed.population.counts[client])
    batching = fed.method.local.batching
    who = 0 if bug == "the same batches for every client" else client
    when = 1 if bug == "the same batches in every round" else round
    batches = [
        own_batch[own_batch < size] for own_batch in (drawn_batches(fed, when, who) * size)[: steps_of(fed, size)[0]]
    ]
    if bug == "shuffled batches priced as Poisson":
        order = torch.randperm(size, generator=torch.Generator().manual_seed(round * 100 + client))
        pieces = list(order.split(batching.batch_size))
        batches = [pieces[step % len(pieces)] for step in range(len(batches))]
    if bug == "batches of batch over size":
        batches = [
            _coins(min(1.0, batching.batch_size / size), size, round, client, step) for step in range(len(batches))
        ]
    if bug == "batches of a pass":
        batches = [_coins(1 / math.ceil(size / batching.batch_size), size, round, client, step) for step in range(1)]
    if bug == "the last sample never":
        batches = [own_batch[own_batch < size - 1] for own_batch in batches]
    if bug == "the same batches in every pass":
        batches = batches[: len(batches) // 2] * 2
    if bug == "the same batch for every step":
        batches = batches[:1] * len(batches)
    if bug == "a sample joins at twice the rate":
        more = drawn_batches(fed, round + 1000, client)
        batches = [torch.cat(both).unique() for both in zip(batches, more, strict=True)]
    return batches


def _coins(sampling_rate: float, size: int, *place: int) -> Tensor:
    seed = fold(torch.tensor(sum(number * 1000**power for power, number in enumerate(place))), 1)
    random = torch.Generator().manual_seed(int(seed) & (2**63 - 1))
    return (torch.rand(size, generator=random, dtype=torch.float64) < sampling_rate).nonzero().flatten()


def clipped(g: Tensor, clip_norm: float, limit: float | None, bug: str) -> Tensor:
    """The sum of the gradients, each within its clip."""
    if bug == "the clip of the batch mean":
        mean = g.mean(0) if len(g) else g.sum(0)
        return len(g) * mean * min(1.0, clip_norm / max(float(mean.norm()), 1e-30))
    if bug == "not clipped":
        return g.sum(0)
    if limit is not None:
        return g.clamp(-limit, limit).sum(0)
    if bug == "clipped per tensor, priced as global":
        halves = g.view(len(g), 2, g.shape[1] // 2)
        return (halves * (clip_norm / halves.norm(dim=2, keepdim=True)).clamp(max=1).nan_to_num(1.0)).flatten(1).sum(0)
    return (g * (clip_norm / g.norm(dim=1, keepdim=True)).clamp(max=1).nan_to_num(1.0)).sum(0)


def followed(about: dict, now: float, norms: Tensor, noise: float, own_batch: float) -> float:
    if about["name"] == "repaired":
        given = float(norms.clamp(max=about["norm_bound"]).sum()) + about["query"] * about["norm_bound"] * noise
        return min(max(about["alpha"] * given / own_batch, about["floor"]), about["norm_bound"])
    if about["name"] == "as_written":
        given = float(norms.clamp(max=now).sum()) + now * noise
        return max(abs(about["alpha"] * given / own_batch), about["floor"])
    given = (float(((norms <= now).double() - 0.5).sum()) + about["query"] / 2 * noise) / own_batch + 0.5
    new = now * math.exp(-about["lr"] * (min(max(given, 0.0), 1.0) - about["share"]))
    return min(max(new, about["floor"]), about["most"])


def trained(fed: Federation, round: int, client: int, start: Tensor, state: dict, bug: str) -> tuple[Tensor, dict]:
    """What a client has after its steps, and what it keeps."""
    about, size = fed.method.local.settings, int(fed.population.counts[client])
    threshold, optimizer, d = about["threshold"], about["optimizer"], len(start)
    own_batch = steps_of(fed, size)[1]
    key = fed.streams.protective_bits(1, start.device, "round key", round, client, 0)[0]
    part = torch.ones_like(start) if about["active"] is None else fed.method.local.own(start, key)["active"]
    limit = None if about["clipping"] == "norm" else threshold["clip_norm"] / math.sqrt(int(part.sum()))
    who = 0 if bug == "the same noise for every client" else client
    when = 1 if bug == "the same noise in every round" else round
    draws = drawn_noise(fed, when, who)
    noise = min(fed.multipliers) if bug == "everybody has the least noise of all" else fed.noise_of(client)
    w, velocity = start.clone(), torch.zeros_like(start)
    clip_norm = float(state["threshold"]) if asks(fed) else threshold["clip_norm"]
    for step, batch_now in enumerate(batches_of(fed, round, client, bug)):
        rows = batch_now + fed.population.starts[client]
        g = gradients(w, fed.population.inputs[rows], fed.population.labels[rows]) * part
        again = {"the same noise in every step": 0, "noise again in the next block": step % 2}.get(bug, step)
        drawn = noise * draws[again]
        norms, query_noise = g.norm(dim=1), float(drawn[d]) if len(drawn) > d else 0.0
        if bug == "a query without noise":
            query_noise = 0.0
        after = followed(threshold, clip_norm, norms, query_noise, own_batch) if asks(fed) else clip_norm
        used = after if bug == "the threshold of the current batch" else clip_norm
        total = clipped(g, used, limit, bug)
        shaken = spoilt_noise(used * drawn[:d] * part, total, own_batch, len(rows), bug)
        divisor = max(len(rows), 1) if bug == "divided by the batch's actual size" else own_batch
        if bug == "divided by the batch of a pass":
            divisor = size / math.ceil(size / about["batch_size"])
        gradient = (total + shaken) / divisor * (d / int(part.sum()))
        if optimizer["name"] == "adam":
            state["steps"] = state["steps"] + 1
            state["mean"] = 0.9 * state["mean"] + 0.1 * gradient
            state["square"] = 0.999 * state["square"] + 0.001 * gradient**2
            sized = (state["square"] / (1 - 0.999 ** state["steps"])).sqrt() + 1e-8
            w = w - optimizer["lr"] * state["mean"] / (1 - 0.9 ** state["steps"]) / sized
        else:
            raw = g.sum(0) / own_batch if bug == "momentum of unclipped gradients" else gradient
            step_by = optimizer["momentum"] * velocity + gradient
            velocity = optimizer["momentum"] * velocity + raw
            w = w - optimizer["lr"] * step_by
        clip_norm = after
        if asks(fed):
            state["threshold"] = torch.tensor([clip_norm], dtype=w.dtype)
        if bug == "active coordinates drawn anew in every step" and about["active"] is not None:
            part = fed.method.local.own(start, fold(key, step))["active"]
    return w, state


def spoilt_noise(noise: Tensor, total: Tensor, own_batch: float, there: int, bug: str) -> Tensor:
    if bug == "no noise" or (bug == "no noise where the batch is empty" and not there):
        return torch.zeros_like(noise)
    if bug == "noise only where the gradient is not zero":
        return noise * (total != 0)
    factors = {
        "noise divided by the root of the batch": 1 / math.sqrt(own_batch),
        "noise of the average instead of the sum": 1 / own_batch,
        "noise for half the clip": 0.5,
        "noise for half the clip, by Adam": 0.5,
    }
    return noise * factors.get(bug, 1.0)


def weight(fed: Federation, round: int, client: int, bug: str) -> int:
    if fed.method.transform.name != "size_weights" or bug == "weights that are forgotten":
        return 1
    if bug == "weights by who was in the batches":  # which are secret
        return sum(map(len, drawn_batches(fed, round, client)))
    return int(fed.population.counts[client])


def broken_round(bug: str):
    def play(fed: Federation, ledger: Ledger, engine, round: int, w: Tensor, state: MethodState) -> Outcome:
        members = fed.cohort.sample(fed.streams, round, fed.population.clients).tolist()
        books = Ledger.create(None, "its own", ledger.budgets) if bug == "a fresh ledger in every round" else ledger
        charges = {sample_account(c): charge(fed, c, bug) for c in members}

        def pay() -> dict[str, str]:
            return books.charge_each(charges, round=round, repeatable=True)

        refused = {} if bug == "charged after computing" else pay()
        local, models = fed.method.local, {}
        begun = {name: local.init(w)[name].repeat(len(SIZES), 1) for name in local.client_state}
        kept = {**begun, **state.clients}
        kept = {name: table.clone() for name, table in kept.items()}
        for client in members:
            if bug == "refused clients compute as well" or sample_account(client) not in refused:
                own = {name: table[client].clone() for name, table in kept.items()}
                models[client], own = trained(fed, round, client, w, own, bug)
                for name, value in own.items():
                    kept[name][client] = value
        if bug == "charged after computing":
            refused = pay()
        models = {c: model for c, model in models.items() if sample_account(c) not in refused}
        weights = {c: weight(fed, round, c, bug) for c in (members if bug == "who was refused counts" else models)}
        count = sum(weights.values())
        mean = sum((weights[c] * (model - w) for c, model in models.items()), torch.zeros_like(w)) / max(count, 1)
        w, server = fed.method.server.update(w, mean, state.server, fed.context(w, {}))
        state = replace(state, server=server, clients=kept)
        return Outcome(w, state, len(models), 0, len(members) - len(models))

    return play


MARK = "noise on every active coordinate"
SCALE = "times its scale"
# By bug: the method in which it is planted, the audit that is there for it, and what it says.
BUGS = {
    "shuffled batches priced as Poisson": ("pfl", "batches", "steps have batches of their own"),
    "the same batch for every step": ("pfl batch", "batches", "steps have batches of their own"),
    "batches of batch over size": ("dp_fed", "batches", "times the rate"),
    "batches of a pass": ("dp_fed exact", "batches", "times the rate"),
    "the rate of a pass is priced": ("dp_fed exact", "price", "the rate at which samples join"),
    "divided by the batch of a pass": ("dp_fed exact", "sensitivity", "a sample moves"),
    "the last sample never": ("dp_fed", "batches", "times the rate|every sample joins as often"),
    "the same batches in every pass": ("pfl passes", "batches", "steps have batches of their own"),
    "a sample joins at twice the rate": ("dp_fed", "batches", "times the rate"),
    "the same batches in every round": ("dp_fed", "batches", "rounds have batches of their own"),
    "the same batches for every client": ("dp_fed", "batches", "clients have batches of their own"),
    "fixed batches priced as Poisson": ("fed_spa as_published", "batches", "sizes of Poisson batches"),
    "divided by the batch's actual size": ("dp_fed", "sensitivity", "a sample moves"),
    "the clip of the batch mean": ("dp_fed", "sensitivity", "a sample moves"),
    "clipped per tensor, priced as global": ("dp_fed", "sensitivity", "a sample moves 1.41 clips"),
    "not clipped": ("fed_spa", "sensitivity", "a sample moves"),
    "the threshold of the current batch": ("fed_spa quantile", "sensitivity", "a sample moves"),
    "momentum of unclipped gradients": ("pfl", "sensitivity", "a sample moves"),
    "no noise": ("dp_fed", "noise", MARK),
    "no noise where the batch is empty": ("dp_fed", "noise", MARK),
    "noise only where the gradient is not zero": ("dp_fed", "noise", MARK),
    "active coordinates drawn anew in every step": ("fed_spa", "noise", MARK),
    "noise divided by the root of the batch": ("pfl", "noise", SCALE),
    "noise of the average instead of the sum": ("fed_spa", "noise", SCALE),
    "noise for half the clip": ("adap_dp_fl", "noise", SCALE),
    "everybody has the least noise of all": ("dp_fed", "noise", SCALE),
    "the same noise in every step": ("fed_spa", "noise", SCALE),
    "noise again in the next block": ("pfl passes", "noise", SCALE),
    "one step of several is paid for": ("pfl", "noise", SCALE),
    "the same noise for every client": ("dp_fed", "noise", "noise of their own"),
    "the same noise in every round": ("dp_fed", "noise", "noise of their own"),
    "noise for half the clip, by Adam": ("dp_fl", "noise", SCALE),
    "a query that nobody pays": ("adap_dp_fl as_written", "price", "all queries"),
    "a query without noise": ("adap_dp_fl quantile", "price", "the query has its noise"),
    "a fresh ledger in every round": ("dp_fed", "payment", "who computes has paid"),
    "charged after computing": ("dp_fed", "payment", "who computes has paid"),
    "refused clients compute as well": ("dp_fed", "payment", "a refused client computes nothing"),
    "who was refused counts": ("dp_fed", "payment", "the mean is over those who took part"),
    "weights that are forgotten": ("dp_fed weights", "payment", "the mean is over those who took part"),
    "weights by who was in the batches": ("dp_fed weights", "payment", "the mean is over those who took part"),
}


@pytest.mark.parametrize("name", AUDITED_STEPS)
def test_without_a_bug_it_is_the_real_round(name):
    fed, w = audited(AUDITED_STEPS[name])
    inputs = torch.randn(fed.population.inputs.shape, generator=torch.Generator().manual_seed(3)).double()
    fed = replace(fed, population=replace(fed.population, inputs=inputs))
    here, there = (w, fed.method.init(w)), (w, fed.method.init(w))
    for round in (1, 2, 3):
        mine = broken_round("none")(fed, Ledger.create(None, "t", {}), ENGINE, round, *here)
        real = run_round(fed, Ledger.create(None, "t", {}), ENGINE, round, *there)
        torch.testing.assert_close(mine.w, real.w, rtol=1e-9, atol=1e-12)
        here, there = (mine.w, mine.state), (real.w, real.state)


@pytest.mark.parametrize("audit", AUDITS)
@pytest.mark.parametrize("name", ["pfl", "adap_dp_fl as_written"])
def test_without_a_bug_there_is_no_alarm(name, audit):
    AUDITS[audit](broken_round("none"), *audited(AUDITED_STEPS[name]))


@pytest.mark.parametrize("bug", BUGS)
def test_the_bug_is_caught(bug):
    name, audit, alarm = BUGS[bug]
    with pytest.raises(AssertionError, match=alarm):
        AUDITS[audit](broken_round(bug), *audited(AUDITED_STEPS[name]))


def test_a_rule_that_claims_to_be_worth_more_is_caught():
    sound = cl.methods.adap_dp_fl(clip_norm=0.5, batch_size=4, noise_decay=1.0, noise_multiplier=1.3)
    lying = replace(sound.local, private=replace(sound.local.private, worth=lambda noise: noise))
    fed, w = audited(sound)
    with pytest.raises(AssertionError, match="all queries"):
        AUDITS["price"](run_round, replace(fed, method=replace(fed.method, local=lying)), w)
