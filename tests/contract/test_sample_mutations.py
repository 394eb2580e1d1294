"""Privacy bugs of sample-level methods, planted one at a time: for each, the audit that is for it must raise the alarm.

The broken rounds are a second, independent writing of a round of private steps, in which single things can be spoilt.
With nothing spoilt it equals the real round and passes every audit, so that what is caught is the bug. Taken from the
library are facts that are its to choose: who is in a lot, which coordinates are active, and standard normal draws.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import cloister as cl
from cloister.joints import MethodState
from cloister.privacy.events import FixedSizeGaussian, PoissonGaussian
from cloister.privacy.ledger import Charge, Ledger
from cloister.privacy.unit import sample_account
from cloister.round import Outcome, run_round
from cloister.round.answer import RoundPlan
from cloister.round.bind import Federation
from cloister.streams import fold
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
    pieces = math.ceil(size / about["batch"])
    steps = about["steps"] if about["epochs"] is None else about["epochs"] * pieces
    return steps, min(about["batch"], size) if about["lots"] == "fixed" else size / pieces


def bill(fed: Federation, client: int, bug: str) -> Charge:
    size, about = int(fed.population.counts[client]), fed.method.local.settings
    noise, query = fed.noise_of(client), asks(fed)
    worth = noise if not query or bug == "a query that nobody pays" else (noise**-2 + (query * noise) ** -2) ** -0.5
    steps, lot = steps_of(fed, size)
    if bug == "one step of several is paid for":
        steps = 1
    if about["lots"] == "fixed" and bug != "fixed lots priced as Poisson":
        return Charge(FixedSizeGaussian(worth, int(lot), size), steps)
    return Charge(PoissonGaussian(worth, 1 / math.ceil(size / about["batch"])), steps)


def asks(fed: Federation) -> float:
    about = fed.method.local.settings["threshold"]
    return {"fixed": 0.0, "as_written": 1.0}.get(about["name"], about.get("query", 0.0))


def own_plan(fed: Federation, round: int, client: int) -> RoundPlan:
    return plan_of(fed, round, torch.zeros(fed.objective.layout.size).double(), torch.tensor([client]))


def drawn_lots(fed: Federation, round: int, client: int) -> list[Tensor]:
    """The library's draws: who is in the lot of each step."""
    plan = own_plan(fed, round, client)
    (drawn,) = plan.drawn(plan.clients, 1).batches
    return [samples[real] for samples, real in zip(drawn.samples[0], drawn.mask[0], strict=True)]


def drawn_noise(fed: Federation, round: int, client: int) -> list[Tensor]:
    """The library's draws: standard normal numbers for each step."""
    plan = own_plan(replace(fed, multipliers=(1.0,) * len(SIZES)), round, client)
    noise = plan.noise(plan.clients, 1)
    return [noise.at(step)[0] for step in range(steps_of(fed, int(fed.population.counts[client]))[0])]


