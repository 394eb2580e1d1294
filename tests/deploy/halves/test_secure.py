"""Outside test mode: what protects somebody comes from the system, and nobody else can compute a node's batches."""

from __future__ import annotations

import torch

from cloister.privacy.accountant import PrivacyLoss
from cloister.random.streams import Streams
from deploy.halves.federations import FEDAVG, PFL, Toy, terms_of


def secure(values: dict, **federation) -> Toy:
    return Toy(terms_of(values, test_mode=False, **federation))


def test_batches_follow_from_a_seed_that_is_nowhere_in_the_terms():
    one, other = secure(FEDAVG), secure(FEDAVG)
    seeds = {node.side.fed.streams.seed for toy in (one, other) for node in toy.nodes}
    assert len(seeds) == 8
    assert min(seed.bit_length() for seed in seeds) > 200
    known = Streams(one.terms.options.seed).key("batches", 1)
    assert all(node.side.fed.streams.key("batches", 1) != known for node in one.nodes)


def test_noise_and_cohorts_are_new_every_time():
    toy = secure(PFL)
    assert not toy.server.repeatable
    assert not toy.nodes[0].repeatable
    offer = toy.server.offer(toy.server.next_step(), (0, 1, 2, 3))
    one, other = (toy.nodes[0].answer(offer)[0].tensors["message"] for _ in range(2))
    assert not torch.equal(one, other)
    drawn = secure(FEDAVG).server
    cohorts = {drawn.members(drawn.next_step()) for _ in range(60)}
    assert len(cohorts) > 3  # of 16; all 60 alike but three with a chance below 1e-40


def test_both_sides_begin_with_one_model_and_draw_the_same_masks():
    toy = secure({**FEDAVG, "method": "fed_smp_rand_k"})
    assert all(torch.equal(node.side.placed.w, toy.server.side.placed.w) for node in toy.nodes)
    assert toy.step()


def test_messages_and_noise_of_a_deployment_are_on_a_grid():
    """What a node sends is exact in float32; what the server closes with is within the bound, whatever it was sent."""
    values = {key: value for key, value in FEDAVG.items() if key != "sampling_rate"}
    toy = secure({**values, "cohort": "full"})
    grid = toy.server.side.fed.grid
    assert grid == 2.0**-24
    assert all(node.side.fed.grid == grid for node in toy.nodes)
    offer = toy.server.offer(toy.server.next_step(), (0, 1, 2, 3))
    for node in toy.nodes:
        message = node.answer(offer)[0].tensors["message"]
        assert message.dtype == torch.float32
        assert not torch.remainder(message.double() / grid, 1).any()
        assert torch.equal(toy.server.side.fed.placed(message), message.double()), "rounding twice changes nothing"
    beyond = message * (0.5 * (1 + 5e-7) / message.norm())  # which the server's tolerance lets through
    assert float(toy.server.side.fed.placed(beyond).norm()) <= 0.5 < float(beyond.double().norm())
    assert toy.step()
    assert not secure(PFL).server.side.fed.grid
    assert secure(PFL).nodes[0].side.fed.method.mechanism.grid == 2.0**-26


def test_a_node_that_draws_for_itself_takes_part_as_often_as_is_priced():
    toy = secure(FEDAVG, participation="node")
    step = toy.server.next_step()
    assert toy.server.members(step) == (0, 1, 2, 3)
    times = sum(toy.nodes[1].participates(step) for _ in range(400))
    assert 120 < times < 280  # 8 deviations around 200


def test_a_node_that_is_not_asked_pays_for_every_elapsed_round():
    """With z = 1 and q = 0.1, charging only the rounds in which a node is asked would show a third of what is lost."""
    values = {**FEDAVG, "noise_multiplier": 1.0, "sampling_rate": 0.1, "rounds": 200}
    values.pop("epsilon", None)
    toy = Toy(terms_of(values))
    node, server = PrivacyLoss(), PrivacyLoss()
    for step in toy.server.steps:
        charge = toy.nodes[0].charges(step, None)
        assert charge is not None
        node.add(charge.event, charge.count)
        paid = toy.server.charges(step)["client"]
        server.add(paid.event, paid.count)
    assert node.epsilon(1e-5) == server.epsilon(1e-5) > 5


def test_one_charge_pays_for_a_cycle_and_no_more():
    values = {**FEDAVG, "method": "dp_ftrl", "cohort": "cyclic", "clients_per_round": 2, "rounds": 5}
    values.pop("sampling_rate")
    toy = Toy(terms_of(values))
    for client, turns in ((0, [True, False] * 2 + [True]), (3, [False, True] * 2 + [False])):
        charges = [toy.nodes[client].charges(step, None) for step in toy.server.steps]
        assert [charge is not None for charge in charges] == turns
        assert {charge.event for charge in charges if charge} == {toy.server.side.fed.event}
