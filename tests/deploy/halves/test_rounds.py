"""Rounds in two halves."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from cloister.deploy.wire.bodies import pack, unpack
from cloister.errors import CloisterError
from deploy.halves.federations import FEDAVG, PFL, Toy, terms_of


@pytest.mark.parametrize("values", [PFL, FEDAVG], ids=["pfl", "dp_fedavg"])
def test_a_run_in_test_mode_repeats(values):
    one, other = (Toy(terms_of(values)) for _ in range(2))
    assert torch.equal(one.play(), other.play())
    assert not torch.equal(one.server.progress.w, one.server.side.placed.w)


def replies_of(toy: Toy):
    step = toy.server.next_step()
    offer = toy.server.offer(step, (0, 1, 2, 3))
    return step, offer, [node.answer(offer)[0] for node in toy.nodes]


@pytest.mark.parametrize("factorization", ["banded", "tree"])
def test_correlated_noise_goes_on_over_a_round_that_is_not_released(factorization):
    """With the noise of other rounds than was priced, what cancels would lay single updates bare."""
    values = {**FEDAVG, "method": "dp_ftrl", "cohort": "cyclic", "clients_per_round": 1, "rounds": 4}
    values |= {"factorization": factorization} if factorization == "tree" else {}
    del values["sampling_rate"]
    whole, gap = Toy(terms_of(values)), Toy(terms_of(values))
    for number in range(1, 5):
        whole.step()
        if number in (2, 3):
            gap.server.skip(gap.server.next_step())
        else:
            gap.step()
    one, other = whole.server.progress, gap.server.progress
    assert other.skipped == (1, 2)
    assert one.state.mechanism.keys() == other.state.mechanism.keys() != set()
    for name, kept in one.state.mechanism.items():
        torch.testing.assert_close(kept, other.state.mechanism[name])
    assert not torch.equal(one.w, other.w)


def test_a_skipped_round_leaves_the_model_as_it_is():
    toy = Toy(terms_of(FEDAVG))
    toy.step()
    w = toy.server.progress.w
    toy.server.skip(toy.server.next_step())
    assert torch.equal(toy.server.progress.w, w)
    assert toy.server.next_step().round == 3


@pytest.mark.parametrize("values", [PFL, FEDAVG], ids=["pfl", "dp_fedavg"])
def test_a_server_goes_on_from_a_checkpoint(values):
    whole, first = Toy(terms_of(values)), Toy(terms_of(values))
    wanted = whole.play()
    first.step()
    content, tensors = first.server.progress.content(), unpack(pack(first.server.progress.tensors()))
    again = Toy(terms_of(values))
    again.server.restore(json.loads(json.dumps(content)), tensors)
    for one, other in zip(first.nodes, again.nodes, strict=True):
        other.restore(one.node_state.content(), unpack(pack(one.node_state.tensors())))
    assert torch.equal(again.play(), wanted)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m * torch.nan, "finite"),
        (lambda m: m * 1e6, "a norm of at most"),
        (lambda m: m[:-1], "a message of"),
        (lambda m: m.double(), "a message of"),
        (lambda m: m.long(), "a message of"),
    ],
    ids=["NaN", "norm", "shape", "float64", "int64"],
)
@pytest.mark.parametrize("values", [PFL, FEDAVG], ids=["pfl", "dp_fedavg"])
def test_a_reply_that_no_honest_node_sends_is_refused(values, change, says):
    toy = Toy(terms_of(values))
    step, offer, replies = replies_of(toy)
    for reply in replies:
        toy.server.check(step, offer, reply)
    bad = replace(replies[1], tensors={"message": change(replies[1].tensors["message"])})
    with pytest.raises(CloisterError, match=says):
        toy.server.check(step, offer, bad)
    with pytest.raises(CloisterError, match=says):
        toy.server.close(step, offer, [replies[0], bad])
    assert toy.server.next_step() == step


def test_replies_of_others_and_repeated_ones_are_refused():
    toy = Toy(terms_of(PFL))
    step, offer, replies = replies_of(toy)
    with pytest.raises(CloisterError, match="who were asked"):
        toy.server.check(step, replace(offer, asked=(0, 1)), replies[2])
    with pytest.raises(CloisterError, match="one reply of each"):
        toy.server.close(step, offer, [*replies, replies[1]])
    with pytest.raises(CloisterError, match="one tensor"):
        toy.server.check(step, offer, replace(replies[0], tensors={}))
    toy.server.close(step, offer, replies)
    with pytest.raises(CloisterError, match="each is closed once"):
        toy.server.close(step, offer, replies)


def test_a_reply_weighs_as_much_as_was_declared():
    values = {**PFL, "client_weights": "size", "public_sizes": True}
    toy = Toy(terms_of(values, sizes=[7, 3, 12, 5]))
    step, offer, replies = replies_of(toy)
    toy.server.check(step, offer, replies[1])
    heavy = torch.cat([replies[1].tensors["message"][:-1], torch.tensor([900.0])])
    with pytest.raises(CloisterError, match="a weight of 3"):
        toy.server.check(step, offer, replace(replies[1], tensors={"message": heavy}))


def test_replies_count_in_any_order():
    one, other = Toy(terms_of(PFL)), Toy(terms_of(PFL))
    step, offer, replies = replies_of(one)
    one.server.close(step, offer, replies)
    other.server.close(step, offer, replies[::-1])
    assert torch.equal(one.server.progress.w, other.server.progress.w)


def test_a_cohort_too_small_for_a_secure_sum_is_everybody():
    values = {**PFL, "trust": "sum", "noise": "discrete", "cohort": "poisson", "sampling_rate": 0.3, "rounds": 20}
    toy = Toy(terms_of(values, sizes=[7, 3, 12, 5], min_replies=3))
    assert {len(toy.server.members(step)) for step in toy.server.steps} <= {3, 4}