def lots_of(fed: Federation, round: int, client: int, bug: str) -> list[Tensor]:
    size = int(fed.population.counts[client])
    batching = fed.method.local.batching
    who = 0 if bug == "the same lots for every client" else client
    when = 1 if bug == "the same lots in every round" else round
    lots = [lot[lot < size] for lot in (drawn_lots(fed, when, who) * size)[: steps_of(fed, size)[0]]]
    if bug == "shuffled batches priced as Poisson":
        order = torch.randperm(size, generator=torch.Generator().manual_seed(round * 100 + client))
        pieces = list(order.split(batching.batch))
        lots = [pieces[step % len(pieces)] for step in range(len(lots))]
    if bug == "lots of batch over size":
        lots = [_coins(min(1.0, batching.batch / size), size, round, client, step) for step in range(len(lots))]
    if bug == "the last sample never":
        lots = [lot[lot < size - 1] for lot in lots]
    if bug == "the same lots in every pass":
        lots = lots[: len(lots) // 2] * 2
    if bug == "the same lot for every step":
        lots = lots[:1] * len(lots)
    if bug == "a sample joins at twice the rate":
        more = drawn_lots(fed, round + 1000, client)
        lots = [torch.cat(both).unique() for both in zip(lots, more, strict=True)]
    return lots


def _coins(rate: float, size: int, *place: int) -> Tensor:
    seed = fold(torch.tensor(sum(number * 1000**power for power, number in enumerate(place))), 1)
    random = torch.Generator().manual_seed(int(seed) & (2**63 - 1))
    return (torch.rand(size, generator=random, dtype=torch.float64) < rate).nonzero().flatten()


def clipped(g: Tensor, clip: float, limit: float | None, bug: str) -> Tensor:
    """The sum of the gradients, each within its clip."""
    if bug == "the clip of the batch mean":
        mean = g.mean(0) if len(g) else g.sum(0)
        return len(g) * mean * min(1.0, clip / max(float(mean.norm()), 1e-30))
    if bug == "not clipped":
        return g.sum(0)
    if limit is not None:
        return g.clamp(-limit, limit).sum(0)
    if bug == "clipped per tensor, priced as global":
        halves = g.view(len(g), 2, g.shape[1] // 2)
        return (halves * (clip / halves.norm(dim=2, keepdim=True)).clamp(max=1).nan_to_num(1.0)).flatten(1).sum(0)
    return (g * (clip / g.norm(dim=1, keepdim=True)).clamp(max=1).nan_to_num(1.0)).sum(0)


def followed(about: dict, now: float, norms: Tensor, noise: float, lot: float) -> float:
    if about["name"] == "repaired":
        said = float(norms.clamp(max=about["norm_bound"]).sum()) + about["query"] * about["norm_bound"] * noise
        return min(max(about["alpha"] * said / lot, about["floor"]), about["norm_bound"])
    if about["name"] == "as_written":
        said = float(norms.clamp(max=now).sum()) + now * noise
        return max(abs(about["alpha"] * said / lot), about["floor"])
    said = (float(((norms <= now).double() - 0.5).sum()) + about["query"] / 2 * noise) / lot + 0.5
    new = now * math.exp(-about["lr"] * (min(max(said, 0.0), 1.0) - about["share"]))
    return min(max(new, about["floor"]), about["most"])


def trained(fed: Federation, round: int, client: int, start: Tensor, state: dict, bug: str) -> tuple[Tensor, dict]:
    """What a client has after its steps, and what it keeps."""
    about, size = fed.method.local.settings, int(fed.population.counts[client])
    threshold, optimiser, d = about["threshold"], about["optimiser"], len(start)
    lot = steps_of(fed, size)[1]
    key = fold(fed.streams.protective_bits(1, start.device, "step keys", round, client, 0)[0], -2)
    part = torch.ones_like(start) if about["active"] is None else fed.method.local.own(start, key)["active"]
    limit = None if about["clipping"] == "norm" else threshold["clip"] / math.sqrt(int(part.sum()))
    who = 0 if bug == "the same noise for every client" else client
    when = 1 if bug == "the same noise in every round" else round
    draws = drawn_noise(fed, when, who)
    noise = min(fed.multipliers) if bug == "everybody has the least noise of all" else fed.noise_of(client)
    w, velocity = start.clone(), torch.zeros_like(start)
    clip = float(state["threshold"]) if asks(fed) else threshold["clip"]
    for step, lot_now in enumerate(lots_of(fed, round, client, bug)):
        rows = lot_now + fed.population.starts[client]
        g = gradients(w, fed.population.inputs[rows], fed.population.labels[rows]) * part
        again = {"the same noise in every step": 0, "noise again in the next block": step % 2}.get(bug, step)
        drawn = noise * draws[again]
        norms, query_noise = g.norm(dim=1), float(drawn[d]) if len(drawn) > d else 0.0
        if bug == "a query without noise":
            query_noise = 0.0
        after = followed(threshold, clip, norms, query_noise, lot) if asks(fed) else clip
        used = after if bug == "the threshold of the current lot" else clip
        total = clipped(g, used, limit, bug)
        shaken = spoilt_noise(used * drawn[:d] * part, total, lot, len(rows), bug)
        divisor = max(len(rows), 1) if bug == "divided by the lot's actual size" else lot
        gradient = (total + shaken) / divisor * (d / int(part.sum()))
        if optimiser["name"] == "adam":
            state["steps"] = state["steps"] + 1
            state["mean"] = 0.9 * state["mean"] + 0.1 * gradient
            state["square"] = 0.999 * state["square"] + 0.001 * gradient**2
            sized = (state["square"] / (1 - 0.999 ** state["steps"])).sqrt() + 1e-8
            w = w - optimiser["lr"] * state["mean"] / (1 - 0.9 ** state["steps"]) / sized
        else:
            raw = g.sum(0) / lot if bug == "momentum of unclipped gradients" else gradient
            step_by = optimiser["momentum"] * velocity + gradient
            velocity = optimiser["momentum"] * velocity + raw
            w = w - optimiser["lr"] * step_by
        clip = after
        if asks(fed):
            state["threshold"] = torch.tensor([clip], dtype=w.dtype)
        if bug == "active coordinates drawn anew in every step" and about["active"] is not None:
            part = fed.method.local.own(start, fold(key, step))["active"]
    return w, state


def spoilt_noise(noise: Tensor, total: Tensor, lot: float, there: int, bug: str) -> Tensor:
    if bug == "no noise" or (bug == "no noise where the lot is empty" and not there):
        return torch.zeros_like(noise)
    if bug == "noise only where the gradient is not zero":
        return noise * (total != 0)
    factors = {
        "noise divided by the root of the lot": 1 / math.sqrt(lot),
        "noise of the average instead of the sum": 1 / lot,
        "noise for half the clip": 0.5,
    }
    return noise * factors.get(bug, 1.0)


def broken_round(bug: str):
    def play(fed: Federation, ledger: Ledger, engine, round: int, w: Tensor, state: MethodState) -> Outcome:
        members = fed.cohort.sample(fed.streams, round, fed.population.clients).tolist()
        books = Ledger.create(None, "its own", ledger.budgets) if bug == "a fresh ledger in every round" else ledger
        bills = {sample_account(c): bill(fed, c, bug) for c in members}

        def pay() -> dict[str, str]:
            return books.charge_each(bills, round=round, repeatable=True)

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
        count = len(members) if bug == "who was refused counts" else len(models)
        mean = sum((model - w for model in models.values()), torch.zeros_like(w)) / max(count, 1)
        w, server = fed.method.server.update(w, mean, state.server, fed.context(w, {}))
        state = replace(state, server=server, clients=kept)
        return Outcome(w, state, len(models), 0, len(members) - len(models))

    return play


MARK = "noise on every active coordinate"
SCALE = "times its scale"
# By bug: the method in which it is planted, the audit that is there for it, and what it says.
BUGS = {
    "shuffled batches priced as Poisson": ("pfl", "lots", "steps have lots of their own"),
    "the same lot for every step": ("pfl lot", "lots", "steps have lots of their own"),
    "lots of batch over size": ("dp_fed", "lots", "times the rate"),
    "the last sample never": ("dp_fed", "lots", "times the rate|every sample joins as often"),
    "the same lots in every pass": ("pfl passes", "lots", "steps have lots of their own"),
    "a sample joins at twice the rate": ("dp_fed", "lots", "times the rate"),
    "the same lots in every round": ("dp_fed", "lots", "rounds have lots of their own"),
    "the same lots for every client": ("dp_fed", "lots", "clients have lots of their own"),
    "fixed lots priced as Poisson": ("fed_spa as_published", "lots", "sizes of Poisson lots"),
    "divided by the lot's actual size": ("dp_fed", "sensitivity", "a sample moves"),
    "the clip of the batch mean": ("dp_fed", "sensitivity", "a sample moves"),
    "clipped per tensor, priced as global": ("dp_fed", "sensitivity", "a sample moves 1.41 clips"),
    "not clipped": ("fed_spa", "sensitivity", "a sample moves"),
    "the threshold of the current lot": ("fed_spa quantile", "sensitivity", "a sample moves"),
    "momentum of unclipped gradients": ("pfl", "sensitivity", "a sample moves"),
    "no noise": ("dp_fed", "noise", MARK),
    "no noise where the lot is empty": ("dp_fed", "noise", MARK),
    "noise only where the gradient is not zero": ("dp_fed", "noise", MARK),
    "active coordinates drawn anew in every step": ("fed_spa", "noise", MARK),
    "noise divided by the root of the lot": ("pfl", "noise", SCALE),
    "noise of the average instead of the sum": ("fed_spa", "noise", SCALE),
    "noise for half the clip": ("adap_dp_fl", "noise", SCALE),
    "everybody has the least noise of all": ("dp_fed", "noise", SCALE),
    "the same noise in every step": ("fed_spa", "noise", SCALE),
    "noise again in the next block": ("pfl passes", "noise", SCALE),
    "one step of several is paid for": ("pfl", "noise", SCALE),
    "the same noise for every client": ("dp_fed", "noise", "noise of their own"),
    "the same noise in every round": ("dp_fed", "noise", "noise of their own"),
    "a query that nobody pays": ("adap_dp_fl as_written", "price", "all queries"),
    "a query without noise": ("adap_dp_fl quantile", "price", "the query has its noise"),
    "a fresh ledger in every round": ("dp_fed", "payment", "who computes has paid"),
    "charged after computing": ("dp_fed", "payment", "who computes has paid"),
    "refused clients compute as well": ("dp_fed", "payment", "a refused client computes nothing"),
    "who was refused counts": ("dp_fed", "payment", "the mean is over those who took part"),
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
    honest = cl.methods.adap_dp_fl(clip=0.5, batch=4, decay=1.0, noise_multiplier=1.3)
    lying = replace(honest.local, private=replace(honest.local.private, worth=lambda noise: noise))
    fed, w = audited(honest)
    with pytest.raises(AssertionError, match="all queries"):
        AUDITS["price"](run_round, replace(fed, method=replace(fed.method, local=lying)), w)
