"""What methods keep to whose samples are protected by noise in a secure sum, beside what all methods keep to."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import pytest
import torch

import cloister as cl
from cloister.core import Sensitivity
from cloister.engine import Loop, Vectorized
from cloister.errors import CloisterError
from cloister.privacy.discrete_gaussian import rdp
from cloister.privacy.events import Gaussian, PoissonGaussian
from cloister.privacy.ledger import Charge, Ledger
from cloister.random.streams import Streams
from cloister.round import answer, close_round, open_round, run_round
from cloister.round.queries import Query, ask
from conftest import federation, killed_in_round, share, toy_task
from contract.catalogue import AUDITED_SUMS, SAMPLES, fed_of
from contract.sum_audit import AUDITS, audited
from round.test_halves import Node, books, server_of

SUMS = {name: make for name, make in SAMPLES.items() if make().local.sample_l2 is not None}
SUM = {"clip_norm": 0.05, "noise_multiplier": 1.3, "trust": "sum"}


def test_every_method_with_a_secure_sum_is_audited():
    assert {name.split()[0] for name in AUDITED_SUMS} == {name.split()[0] for name in SUMS}


QUICK = {("pfl discrete", "noise"), ("pfl discrete", "sensitivity"), ("pfl discrete", "price")}
MASKED = {("fed_spa", "sensitivity"), ("fed_spa", "batches")}  # a sample's marks are masked in part


@pytest.mark.parametrize(
    ("name", "audit"),
    [
        pytest.param(
            name, audit, marks=[] if (name, audit) in QUICK or name in ("pfl", "fed_spa") else pytest.mark.slow
        )
        for name in AUDITED_SUMS
        for audit in AUDITS
        if (name, audit) not in MASKED
    ],
)
def test_the_round_keeps_its_promise(name, audit):
    AUDITS[audit](run_round, *audited(AUDITED_SUMS[name]))


def test_a_masked_sample_moves_no_more_than_its_part_of_the_clip():
    fed, w = audited(AUDITED_SUMS["fed_spa"])
    within = fed.method.local.sample_l2
    assert within == pytest.approx(0.05 * math.sqrt(0.75))
    plan = fed.broadcast(1, w, {})["0"]
    assert int(plan["active"].sum()) == len(plan["mask"]) == 360


def test_one_mask_for_all_clients_of_a_round_and_another_in_the_next():
    fed, w = fed_of(SUMS["fed_spa sum"](noise_multiplier=0.0, lr=1.0, server=cl.server.sgd()), cl.full())
    state, ledger, moved = fed.method.init(w), Ledger.create(None, "test", {}), []
    for number in (1, 2):
        new, state, *_ = run_round(fed, ledger, Loop(), number, w, state)
        moved.append(new != w)
    kept = round(0.75 * len(w))
    assert [int(where.sum()) for where in moved] == [kept, kept]
    assert not torch.equal(*moved)


def test_a_node_makes_its_share_for_all_who_are_asked_and_a_sum_of_too_few_is_refused():
    task = toy_task(sizes=(4, 5, 6))
    fed, w = fed_of(cl.methods.pfl(**SUM, honest_fraction=0.6, sample_rate=1.0), task=task)
    server, state = server_of(fed, task, w.dtype), fed.method.init(w)
    offer = open_round(server, books(), 1, w, state)
    replies = [Node(fed, client).reply(offer) for client in range(3)]
    whole = answer(fed, books(), offer, Loop(), {}).reply
    assert whole.samples == sum(reply.samples for reply in replies) == 15
    torch.testing.assert_close(sum(reply.message for reply in replies), whole.message)
    close_round(server, replace(offer, closed=[]), replies[1:], state)  # 2 of 3 are as many as it was made for
    with pytest.raises(CloisterError, match="at least 2 of 3 clients"):
        close_round(server, replace(offer, closed=[]), replies[:1], state)


def test_a_server_cannot_have_a_node_charged_for_noise_that_it_does_not_add():
    task = toy_task(sizes=(4, 5, 6))
    fed, w = fed_of(cl.methods.pfl(**SUM, sample_rate=1.0), task=task)
    offer, node = open_round(server_of(fed, task, w.dtype), books(), 1, w, fed.method.init(w)), Node(fed, 0)
    with pytest.raises(CloisterError, match="noise_scale"):
        node.reply(replace(offer, noise_scale=1e6))
    assert not node.ledger.entries
    chosen = replace(cl.methods.pfl(**SUM), noise_schedule=lambda state: 2.0)
    with pytest.raises(CloisterError, match="on the way"):
        federation(chosen)


def test_a_coordinate_that_is_named_often_moves_no_more():
    part, (fed, w) = cl.transforms.common_part(0.5), federation(cl.methods.dp_fed(**SUM, sample_rate=1.0))
    update = torch.ones(len(w), dtype=w.dtype)
    for mask in ([0] * 8, [1, 1, 1, 2, 3, 3, 4, 5], list(range(8))):
        context = replace(fed.context(w, {"mask": torch.tensor(mask)}), size=len(w))
        found = part.encode(update, context)
        assert float(found.norm()) <= float(update[sorted(set(mask))].norm()) * (1 + 1e-12)
    assert torch.equal(found, update[:8]), "and named once, it is sent as it is"


def test_a_round_without_members_releases_nothing():
    nobody = replace(cl.poisson(0.5), sample=lambda streams, round, population: torch.tensor([], dtype=torch.int64))
    fed, w = fed_of(SUMS["pfl sum discrete"](), nobody)
    outcome = run_round(fed, Ledger.create(None, "test", {}), Loop(), 1, w, fed.method.init(w))
    assert torch.equal(outcome.w, w)


def test_batches_in_pieces_are_the_whole_batch(monkeypatch):
    found = []
    for piece in (1024, 3):
        monkeypatch.setattr(sys.modules["cloister.client.clipped_sum"], "PIECE", piece)
        for engine in (Loop(), Vectorized(chunk=4)):
            fed, w = fed_of(cl.methods.pfl(**SUM, sample_rate=1.0))
            found.append(run_round(fed, Ledger.create(None, "test", {}), engine, 1, w, fed.method.init(w)).w)
    for one in found[1:]:
        torch.testing.assert_close(one, found[0], rtol=1e-9, atol=1e-12)


def test_all_samples_in_every_round_are_priced_without_sampling():
    for rate, event in ((1.0, Gaussian(1.3)), (0.5, PoissonGaussian(1.3, 0.5))):
        fed, _ = federation(cl.methods.dp_fed(**SUM, sample_rate=rate))
        assert {charge.event for charge in fed.charges(list(range(8))).values()} == {event}


def test_rounding_moves_neighbors_by_its_bound_and_without_it_the_bound_is_broken():
    """Numbers just below and above the middle between two points: every coordinate of the sum moves by one point."""
    numbers = 10_000
    grid = cl.transforms.to_grid(128 * math.sqrt(numbers))
    fed, w = federation(cl.methods.dp_fed(**SUM, sample_rate=1.0))
    context = replace(fed.context(w, {}), size=numbers)
    points, g = grid.settings["points"], 1e-6
    s = torch.full((numbers,), (7.5 - 1e-3) / points, dtype=torch.float64)
    moved = grid.encode(s + g, context) - grid.encode(s, context)
    length = g * math.sqrt(numbers)
    bound = grid.sensitivity(Sensitivity(length, numbers), fed.objective.layout).l2
    assert points * length < 0.02 * math.sqrt(numbers)
    assert points * length < float(moved.double().norm()) <= bound
    random = torch.Generator().manual_seed(0)
    for scale in (1e-6, 1e-3, 1.0, 100.0):
        s = torch.randn(numbers, generator=random, dtype=torch.float64) * scale
        g = torch.randn(numbers, generator=random, dtype=torch.float64)
        g /= g.norm()
        moved = (grid.encode(s + g, context) - grid.encode(s, context)).double().norm()
        assert float(moved) <= points + math.sqrt(numbers)


@pytest.mark.parametrize("honest", [1.0, 0.35])
def test_any_number_of_members_costs_no_more_than_is_charged(honest):
    """Here shares are so narrow that it makes a difference how many they are."""
    clients, known = 20, Sensitivity(3.0, 50, integer=True)
    charged = cl.mechanisms.sample_shares(1.0, honest, "discrete", clients).account(PoissonGaussian(1.0, 0.3), known)
    orders = [1.5, 2, 4, 16]
    for members in range(1, clients + 1):
        counted = math.ceil(honest * members - 1e-9)
        width = 3.0 / math.sqrt(honest * members)
        assert (rdp(replace(charged, scale=width, shares=counted), orders) <= rdp(charged, orders) * (1 + 1e-9)).all()


def test_a_share_beyond_the_table_is_a_sum_of_several(monkeypatch):
    monkeypatch.setattr(sys.modules["cloister.mechanisms.sample_shares"], "MOST_SIGMA", 40.0)
    mechanism = cl.mechanisms.sample_shares(50.0, 1.0, "discrete", 1)
    like, known = torch.zeros(20_000, dtype=torch.int64), Sensitivity(2.0, 20_000, integer=True)
    drawn = share(mechanism, Streams(0), like, known, 1, 0, 1).double()
    assert drawn.std() == pytest.approx(100.0, rel=0.03)
    assert drawn.abs().max() < 700


@pytest.mark.parametrize(
    "make",
    [
        lambda: cl.methods.pfl(trust="sum", local_epochs=1),
        lambda: cl.methods.pfl(trust="sum", local_epoch="batch"),
        lambda: cl.methods.pfl(trust="sum", batch_sampling="fixed_size"),
        lambda: cl.methods.pfl(trust="sum", mode="as_published"),
        lambda: cl.methods.pfl(trust="sum", client_weights="size", public_sizes=True),
        lambda: cl.methods.pfl(trust="sum", sample_rate=0.5, batch_size=10),
        lambda: cl.methods.pfl(trust="sum", sample_rate=0.0),
        lambda: cl.methods.pfl(trust="sum", honest_fraction=0.0),
        lambda: cl.methods.pfl(trust="sum", noise="laplace"),
        lambda: cl.methods.pfl(trust="server"),
        lambda: cl.methods.pfl(sample_rate=0.5),
        lambda: cl.methods.pfl(noise="discrete"),
        lambda: cl.methods.pfl(honest_fraction=0.5),
        lambda: cl.methods.dp_fed(trust="sum", local_steps=2),
        lambda: cl.methods.dp_fed(trust="sum", bound="median"),
        lambda: cl.methods.fed_spa(trust="sum", local_epochs=2),
        lambda: cl.methods.fed_spa(trust="sum", bound="quantile"),
        lambda: federation(replace(cl.methods.pfl(**SUM), mechanism=cl.mechanisms.gaussian(1.0, "distributed"))),
        lambda: federation(replace(cl.methods.pfl(**SUM), local=cl.client.one_gradient(4))),
        lambda: federation(replace(cl.methods.pfl(**SUM), transform=cl.transforms.clip_l2(0.01))),
        lambda: federation(replace(cl.methods.pfl(**SUM), transform=cl.transforms.capped_weights(5.0))),
        lambda: replace(federation(cl.methods.pfl(**SUM))[0], copies=2),
    ],
)
def test_what_does_not_go_with_a_secure_sum_is_refused_in_one_sentence(make):
    with pytest.raises(CloisterError, match=r"^Expected .* found .*: .*\.$"):
        make()


def test_the_certificate_names_the_honest_and_what_is_left_against_others():
    task = toy_task(sizes=(40, 50, 60, 30))
    method = cl.methods.dp_fed(clip_norm=0.1, trust="sum", sample_rate=0.5, honest_fraction=0.75)
    run = cl.run(method, task, rounds=3, epsilon=3.0, delta=1e-3, progress=False)
    text = " ".join(str(run.certificate).split())
    assert "reveals the sum of at least 0.75 of a round's members" in text
    assert "shares of 1 of 4" in text
    assert "L2 norm of a sample's part in the sum of a round" in text
    assert "rates times declared sizes" in text
    assert run.certificate.epsilon <= 3.0


def test_queries_beside_a_secure_sum_have_shares_of_the_noise_of_whoever_needs_most():
    """Fails without cause below 1e-8: a standard deviation of 40,000 draws is within 2 percent of its scale."""
    fed, _ = federation(cl.methods.dp_fed(**SUM, sample_rate=1.0, honest_fraction=0.5), task=toy_task((4, 5, 6)))
    numbers, noises = 40_000, (1.0, 3.0, 2.0)
    query = Query("statistics", numbers, lambda inputs, labels: torch.zeros(len(labels), numbers), noises)
    charges = {f"sample of client {c}": Charge(Gaussian(noise)) for c, noise in enumerate(noises)}
    found = ask(fed, Ledger.create(None, "test", {}), query, charges, fed.population, 0)
    assert float(found.mean.std()) * 15 == pytest.approx(3.0 / math.sqrt(0.5), rel=0.02)
    assert found.noise * 15 == pytest.approx(3.0 / math.sqrt(0.5))


def test_an_interrupted_run_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    """Momentum over rounds is kept by the server, and a charged round is not charged again."""
    settings = {"rounds": 4, "delta": 1e-3, "progress": False, "engine": "loop"}
    method = cl.methods.pfl(**SUM, sample_rate=0.5, momentum=0.9, lr_decay=0.9, noise="discrete")
    whole = cl.run(method, toy_task(), folder=tmp_path / "whole", **settings)
    with killed_in_round(monkeypatch, 3):
        cl.run(method, toy_task(), folder=tmp_path / "parts", **settings)
    parts = cl.run(method, toy_task(), folder=tmp_path / "parts", resume=True, **settings)
    assert parts.certificate.ledger_hash == whole.certificate.ledger_hash
    assert parts.epsilon == whole.epsilon
    for one, other in zip(parts.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(one, other)
