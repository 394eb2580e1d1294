"""Noise that nodes share: as wide as is priced with the fewest replies that are accepted, whatever a server says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from cloister.deploy.halves import prepared, shares
from cloister.deploy.masking import MaskSettings
from cloister.errors import CloisterError
from deploy.halves.federations import SIZES, Toy, quick_first, terms_of

LOCAL: dict[str, Any] = {"clip_norm": 1e-4, "lr": 0.5, "batch_size": 4, "delta": 1e-3, "cohort": "full"}
USUAL: dict[str, Any] = {**LOCAL, "local_steps": 2, "noise_multiplier": 1.3, "allow_large_delta": True}
SUM = {**LOCAL, "noise_multiplier": 1.3, "trust": "sum"}
SHARED: dict[str, dict[str, Any]] = {
    "dp_fedavg": {"method": "dp_fedavg", **USUAL, "noise": "distributed"},
    "ddgauss": {"method": "ddgauss", **USUAL},
    "pfl sum": {"method": "pfl", **SUM},
    "pfl discrete": {"method": "pfl", **SUM, "noise": "discrete"},
    "cpsgd": {"method": "cpsgd", **LOCAL, "noise_multiplier": 20.0, "trust": "sum"},
}
WIDE = {"model": "mlp", "hidden": 100}  # enough coordinates to measure a deviation by


def toy_of(name: str, fewest: int | None, **more: Any) -> Toy:
    sizes = {"sizes": list(SIZES)} if name in ("pfl sum", "pfl discrete", "cpsgd") else {}
    least = {} if fewest is None else {"min_replies": fewest}
    return Toy(terms_of({**SHARED[name], **WIDE, "rounds": 1, **more}, **sizes, **least))


def priced_multiplier(toy: Toy) -> float:
    """The noise multiplier that is on the ledger, of Gaussian noise or of what resembles it."""
    node, step = toy.nodes[0], toy.server.next_step()
    return node.charges(step, toy.server.offer(step, (0, 1, 2, 3))).event.noise_multiplier


def audit_shares(toy: Toy, fewest: int) -> None:
    """Shares of so many replies are together at least as wide as was priced."""
    step, node, fed = toy.server.next_step(), toy.nodes[0], toy.nodes[0].side.fed
    like = fed.blank(toy.server.progress.w, shares_told(toy))
    mechanism, of = fed.method.mechanism, len(toy.nodes)  # which is what a server claims
    z = mechanism.noise_multiplier
    drawn = [mechanism.draw(z, fed.streams, like, fed.sensitivity, round, 0, of) for round in range(1, 40)]
    together = float(torch.stack(drawn).double().std()) * fewest**0.5
    bound = fed.sensitivity.l2 if fed.sensitivity.rounded is None else 1.0
    wanted = priced_multiplier(toy) * bound
    if fed.sensitivity.rounded is not None:  # coins: as many as are priced
        wanted = (fed.charges([0], 1.0, 1)["sample of client 0"].event.trials / 4) ** 0.5
    assert together > 0.98 * wanted, f"{fewest} shares have {together / wanted:.3f} of the deviation that is priced"
    assert node.masked(step) is None or node.masked(step).least_survivors == fewest


def shares_told(toy: Toy) -> Any:
    from cloister.deploy.halves.told import told_by

    progress = toy.server.progress
    return told_by(toy.server.side, 1, progress.w, progress.state.transform)


@pytest.mark.parametrize("fewest", quick_first([3, 2, 4]))
@pytest.mark.parametrize("name", SHARED)
def test_the_fewest_replies_have_the_noise_that_is_priced(name, fewest):
    audit_shares(toy_of(name, fewest), fewest)


@pytest.mark.parametrize("name", SHARED)
def test_shares_for_all_who_are_asked_would_be_found_out(name, monkeypatch):
    monkeypatch.setattr(prepared, "counted_on", lambda method, cohort, terms: method)
    if name == "pfl discrete":
        monkeypatch.setattr(shares, "_of", lambda mechanism, fewest: mechanism)
    with pytest.raises(AssertionError, match="of the deviation"):
        audit_shares(toy_of(name, 2), 2)


@pytest.mark.parametrize("name", SHARED)
def test_both_sides_have_one_price(name):
    toy = toy_of(name, 3)
    step = toy.server.next_step()
    offer = toy.server.offer(step, (0, 1, 2, 3))
    if toy.server.unit == "client":
        charges = {node.charges(step, offer) for node in toy.nodes}
        assert charges == {toy.server.charges(step)["client"]}
    assert {node.side.fed.method.mechanism.noise_multiplier for node in toy.nodes} == {
        toy.server.side.fed.method.mechanism.noise_multiplier
    }
    assert {node.masked(step) for node in toy.nodes} == {toy.server.masked(step)}


@pytest.mark.parametrize("name", SHARED)
def test_fewer_replies_are_not_released(name):
    toy = toy_of(name, 3)
    step = toy.server.next_step()
    offer = toy.server.offer(step, (0, 1, 2, 3))
    replies = [node.answer(offer)[0] for node in toy.nodes]
    assert toy.server.min_replies(step, offer) == 3
    with pytest.raises(CloisterError, match="replies of 3 nodes"):
        toy.server.close(step, offer, replies[:2])
    toy.server.close(step, offer, replies[1:])
    assert toy.server.next_step() is None


@pytest.mark.parametrize("name", ["ddgauss", "pfl discrete", "cpsgd"])
def test_a_sum_modulo_a_power_of_two_gives_the_same_model(name):
    plain, masked = toy_of(name, 3), toy_of(name, 3)
    step = plain.server.next_step()
    offer = plain.server.offer(step, (0, 1, 2, 3))
    replies = [node.answer(offer)[0] for node in plain.nodes][:3]
    settings = masked.server.masked(step)
    assert isinstance(settings, MaskSettings)
    assert settings.length == len(replies[0].tensors["message"])
    total = sum(reply.tensors["message"] for reply in replies) & (2**settings.bits - 1)
    plain.server.close(step, offer, replies)
    with pytest.raises(CloisterError, match="a sum of 3 replies"):
        masked.server.close_masked(step, offer, total, (0, 1))
    masked.server.close_masked(step, offer, total, (0, 1, 2))
    assert torch.equal(plain.server.progress.w, masked.server.progress.w)


def test_calibration_is_for_the_fewest_replies():
    def share(fewest: int) -> float:
        values = {**SHARED["ddgauss"], "epsilon": 3.0}
        del values["noise_multiplier"]
        toy = Toy(terms_of({**values, "rounds": 2}, min_replies=fewest))
        return toy.nodes[0].side.fed.method.mechanism.settings["scale"] / toy.nodes[0].side.fed.sensitivity.l2

    assert share(2) > 1.3 * share(4)


@pytest.mark.parametrize(
    ("values", "federation", "says"),
    [
        (SHARED["dp_fedavg"], {"test_mode": False}, "masks cannot hide"),
        ({**SHARED["pfl sum"]}, {"test_mode": False, "sizes": list(SIZES)}, "masks cannot hide"),
        ({**SHARED["ddgauss"], "cohort": "poisson", "sampling_rate": 0.5}, {}, "may not be counted on"),
        (SHARED["ddgauss"], {"min_replies": 1}, "min_replies of 2"),
        (SHARED["pfl discrete"], {}, "sizes"),
        ({**SHARED["ddgauss"]}, {"participation": "node"}, "let the server draw"),
        ({**USUAL, "method": "dp_fedavg"}, {"threshold": 3}, "no threshold"),
    ],
)
def test_what_would_not_be_private_is_refused(values, federation, says):
    terms = terms_of(values, **federation)
    with pytest.raises(CloisterError, match=says):
        prepared.prepare(terms)


def test_a_reply_with_noise_is_checked_all_the_same():
    toy = toy_of("ddgauss", 3)
    step = toy.server.next_step()
    offer = toy.server.offer(step, (0, 1, 2, 3))
    reply = toy.nodes[0].answer(offer)[0]
    toy.server.check(step, offer, reply)
    loud = replace(reply, tensors={"message": reply.tensors["message"] * 1000})
    with pytest.raises(CloisterError, match="a norm of at most"):
        toy.server.check(step, offer, loud)
